"""The transcript is the truth: every message is on disk, whole, before any layer touches it."""

import contextlib
import json
import os
import secrets
import stat
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from fakes import (
    assistant,
    big,
    call,
    lines_of,
    reply,
    result,
    results,
    session,
    text,
    thinking,
    turn,
    user,
)

DONE = assistant("done")


@pytest.fixture
def restart(agent, monkeypatch):
    """restart() forgets all that the running program knew, as a new process would."""
    return lambda: monkeypatch.setattr(agent, "STATE", type(agent.STATE)(Counter()))


def conversation(agent, messages):
    """A list that holds `messages`, each of which came through add."""
    joined = []
    for message in messages:
        agent.add(joined, message["role"], message["content"])
    return joined


def transcripts(agent):
    """The files in .transcripts, oldest first."""
    return sorted(agent.TRANSCRIPT_DIR.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)


@contextlib.contextmanager
def disk_full(path, room):
    """Let no file grow past the size of `path` and `room` bytes more."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# --- what stands in the file -----------------------------------------------------------------


def test_a_message_is_on_disk_the_moment_it_joins(agent):
    messages = []
    agent.add(messages, "user", "hi")
    assert lines_of(*transcripts(agent)) == [user("hi")]


def test_each_add_writes_one_line(agent):
    messages = conversation(agent, [user("a"), user("b"), *session(2), DONE])
    assert lines_of(*transcripts(agent)) == [user("a"), user("b"), *session(2), DONE]
    assert len(messages) == 6  # a, b and go have become one message


def test_a_result_is_archived_whole_before_it_is_capped(agent, monkeypatch):
    monkeypatch.setattr(agent, "MAX_RESULT_CHARS", 1_000)
    messages = conversation(agent, [user("go"), *turn(1, output=big(9_000))])
    assert len(results(messages)[0]) <= 1_000
    assert results(lines_of(*transcripts(agent))) == [big(9_000)]


def test_the_originals_of_cleared_results_are_in_the_file(agent, monkeypatch):
    monkeypatch.setattr(agent, "KEEP_RECENT", 0)
    messages = conversation(agent, [*session(6), DONE])
    agent.micro_compact(messages)
    agent.add(messages, "user", "next")
    assert results(lines_of(*transcripts(agent))) == [big(500, f"R{n}") for n in range(6)]


def test_chinese_is_not_escaped_so_that_grep_finds_it(agent):
    conversation(agent, [user("\u6c49\u5b57")])
    assert "\u6c49\u5b57".encode() in transcripts(agent)[0].read_bytes()


@pytest.mark.parametrize(
    "words", ["a\u2028b\u2029c\x85d", "a\r\nb\nc", "\x00\x1b[2J", "\U0001f600", '"\\']
)
def test_odd_characters_come_back(agent, words):
    conversation(agent, [user(words), assistant("ok")])
    assert len(lines_of(*transcripts(agent))) == 2
    assert agent.load(*transcripts(agent)) == [user(words), assistant("ok")]


def test_lone_surrogates_are_replaced_on_the_way_in(agent):
    messages = conversation(
        agent, [user("a\udcff"), assistant(call("t1", "bash", command="\ud800"))]
    )
    json.dumps(messages, ensure_ascii=False).encode()  # can be sent
    transcripts(agent)[0].read_bytes().decode()  # can be read


def sdk_block():
    from anthropic.types import ToolUseBlock

    return ToolUseBlock(type="tool_use", id="t1", name="bash", input={"command": "ls"})


def look_alike():
    return SimpleNamespace(type="tool_use", id="t1", name="bash", input={"command": "ls"})


@pytest.mark.parametrize("block", [sdk_block, look_alike])
def test_objects_become_plain_json(agent, block):
    foreign = [user("go"), assistant(block()), user(result("t1", "ok"))]
    expected = [user("go"), assistant(call("t1", "bash", command="ls")), user(result("t1", "ok"))]
    assert lines_of(agent.archive(foreign)) == expected


def test_a_list_that_never_came_through_add_is_written_whole(agent):
    assert lines_of(agent.archive(session(3))) == session(3)


def test_one_message_that_stands_twice_in_a_list_is_written_twice(agent):
    fake = [user("more"), assistant("x")] * 3
    assert lines_of(agent.archive(fake)) == fake


def test_archiving_twice_writes_nothing_twice(agent):
    messages = session(3)
    assert agent.archive(messages) == agent.archive(messages)
    assert lines_of(*transcripts(agent)) == session(3)


def test_a_message_that_a_student_appends_is_written_with_the_next(agent):
    messages = conversation(agent, [user("hi")])
    messages.append(assistant("hello"))
    agent.add(messages, "user", "next")
    assert lines_of(*transcripts(agent)) == [user("hi"), assistant("hello"), user("next")]


def test_a_message_that_a_student_replaces_is_written_too(agent):
    messages = [user("hi"), assistant("old")]
    agent.archive(messages)
    messages[-1] = assistant("new")
    assert assistant("new") in lines_of(agent.archive(messages))


# --- which file ------------------------------------------------------------------------------


def test_the_name_tells_the_time(agent):
    path = agent.archive([user("hi")])
    assert path.parent == agent.TRANSCRIPT_DIR
    assert path.name.startswith(time.strftime("transcript_%Y", time.gmtime()))


def test_no_folder_appears_before_the_first_message(agent):
    assert not agent.TRANSCRIPT_DIR.exists()


def test_a_compaction_begins_a_new_file(agent, scripted):
    scripted(reply("SUM"))
    messages = conversation(agent, session(3))
    agent.compact_history(messages)
    agent.add(messages, "assistant", "done")
    old, new = transcripts(agent)
    assert agent.load(old) == session(3)
    assert agent.load(new) == messages  # the open exchange stands in both files


def test_under_a_frozen_clock_every_compaction_has_its_own_file(agent, scripted, monkeypatch):
    monkeypatch.setattr(agent.time, "gmtime", lambda *_: time.struct_time((2026,) + (1,) * 8))
    scripted(*[reply("SUM")] * 3)
    for n in range(3):
        agent.auto_compact([user(f"go {n}"), DONE])
    assert sorted(lines_of(path)[0]["content"] for path in transcripts(agent)) == [
        "go 0",
        "go 1",
        "go 2",
    ]


def test_a_name_that_is_taken_is_never_written_to(agent, restart, monkeypatch):
    monkeypatch.setattr(agent.time, "gmtime", lambda *_: time.struct_time((2026,) + (1,) * 8))
    monkeypatch.setattr(secrets, "token_hex", lambda *_: "00")
    first = agent.archive([user("one")])
    restart()
    agent.archive([user("two")])
    assert lines_of(first) == [user("one")]


def test_two_programs_in_one_folder_do_not_mix(agent, restart):
    conversation(agent, [user("one")])
    restart()
    conversation(agent, [user("two")])
    assert [lines_of(path) for path in transcripts(agent)] == [[user("one")], [user("two")]]


@pytest.fixture
def umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_nobody_else_can_read_it(agent, umask):
    path = agent.archive([user("hi")])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_git_keeps_the_folder_and_ignores_what_is_in_it(agent):
    agent.archive([user("hi")])
    lines = (agent.TRANSCRIPT_DIR / ".gitignore").read_text().split()
    assert lines == ["*", "!.gitignore"]


# --- reading it back -------------------------------------------------------------------------


@pytest.fixture
def written(agent, tmp_path):
    """written(line, ...) is the path of a transcript with these lines; str as it is."""

    def write(*lines):
        path = tmp_path / "written.jsonl"
        lines = [line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines]
        path.write_text("".join(lines), encoding="utf-8")
        return path

    return write


def test_load_joins_neighbours_of_one_role(agent, written):
    path = written(user("a"), user(text("b")), assistant("c"))
    assert agent.load(path) == [user(text("a"), text("b")), assistant("c")]


def test_load_puts_results_first(agent, written):
    path = written(user("go"), turn(1)[0], user("wait"), turn(1)[1])
    assert agent.load(path)[-1] == user(*turn(1)[1]["content"], text("wait"))


@pytest.mark.parametrize("torn", ["{", '{"role": "user", "conte', "\ufffd", "nonsense"])
def test_load_drops_a_torn_last_line(agent, written, torn):
    assert agent.load(written(user("a"), torn)) == [user("a")]


def test_load_reads_a_file_cut_anywhere_as_far_as_it_goes(agent):
    whole = [user("\u6c49\u5b57"), assistant("ok")]
    path = agent.archive(whole)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        messages = agent.load(path)
        assert messages == whole[: len(messages)]


def test_load_takes_a_whole_last_line_without_a_newline(agent, written):
    assert agent.load(written(user("a"), json.dumps(assistant("b")))) == [user("a"), assistant("b")]


@pytest.mark.parametrize(
    "broken", ["{\n", "[]\n", "7\n", '{"role": "tool", "content": "x"}\n', "\n"]
)
def test_load_refuses_a_broken_line_in_the_middle(agent, written, broken):
    with pytest.raises(ValueError):
        agent.load(written(user("a"), broken, assistant("b")))


@pytest.mark.parametrize("content", [7, [7], [{}], {"type": "text"}])
def test_load_refuses_a_message_that_is_none(agent, written, content):
    with pytest.raises(ValueError):
        agent.load(written(user("a"), {"role": "assistant", "content": content}, user("b")))


def test_load_says_when_there_is_no_such_file(agent, tmp_path):
    with pytest.raises(OSError):
        agent.load(tmp_path / "missing.jsonl")


# --- resuming --------------------------------------------------------------------------------


@pytest.fixture
def resumed(agent, restart):
    """resumed(messages) is what a new process makes of the transcript of `messages`."""

    def run(messages):
        path = agent.archive(messages)
        restart()
        return agent.resume(str(path))

    return run


def test_a_finished_conversation_comes_back_as_it_was(resumed):
    assert resumed([*session(3), DONE]) == [*session(3), DONE]


def test_it_goes_on_in_a_new_file(agent, resumed):
    messages = resumed([*session(1), DONE])
    agent.add(messages, "user", "next")
    old, new = transcripts(agent)
    assert lines_of(old) == [*session(1), DONE]
    assert lines_of(new) == [*session(1), DONE, user("next")]


def test_it_says_which_transcript_is_resumed(agent, restart, capsys):
    path = agent.archive(session(2))
    restart()
    agent.resume(str(path))
    assert f"[resumed {path}: 5 messages" in capsys.readouterr().out


def test_resume_takes_the_newest_transcript(agent, restart):
    for n, words in enumerate(["newest", "oldest", "middle"]):
        restart()
        path = agent.archive([user(words)])
        os.utime(path, ns=(0, [3, 1, 2][n] * 10**9))
    restart()
    assert agent.resume("") == [user("newest")]


@pytest.mark.parametrize("path", ["", "missing.jsonl"])
def test_resume_says_when_there_is_nothing_to_resume(agent, path):
    with pytest.raises((OSError, ValueError)):
        agent.resume(path)


def test_resume_drops_a_torn_last_line(agent, restart):
    path = agent.archive([user("a"), assistant("b")])
    path.write_bytes(path.read_bytes()[:-5])
    restart()
    assert agent.resume(str(path)) == [user("a")]


def test_an_open_call_is_answered_with_interrupted(resumed):
    *_, last = resumed(session(2)[:-1])
    assert last["content"][0]["tool_use_id"] == "t1"
    assert "interrupted" in last["content"][0]["content"]


def test_a_call_with_half_of_its_results_is_completed(resumed):
    calls = assistant(call("a", "bash"), call("b", "bash"))
    *_, last = resumed([user("go"), calls, user(result("a", "ok"))])
    assert [block["tool_use_id"] for block in last["content"]] == ["a", "b"]


@pytest.mark.parametrize("model, kept", [("claude-haiku-5-5", 0), ("deepseek-chat", 1)])
def test_thinking_is_dropped_on_claude_and_kept_elsewhere(agent, monkeypatch, resumed, model, kept):
    monkeypatch.setattr(agent, "MODEL", model)
    messages = resumed([user("go"), assistant(thinking(), text("done")), user("next")])
    assert len(messages[1]["content"]) == 1 + kept


def test_a_message_of_thinking_alone_is_not_left_empty(resumed):
    messages = resumed([user("go"), assistant(thinking()), user("next")])
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert all(message["content"] for message in messages)


def test_results_are_capped_again(agent, monkeypatch, resumed):
    monkeypatch.setattr(agent, "MAX_RESULT_CHARS", 1_000)
    messages = resumed([user("go"), *turn(1, output=big(9_000)), DONE])
    assert len(results(messages)[0]) <= 1_000


def test_resuming_undoes_a_compaction(agent, scripted, restart):
    scripted(reply("SUM"))
    messages = conversation(agent, [*session(3), DONE])
    path = agent.STATE.path
    agent.compact_history(messages)
    restart()
    assert agent.resume(str(path)) == [*session(3), DONE]


@pytest.mark.parametrize("growth, summaries", [(0.1, 0), (0.9, 0), (1.1, 1)])
def test_then_automatic_compaction_rests_until_there_is_enough_to_free(
    agent, monkeypatch, scripted, resumed, growth, summaries
):
    monkeypatch.setattr(agent, "THRESHOLD", 5_000)
    messages = resumed([user("go"), assistant("x" * 30_000)])
    new_work = int(growth * 4 * agent.MIN_SAVINGS * agent.THRESHOLD)
    messages += [user("more"), assistant("y" * new_work), user("and now?")]
    client = scripted(*[reply("SUM")] * summaries, reply("done"))
    agent.agent_loop(messages)
    assert len(client.summaries) == summaries


# --- when the disk refuses -------------------------------------------------------------------


@pytest.fixture
def no_folder(agent):
    """A file has taken the name .transcripts."""
    agent.TRANSCRIPT_DIR.write_text("mine")


def test_the_session_lives_without_an_archive(agent, no_folder, scripted):
    scripted(reply(call("t1", "bash", command="echo hi")), reply("done"))
    messages = conversation(agent, [user("go")])
    agent.agent_loop(messages)
    assert results(messages) == ["hi\n"]
    assert messages[-1] == assistant(text("done"))


def test_one_line_says_so_once(agent, no_folder, capsys):
    conversation(agent, session(3))
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_without_an_archive_there_is_no_path(agent, no_folder):
    assert agent.archive([user("hi")]) is None


def test_no_archive_no_layer_1(agent, monkeypatch, no_folder, scripted):
    monkeypatch.setattr(agent, "KEEP_RECENT", 0)
    scripted(reply("done"))
    messages = conversation(agent, session(5))
    agent.agent_loop(messages)
    assert results(messages) == [big(500, f"R{n}") for n in range(5)]


def test_no_archive_no_layer_2(agent, no_folder, scripted):
    client, messages = scripted(), session(3)
    assert agent.auto_compact(messages) is messages
    assert client.requests == []


def test_a_capped_result_names_no_file_that_does_not_exist(agent, no_folder):
    messages = conversation(agent, [user("go"), *turn(1, output=big(200_000))])
    assert ".jsonl" not in results(messages)[0]


@pytest.mark.parametrize("room", [0, 1, 50, 5_000])
def test_a_disk_that_fills_up_half_way_leaves_no_torn_line(agent, room):
    messages = conversation(agent, [user(big(9_000)), assistant("ok")])
    [path] = transcripts(agent)
    with disk_full(path, room):
        agent.add(messages, "user", big(9_000, "SECOND"))
    assert lines_of(path) == [user(big(9_000)), assistant("ok")]


def test_what_the_disk_refused_is_written_as_soon_as_there_is_room(agent):
    messages = conversation(agent, [user(big(9_000)), assistant("ok")])
    [path] = transcripts(agent)
    with disk_full(path, 50):
        agent.add(messages, "user", big(9_000, "SECOND"))
        agent.add(messages, "assistant", "third")
    agent.add(messages, "user", "fourth")
    assert lines_of(path) == messages


def test_a_result_that_the_disk_refused_is_written_whole_later(agent, monkeypatch):
    monkeypatch.setattr(agent, "MAX_RESULT_CHARS", 1_000)
    messages = conversation(agent, [user("x" * 900), *turn(1, output="y" * 9_000)])
    agent.add(messages, "assistant", [call("t2", "bash")])
    [path] = transcripts(agent)
    with disk_full(path, 50):
        agent.add(messages, "user", [result("t2", big(9_000))])
    agent.add(messages, "assistant", "done")
    assert results(lines_of(path))[-1] == big(9_000)


def test_layers_rest_while_the_disk_is_full(agent, monkeypatch, scripted):
    monkeypatch.setattr(agent, "KEEP_RECENT", 0)
    scripted(reply("done"))
    messages = conversation(agent, [user(big(9_000)), *session(3)[1:]])
    with disk_full(*transcripts(agent), 50):
        agent.agent_loop([*messages, assistant("so"), user("z" * 500)])
    assert results(messages) == [big(500, f"R{n}") for n in range(3)]


# --- one list, one transcript ----------------------------------------------------------------


@pytest.mark.parametrize("lost", ["file", "folder"])
def test_what_was_deleted_meanwhile_is_written_anew(agent, scripted, lost):
    messages = conversation(agent, session(3))
    path = agent.archive(messages)
    path.unlink()
    if lost == "folder":
        (agent.TRANSCRIPT_DIR / ".gitignore").unlink()
        agent.TRANSCRIPT_DIR.rmdir()
    agent.add(messages, "user", "third")
    assert agent.load(agent.archive(messages)) == messages


def test_another_folder_gets_the_whole_list(agent, monkeypatch, tmp_path):
    messages = conversation(agent, session(2))
    monkeypatch.setattr(agent, "TRANSCRIPT_DIR", tmp_path / "elsewhere")
    path = agent.archive(messages)
    assert path.parent == tmp_path / "elsewhere" and agent.load(path) == messages


def test_lists_that_share_their_first_message_do_not_mix(agent, scripted):
    rules = user("shared rules")
    client = scripted(reply("ONE"), reply("TWO"))
    agent.auto_compact([rules, assistant("SECRET-1"), user("x")])
    agent.auto_compact([rules, assistant("two"), user("y")])
    assert "SECRET-1" in client.summaries[0] and "SECRET-1" not in client.summaries[1]
    assert len(list(agent.TRANSCRIPT_DIR.glob("*.jsonl"))) == 2


def test_what_was_taken_back_is_not_summarised(agent, scripted):
    messages = conversation(agent, [user("go"), assistant("ok"), user("TAKEN-BACK")])
    del messages[2]
    client = scripted(reply("SUM"))
    agent.auto_compact(messages)
    assert "TAKEN-BACK" not in client.summaries[0]


def everything(agent):
    """All that the transcripts hold."""
    files = sorted(agent.TRANSCRIPT_DIR.glob("*.jsonl"))
    return "".join(file.read_text(encoding="utf-8") for file in files)


def test_what_is_appended_by_hand_is_on_disk_though_it_joins_another_message(agent, scripted):
    messages = conversation(agent, [user("first")])
    messages.append(user("SECOND-77"))
    scripted(reply("done"), reply("done"))
    agent.agent_loop(messages)
    agent.agent_loop([user("go"), assistant(call("t1", "bash", command="ls")), user("TEXT-88")])
    assert "SECOND-77" in everything(agent) and "TEXT-88" in everything(agent)


def test_an_interrupt_just_behind_the_write_does_not_archive_twice(agent, monkeypatch):
    messages, real = session(2), agent.append

    def interrupted(data):
        monkeypatch.setattr(agent, "append", real)
        real(data)
        raise KeyboardInterrupt

    monkeypatch.setattr(agent, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        agent.archive(messages)
    assert lines_of(agent.archive(messages)) == messages


def test_what_an_interrupt_left_of_a_write_does_not_stay(agent):
    messages = conversation(agent, session(2))
    with agent.archive(messages).open("ab") as file:
        file.write(b'{"role": "us')
    agent.add(messages, "assistant", "next")
    assert agent.load(agent.archive(messages)) == messages


def test_what_is_archived_joins_though_an_interrupt_comes_between(agent, monkeypatch):
    messages = conversation(agent, session(2))
    monkeypatch.setattr(agent, "cap", lambda *_: {}[0])
    with pytest.raises(KeyError):
        agent.add(messages, "assistant", "next")
    assert messages[-1] == assistant("next")
    assert len(list(agent.TRANSCRIPT_DIR.glob("*.jsonl"))) == 1


@pytest.mark.parametrize(
    "line", ['{"role": "user", "content": [{"type": "text", "text": 5}]}', "[" * 99999]
)
def test_what_is_no_message_is_told_with_its_line(agent, tmp_path, line):
    (tmp_path / "x.jsonl").write_text(f"{line}\n")
    with pytest.raises(ValueError, match="line 1: not a transcript"):
        agent.load(tmp_path / "x.jsonl")


def test_without_any_transcript_resume_says_so(agent):
    with pytest.raises(ValueError, match="no transcript yet"):
        agent.resume("")
