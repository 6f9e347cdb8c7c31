"""The five tools: what they answer, what they refuse, and what reaches the model."""

import inspect
import os
import re
import select
import sys

import pytest
from fakes import big, call, lines_of, reply, results, user

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX system")


@pytest.fixture
def use(agent, scripted):
    """use("bash", command="ls") is the result block that the model gets to read."""

    def run(name, **given):
        scripted(reply(call("t1", name, **given)), reply("done"))
        messages = []
        agent.add(messages, "user", "go")
        agent.agent_loop(messages)
        return messages[2]["content"][0]

    return run


@pytest.fixture
def file(tmp_path):
    """file(content) writes f.txt, byte for byte."""
    return lambda content: (tmp_path / "f.txt").write_bytes(content)


@pytest.fixture
def outside(tmp_path_factory):
    """A file that the agent must not reach."""
    path = tmp_path_factory.mktemp("outside") / "secret.txt"
    path.write_text("SECRET")
    return path


def failed(answer):
    return isinstance(answer, str) and answer.startswith("Error:")


# --- what the model is told ------------------------------------------------------------------


def test_there_are_five_tools_each_with_a_handler(agent):
    names = [tool["name"] for tool in agent.TOOLS]
    assert sorted(names) == ["bash", "compact", "edit_file", "read_file", "write_file"]
    assert set(names) == set(agent.TOOL_HANDLERS)


@pytest.mark.parametrize(
    "name, fields, required",
    [
        ("bash", {"command"}, ["command"]),
        ("read_file", {"path", "limit", "offset"}, ["path"]),
        ("write_file", {"path", "content"}, ["path", "content"]),
        ("edit_file", {"path", "old_text", "new_text"}, ["path", "old_text", "new_text"]),
        ("compact", {"focus"}, []),
    ],
)
def test_each_schema_names_its_parameters(agent, name, fields, required):
    [tool] = [tool for tool in agent.TOOLS if tool["name"] == name]
    schema = tool["input_schema"]
    assert schema["type"] == "object" and set(schema["properties"]) == fields
    assert schema.get("required", []) == required
    assert tool["description"].strip()


def test_the_focus_of_compact_is_a_text(agent):
    [tool] = [tool for tool in agent.TOOLS if tool["name"] == "compact"]
    assert tool["input_schema"]["properties"]["focus"]["type"] == "string"


def test_a_handler_can_be_replaced(agent, monkeypatch, use):
    monkeypatch.setitem(agent.TOOL_HANDLERS, "bash", lambda command: f"would run {command}")
    assert use("bash", command="ls")["content"] == "would run ls"


# --- results ---------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["", "  \n", None])
def test_a_result_is_never_empty(agent, monkeypatch, use, output):
    monkeypatch.setitem(agent.TOOL_HANDLERS, "bash", lambda command: output)
    assert use("bash", command="x")["content"].strip()


@pytest.mark.parametrize("command", ["true", "echo", "printf ' '", ": > f"])
def test_a_command_that_prints_nothing_has_a_result(use, command):
    assert use("bash", command=command)["content"].strip()


@pytest.mark.parametrize(
    "words, error",
    [("Error: no", True), ("error: no", False), ("An Error: no", False), ("ok", False)],
)
def test_is_error_is_set_exactly_when_the_text_starts_with_error(
    agent, monkeypatch, use, words, error
):
    monkeypatch.setitem(agent.TOOL_HANDLERS, "bash", lambda command: words)
    assert use("bash", command="x").get("is_error", False) is error


@pytest.mark.parametrize("error", [OSError("disk"), KeyError("k"), RecursionError(), ValueError()])
def test_an_exception_becomes_an_error_result(agent, monkeypatch, use, error):
    def fail(command):
        raise error

    monkeypatch.setitem(agent.TOOL_HANDLERS, "bash", fail)
    assert failed(use("bash", command="x")["content"])


def test_a_failed_command_is_no_error_but_shows_its_exit_code(use):
    block = use("bash", command="grep nothing /dev/null")
    assert "exit code 1" in block["content"] and "is_error" not in block


# --- caps ------------------------------------------------------------------------------------


def exception_text(agent, monkeypatch):
    def fail(**_):
        raise ValueError(big(200_000))

    monkeypatch.setitem(agent.TOOL_HANDLERS, "bash", fail)
    return "bash", {"command": "x"}


def file_text(agent, monkeypatch):
    agent.run_write("f.txt", big(200_000))
    return "read_file", {"path": "f.txt"}


def command_text(agent, monkeypatch):
    agent.run_write("f.txt", big(200_000))
    return "bash", {"command": "cat f.txt"}


@pytest.mark.parametrize("source", [exception_text, file_text, command_text])
def test_a_long_result_is_cut_to_head_and_tail(agent, monkeypatch, use, source):
    name, given = source(agent, monkeypatch)
    words = use(name, **given)["content"]
    assert len(words) <= agent.MAX_RESULT_CHARS
    assert "BIG-HEAD" in words[:100] and "BIG-TAIL" in words[-100:]


def test_the_mark_names_the_size_and_the_transcript(agent, use):
    words = use("bash", command="seq 100000")["content"]
    mark = re.search(r"\[[^\]]*588,895[^\]]*?(\S+\.jsonl)[^\]]*\]", words)
    whole = results(lines_of(agent.WORKDIR / mark[1]))[0]
    assert len(whole) == 588_895


@pytest.mark.parametrize("size, cut", [(1_000, False), (1_001, True)])
def test_the_cap_is_a_knob(agent, monkeypatch, use, size, cut):
    monkeypatch.setattr(agent, "MAX_RESULT_CHARS", 1_000)
    monkeypatch.setitem(agent.TOOL_HANDLERS, "bash", lambda command: big(size))
    assert (use("bash", command="x")["content"] != big(size)) == cut


def test_a_pasted_prompt_is_capped_by_the_same_rule(agent):
    messages = []
    agent.add(messages, "user", big(200_000))
    words = str(messages[0]["content"])
    assert len(words) < agent.MAX_RESULT_CHARS + 100
    assert "BIG-HEAD" in words and "BIG-TAIL" in words and "200,000" in words


# --- bash ------------------------------------------------------------------------------------


def test_bash_runs_in_the_working_directory(agent, tmp_path):
    assert agent.run_bash("pwd -P") == f"{tmp_path.resolve()}\n"


def test_both_output_streams_are_shown_in_order(agent):
    assert agent.run_bash("echo a; echo b >&2; echo c") == "a\nb\nc\n"


@pytest.mark.parametrize("code", [1, 3, 127])
def test_an_exit_code_is_shown_when_it_is_not_0(agent, code):
    answer = agent.run_bash(f"echo out; exit {code}")
    assert answer.startswith("out\n") and f"exit code {code}" in answer
    assert "exit code" not in agent.run_bash("echo out")


def test_a_command_that_reads_gets_the_end_of_input(agent):
    assert agent.run_bash("cat; echo end") == "end\n"


def test_odd_bytes_are_replaced(agent):
    assert agent.run_bash(r"printf 'a\377\376b'") == "a\ufffd\ufffdb"


@pytest.mark.parametrize("name", ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY"])
def test_keys_are_not_in_its_environment(agent, monkeypatch, name):
    monkeypatch.setenv(name, "sk-SECRET")
    monkeypatch.setenv("HARMLESS", "stays")
    environment = agent.run_bash("env")
    assert "sk-SECRET" not in environment and "stays" in environment


@pytest.mark.parametrize(
    "command",
    ["sudo ls", "ls; sudo ls", "rm -rf /", "rm -rf / ", "rm -rf /*", "shutdown now", "reboot"],
)
def test_some_commands_are_denied(agent, monkeypatch, command):
    monkeypatch.setattr(agent.subprocess, "Popen", lambda *_, **__: pytest.fail("it was run"))
    assert failed(agent.run_bash(command))


@pytest.mark.parametrize("command", ["echo sudo", "ls pseudo || true", "rm -rf ./nothing"])
def test_harmless_commands_are_not(agent, command):
    assert not failed(agent.run_bash(command))


def test_a_command_that_takes_too_long_is_stopped(agent, monkeypatch):
    monkeypatch.setattr(agent, "BASH_SECONDS", 0.2)
    answer = agent.run_bash(r"echo early; printf '\377'; sleep 9")
    assert failed(answer) and "early\n\ufffd" in answer and "0.2" in answer


def test_a_command_that_prints_too_much_is_stopped(agent, monkeypatch):
    monkeypatch.setattr(agent, "TOOL_BYTES", 5_000)
    answer = agent.run_bash("yes")
    assert failed(answer) and "y\ny\n" in answer and "5,000" in answer
    assert len(answer) < 5_500


def test_a_command_that_printed_too_much_and_ended_is_cut_as_well(agent, monkeypatch):
    monkeypatch.setattr(agent, "TOOL_BYTES", 5_000)
    assert len(agent.run_bash("head -c 50000 /dev/zero | tr '\\0' x")) < 5_500


@pytest.fixture
def gone(tmp_path):
    """gone() says whether nobody holds the file "pipe" open (any longer)."""
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    yield lambda: bool(select.select([reader], [], [], 5)[0])
    os.close(reader)


@posix
def test_what_it_left_in_the_background_is_stopped_too(agent, monkeypatch, gone):
    monkeypatch.setattr(agent, "BASH_SECONDS", 0.2)
    agent.run_bash("exec 3> pipe; sleep 30 & sleep 30")
    assert gone()


@posix
def test_ctrl_c_stops_the_command_and_its_children(agent, monkeypatch, gone):
    monkeypatch.setattr(agent, "BASH_SECONDS", 3)
    with pytest.raises(KeyboardInterrupt):
        agent.run_bash(f"exec 3> pipe; sleep 30 & sleep 0.1; kill -INT {os.getpid()}; sleep 30")
    assert gone()


def test_a_server_in_the_background_does_not_keep_the_agent_waiting(agent, monkeypatch):
    monkeypatch.setattr(agent, "BASH_SECONDS", 3)
    assert agent.run_bash("(sleep 5; echo late) & echo started") == "started\n"


# --- paths -----------------------------------------------------------------------------------


def test_a_path_is_resolved_inside_the_working_directory(agent, tmp_path):
    assert agent.safe_path("a/../b/c") == tmp_path.resolve() / "b" / "c"
    assert agent.safe_path(str(tmp_path / "a")) == tmp_path.resolve() / "a"


@pytest.fixture(params=["dots", "absolute", "sibling", "link", "link to a folder"])
def escape(request, tmp_path, outside):
    """A path that leads out of the working directory."""
    sibling = tmp_path.parent / f"{tmp_path.name}2"
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "folder").symlink_to(outside.parent)
    ways = {"dots": os.path.relpath(outside), "absolute": str(outside), "sibling": str(sibling)}
    return ways | {"link": "link", "link to a folder": "folder/secret.txt"}, request.param


def test_no_file_tool_leaves_the_working_directory(agent, escape, outside):
    ways, way = escape
    path = ways[way]
    with pytest.raises(ValueError):
        agent.safe_path(path)
    assert failed(agent.run_read(path))
    assert failed(agent.run_write(path, "new"))
    assert failed(agent.run_edit(path, "SECRET", "new"))
    assert outside.read_text() == "SECRET"


def test_a_link_to_a_file_inside_is_fine(agent, tmp_path, file):
    file(b"hello")
    (tmp_path / "link").symlink_to("f.txt")
    assert agent.run_read("link") == "hello"


@pytest.mark.parametrize("path", [".env", "./.env", "sub/../.env", "sub/.env", "link"])
def test_the_file_tools_leave_env_files_alone(agent, tmp_path, path):
    (tmp_path / "sub").mkdir()
    for env in (tmp_path / ".env", tmp_path / "sub" / ".env"):
        env.write_text("KEY=SECRET")
    (tmp_path / "link").symlink_to(".env")
    assert failed(agent.run_read(path)) and "SECRET" not in agent.run_read(path)
    assert failed(agent.run_write(path, "x")) and failed(agent.run_edit(path, "KEY", "x"))
    assert (tmp_path / ".env").read_text() == "KEY=SECRET"


def test_the_example_of_an_env_file_is_none(agent):
    assert not failed(agent.run_write(".env.example", "KEY="))


@pytest.mark.parametrize("path", [".transcripts/x", "./a/../.transcripts/x", "link/x"])
def test_the_file_tools_do_not_write_transcripts(agent, tmp_path, path):
    agent.archive([user("hi")])
    (tmp_path / "link").symlink_to(".transcripts")
    (agent.TRANSCRIPT_DIR / "x").write_text("mine")
    assert failed(agent.run_write(path, "x")) and failed(agent.run_edit(path, "mine", "x"))
    assert (agent.TRANSCRIPT_DIR / "x").read_text() == "mine"


def test_read_file_reads_transcripts(agent):
    path = agent.archive([user("hi")])
    assert "hi" in agent.run_read(str(path.relative_to(agent.WORKDIR)))


# --- read_file -------------------------------------------------------------------------------


def test_a_file_is_read_as_it_is(agent, file):
    file("a\r\nb\n\u6c49".encode())
    assert agent.run_read("f.txt") == "a\r\nb\n\u6c49"


@pytest.mark.parametrize(
    "given, lines",
    [
        ({}, "1\n2\n3\n4\n"),
        ({"limit": 2}, "1\n2\n"),
        ({"offset": 1}, "2\n3\n4\n"),
        ({"offset": 1, "limit": 2}, "2\n3\n"),
        ({"offset": 3, "limit": 9}, "4\n"),
        ({"limit": 99}, "1\n2\n3\n4\n"),
    ],
)
def test_offset_and_limit_count_lines(agent, file, given, lines):
    file(b"1\n2\n3\n4\n")
    assert agent.run_read("f.txt", **given) == lines


@pytest.mark.parametrize("given", [{"limit": -1}, {"offset": -1}, {"limit": "x"}])
def test_a_limit_that_makes_no_sense_is_an_error(agent, file, given):
    file(b"1\n2\n")
    assert failed(agent.run_read("f.txt", **given))


@pytest.mark.parametrize("content, given", [(b"", {}), (b"1\n", {"offset": 5}), (b"\n", {})])
def test_where_there_is_nothing_to_read_the_result_is_not_empty(file, use, content, given):
    file(content)
    assert use("read_file", path="f.txt", **given)["content"].strip()


def test_a_binary_file_is_read_with_replacement_characters(agent, file):
    file(b"\x89PNG\xff\x00")
    assert agent.run_read("f.txt") == "\ufffdPNG\ufffd\x00"


@pytest.mark.parametrize(
    "path", ["missing", ".", "no/such/folder", "a\0b", "", "x" * 5_000, "\udcff"]
)
def test_what_cannot_be_read_is_an_error(agent, path):
    assert failed(agent.run_read(path))


@posix
def test_a_pipe_is_not_waited_for(agent):
    os.mkfifo("pipe")
    assert failed(agent.run_read("pipe")) and failed(agent.run_edit("pipe", "a", "b"))


# --- write_file ------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["hi\n", "a\r\nb\n", "\u6c49\u5b57", "", "\ufeffx"])
def test_a_file_is_written_as_utf_8_byte_for_byte(agent, tmp_path, content):
    assert not failed(agent.run_write("f.txt", content))
    assert (tmp_path / "f.txt").read_bytes() == content.encode()


def test_an_older_longer_file_is_replaced(agent, tmp_path, file):
    file(b"long old content")
    agent.run_write("f.txt", "new")
    assert (tmp_path / "f.txt").read_bytes() == b"new"


def test_folders_are_made(agent, tmp_path):
    agent.run_write("a/b/c.txt", "deep")
    assert (tmp_path / "a" / "b" / "c.txt").read_text() == "deep"


@pytest.mark.parametrize("path", [".", "f.txt/x", ""])
def test_what_cannot_be_written_is_an_error(agent, file, path):
    file(b"hi")
    assert failed(agent.run_write(path, "x"))


# --- edit_file -------------------------------------------------------------------------------


def test_the_one_place_is_replaced(agent, tmp_path, file):
    file(b"a = 1\nb = 2\n")
    assert not failed(agent.run_edit("f.txt", "b = 2", r"b = \1 $&"))
    assert (tmp_path / "f.txt").read_bytes() == b"a = 1\nb = \\1 $&\n"


@pytest.mark.parametrize("old", [b"a\r\nb\r\nc\r\n", b"a\nb\nc\n", b"a\r\nb\nc", b"a\xff\r\nb\x00"])
def test_everything_else_stays_byte_for_byte(agent, tmp_path, file, old):
    file(old)
    agent.run_edit("f.txt", "b", "B")
    assert (tmp_path / "f.txt").read_bytes() == old.replace(b"b", b"B")


@pytest.mark.parametrize("old_text, times", [("x", "3"), ("missing", "0"), ("", "")])
def test_an_empty_missing_or_ambiguous_text_is_refused_with_its_count(
    agent, tmp_path, file, old_text, times
):
    file(b"x x x")
    answer = agent.run_edit("f.txt", old_text, "y")
    assert failed(answer) and times in answer
    assert (tmp_path / "f.txt").read_bytes() == b"x x x"


@pytest.mark.parametrize("path", ["missing", "."])
def test_what_cannot_be_edited_is_an_error(agent, path):
    assert failed(agent.run_edit(path, "a", "b"))


# --- what models really send -----------------------------------------------------------------


def test_an_argument_of_any_name_is_an_error_for_the_model_and_nothing_more(use):
    assert failed(use("bash", command="echo hi", function="x")["content"])


def test_a_tool_of_a_student_may_have_any_parameter(agent, monkeypatch, use):
    monkeypatch.setattr(agent, "TOOL_HANDLERS", dict(agent.TOOL_HANDLERS))
    monkeypatch.setattr(agent, "TOOLS", list(agent.TOOLS))
    agent.tool("plot")(lambda function: f"plotted {function}")
    assert use("plot", function="sin")["content"] == "plotted sin"


def test_numbers_may_come_as_text_or_null(agent, file):
    file(b"a\nb\nc\n")
    assert agent.run_read("f.txt", limit="1", offset="1") == "b\n"
    assert agent.run_read("f.txt", limit=None, offset=None) == "a\nb\nc\n"


def test_behind_the_last_line_there_is_no_more(agent, file):
    file(b"a\n")
    assert agent.run_read("f.txt", offset=5) == "(no more lines)"


def test_a_file_too_long_for_one_result_is_read_in_parts(agent, monkeypatch, file):
    monkeypatch.setattr(agent, "TOOL_BYTES", 10)
    file(b"123456\n" * 3)
    answer = agent.run_read("f.txt")
    assert failed(answer) and "21 bytes" in answer and "offset" in answer
    assert agent.run_read("f.txt", limit=1, offset=2) == "123456\n"


def test_a_missing_file_is_named_in_words(agent):
    assert re.search(r"No such file or directory: '.*no.txt'", agent.run_read("no.txt"))


def test_the_functions_still_show_their_parameters(agent):
    assert list(inspect.signature(agent.run_read).parameters) == ["path", "limit", "offset"]


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"one\r\ntwo\r\n", "one", "one\r\nhalf", b"one\r\nhalf\r\ntwo\r\n"),
        (b"one\r\ntwo\r\n", "one", "one\nhalf", b"one\r\nhalf\r\ntwo\r\n"),
        (b"one\r\ntwo\r\n", "one\ntwo", "1\n2", b"1\r\n2\r\n"),
        (b"one\r\ntwo\nthree\n", "two\nthree", "2\n3", b"one\r\n2\n3\n"),
    ],
)
def test_line_endings_stay_as_they_are_around_an_edit(
    agent, file, tmp_path, before, old, new, after
):
    file(before)
    assert agent.run_edit("f.txt", old, new) == "Edited f.txt"
    assert (tmp_path / "f.txt").read_bytes() == after


def test_a_result_that_begins_like_a_summary_is_cut_as_well(agent, monkeypatch, use):
    monkeypatch.setattr(agent, "MAX_RESULT_CHARS", 2000)
    shown = use("bash", command=f"printf '{agent.COMPRESSED}'; seq 9999")["content"]
    assert shown.startswith(agent.COMPRESSED) and len(shown) <= 2000
