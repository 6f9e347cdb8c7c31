"""What the user sees and types: flags, commands, colours, keys; and what importing does not do."""

import io
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from fakes import SHIPPED, ApiFault, assistant, big, call, lines_of, reply, session, user

AGENTS = Path(__file__).parents[1] / "agents"
PROGRAM = AGENTS / "s06_context_compact.py"
PLAIN_SDK = f"{Path(__file__).with_name('plain_sdk')}{os.pathsep}{AGENTS}"


@pytest.fixture(autouse=True)
def environment():
    """The program may change os.environ; the next test must not notice."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def shipped_knobs(environment, agent, monkeypatch):
    for name, value in SHIPPED.items():
        monkeypatch.setattr(agent, name, value)


@pytest.fixture
def terminal(agent, monkeypatch, capsys):
    """terminal("typed lines", "--flag") runs the program: (exit status, what it printed)."""

    def run(typed="", *argv):
        typed = typed if isinstance(typed, bytes) else typed.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed)))
        try:
            status = agent.main(list(argv))
        except SystemExit as leaving:
            status = leaving.code
        output = capsys.readouterr()
        return status, output.out + output.err

    return run


@pytest.fixture
def keyed(monkeypatch):
    """There is a key, so the practice model is not wanted."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")


def lines(text):
    return [line for line in text.splitlines() if line.strip()]


# --- the command line ------------------------------------------------------------------------


def test_help_names_every_flag_and_command(terminal):
    status, shown = terminal("", "--help")
    assert status == 0
    words = ("PROMPT", "--offline", "--demo", "--resume", "/compact", "/cost", "/clear", "/help")
    assert [word for word in words if word not in shown] == []


@pytest.mark.parametrize("argv", [["--nonsense"], ["one", "two"], ["--resume=x", "--what"]])
def test_a_nonsense_command_line_ends_with_status_2(terminal, keyed, argv):
    assert terminal("", *argv)[0] == 2


@pytest.mark.parametrize(
    "knob, value",
    [
        *[("KEEP_RECENT", -1), ("KEEP_RECENT", "3"), ("KEEP_RECENT", None), ("KEEP_RECENT", 1.5)],
        *[("THRESHOLD", -5), ("THRESHOLD", "many"), ("CLEAR_AT_LEAST", -1), ("MIN_SAVINGS", -0.1)],
        *[("MAX_TOKENS", 0), ("MAX_RESULT_CHARS", -1), ("SUMMARY_INPUT", -5)],
        *[("PRESERVE_RESULT_TOOLS", "read_file"), ("PRESERVE_RESULT_TOOLS", 3)],
        *[("BASH_SECONDS", "2 minutes"), ("MIN_SAVINGS", "40 %"), ("TOOL_BYTES", -1)],
        *[("MIN_SAVINGS", float("nan")), ("THRESHOLD", 1e5)],
    ],
)
def test_a_nonsense_knob_stops_the_program_and_is_named_with_its_value(
    agent, monkeypatch, terminal, keyed, knob, value
):
    monkeypatch.setattr(agent, knob, value)
    status, shown = terminal("")
    assert status not in (0, None)
    assert knob in shown and str(value) in shown


def test_every_knob_is_looked_at(agent, monkeypatch, terminal, keyed):
    monkeypatch.setattr(agent, "TRAIL_CHARS", -1)
    assert "TRAIL_CHARS = -1" in terminal("")[1]


def test_that_takes_one_line(agent, monkeypatch, terminal, keyed):
    monkeypatch.setattr(agent, "KEEP_RECENT", -1)
    assert len(lines(terminal("")[1])) == 1


@pytest.mark.parametrize(
    "knob, value",
    [
        *[("KEEP_RECENT", 0), ("KEEP_RECENT", 10), ("THRESHOLD", 1), ("THRESHOLD", 10**9)],
        *[("PRESERVE_RESULT_TOOLS", set()), ("PRESERVE_RESULT_TOOLS", {"bash", "read_file"})],
        *[("MIN_SAVINGS", 0), ("MIN_SAVINGS", 1), ("CLEAR_AT_LEAST", 5_000)],
    ],
)
def test_a_knob_that_a_student_may_turn_is_fine(agent, monkeypatch, terminal, keyed, knob, value):
    monkeypatch.setattr(agent, knob, value)
    assert terminal("q\n")[0] == 0


def test_a_prompt_runs_once_and_exits_with_0(scripted, terminal, keyed):
    client = scripted(reply("All done."))
    status, shown = terminal("not read", "do it")
    assert status == 0 and "All done." in shown
    assert client.requests[0]["messages"][0]["content"][0]["text"] == "do it"


def test_a_prompt_that_fails_exits_with_1(scripted, terminal, keyed):
    scripted(ApiFault(529))
    assert terminal("", "do it")[0] == 1


def test_a_prompt_without_a_key_exits_with_1_and_one_line(scripted, terminal):
    client = scripted()
    status, shown = terminal("", "do it")
    assert (status, len(lines(shown)), client.requests) == (1, 1, [])


@pytest.mark.parametrize("prompt", ["", "  "])
def test_a_blank_prompt_asks_the_model_nothing(scripted, terminal, keyed, prompt):
    client = scripted()
    terminal("", prompt)
    assert client.requests == []


@pytest.mark.parametrize("argv", [["--resume"], ["--resume=missing.jsonl"], ["--resume=.", "go"]])
def test_what_cannot_be_resumed_is_told_in_one_line(terminal, keyed, argv):
    status, shown = terminal("q\n", *argv)
    assert (status, len(lines(shown))) == (1, 1)


def test_a_broken_transcript_is_told_in_one_line(terminal, keyed, tmp_path):
    (tmp_path / "broken.jsonl").write_text("not json\n{}\n")
    status, shown = terminal("q\n", "--resume=broken.jsonl")
    assert (status, len(lines(shown))) == (1, 1) and "broken.jsonl" in shown


@pytest.mark.parametrize("flag", [["--resume={}"], ["--resume", "{}"], ["--resume"]])
def test_resume_goes_on_from_a_transcript(agent, scripted, terminal, keyed, flag):
    path = agent.archive([user("the secret word is ZEBRA"), assistant("ok")])
    agent.STATE.__init__(agent.STATE.usage)
    client = scripted(reply("ZEBRA"))
    assert terminal("", *[word.format(path) for word in flag], "which word?")[0] == 0
    said = str(client.requests[0]["messages"])
    assert "ZEBRA" in said and "which word?" in said and str(path) not in said


# --- the prompt ------------------------------------------------------------------------------


@pytest.mark.parametrize("typed", ["q\n", "exit\n", "", "\n  \n\nq\n", " q \n"])
def test_the_user_can_leave_without_asking_anything(scripted, terminal, keyed, typed):
    client = scripted()
    assert terminal(typed)[0] == 0
    assert client.requests == []


def test_the_end_of_input_leaves_with_a_newline(terminal, keyed):
    status, shown = terminal("")
    assert status == 0 and shown.endswith("\n")


def test_the_prompt_tells_the_lesson(terminal, keyed):
    assert "s06 >> " in terminal("q\n")[1]


def test_what_is_typed_goes_to_the_model(scripted, terminal, keyed):
    client = scripted(reply("Hello."), reply("Bye."))
    shown = terminal("hi\nbye\nq\n")[1]
    assert "Hello." in shown and "Bye." in shown
    assert [len(request["messages"]) for request in client.requests] == [1, 3]


def test_after_an_error_the_prompt_is_back(scripted, terminal, keyed):
    client = scripted(ApiFault(529), reply("ok"))
    assert terminal("ALPHA\nBETA\nq\n")[0] == 0
    assert str(client.requests[1]["messages"]).count("ALPHA") == 1


def test_odd_bytes_that_are_typed_do_no_harm(scripted, terminal, keyed):
    client = scripted(reply("ok"), reply("ok"))
    assert terminal(b"a\xffb\nclean\nq\n")[0] == 0
    assert len(client.requests) == 2


@pytest.mark.parametrize("typed", ["/help", "/nonsense", "/", "/Compact", "/compactor"])
def test_help_and_unknown_commands_show_the_commands(scripted, terminal, keyed, typed):
    client = scripted()
    shown = terminal(f"{typed}\nq\n")[1]
    assert all(word in shown for word in ("/compact", "/cost", "/clear", "/help"))
    assert client.requests == []


def test_the_compact_command_compacts_and_starts_no_work(scripted, terminal, keyed):
    client = scripted(reply(big(5_000)), reply("SUM"))
    shown = terminal("hi\n/compact\nq\n")[1]
    assert (len(client.steps), len(client.summaries)) == (1, 1)
    assert re.search(r"\[transcript saved: .+\.jsonl\]", shown)


def test_its_words_are_the_focus(scripted, terminal, keyed):
    client = scripted(reply(big(5_000)), reply("SUM"))
    terminal("hi\n/compact the AUTH-77 bug\nq\n")
    assert "the AUTH-77 bug" in client.summaries[0]


def test_the_conversation_goes_on_from_the_summary(scripted, terminal, keyed):
    client = scripted(reply(big(5_000)), reply("SUM"), reply("ok"))
    terminal("hi\n/compact\nnext\nq\n")
    [message] = client.steps[1]["messages"]
    assert "SUM" in str(message) and "next" in str(message)


def test_nothing_to_compact_is_said(scripted, terminal, keyed):
    client = scripted()
    assert len(lines(terminal("/compact\nq\n")[1].replace("s06 >> ", ""))) == 1
    assert client.requests == []


def test_clear_begins_a_new_conversation_and_keeps_the_transcript(agent, scripted, terminal, keyed):
    client = scripted(reply("one"), reply("two"))
    terminal("ALPHA\n/clear\nBETA\nq\n")
    assert "ALPHA" not in str(client.requests[1]["messages"])
    files = [lines_of(path)[0]["content"] for path in agent.TRANSCRIPT_DIR.glob("*.jsonl")]
    assert sorted(files) == ["ALPHA", "BETA"]


def test_cost_shows_tokens_by_kind(scripted, terminal, keyed):
    first, second = reply("one"), reply("two")
    for answer in (first, second):
        answer.usage = types.SimpleNamespace(
            input_tokens=1_000,
            output_tokens=20,
            cache_read_input_tokens=None,
            cache_creation_input_tokens=4,
        )
    scripted(first, second)
    shown = terminal("hi\nhi\n/cost\nq\n")[1]
    assert "2,000" in shown and "40" in shown and "input" in shown and "output" in shown


@pytest.mark.parametrize("usage", [None, types.SimpleNamespace(), "odd"])
def test_a_reply_without_usage_is_fine(scripted, terminal, keyed, usage):
    answer = reply("one")
    answer.usage = usage
    scripted(answer)
    assert terminal("hi\n/cost\nq\n")[0] == 0


def test_after_every_call_a_line_shows_how_full_the_context_is(scripted, terminal, keyed):
    scripted(reply(call("t1", "bash", command="seq 999")), reply("done"))
    gauges = re.findall(r"\[ctx ([\d,]+)/50,000 [#.]{12} L1 -[\d,]+\]", terminal("hi\nq\n")[1])
    assert len(gauges) == 2


def test_the_gauge_shows_what_layer_1_took_out(agent, monkeypatch, scripted, capsys):
    monkeypatch.setattr(agent, "KEEP_RECENT", 0)
    scripted(reply("done"))
    agent.agent_loop(session(5))
    [cleared] = re.findall(r"L1 -([\d,]+)\]", capsys.readouterr().out)
    assert 4 * 100 < int(cleared) < 4 * 140  # four results of 500 characters


# --- colours and control characters ----------------------------------------------------------

EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\x08\x7f\u202edlrow"


@pytest.mark.parametrize(
    "answers",
    [
        [reply(EVIL)],
        [reply(call("t1", "bash", command=f"printf '{EVIL}'")), reply("done")],
        [reply(call("t1", EVIL, path="x")), reply("done")],
        [ApiFault(400, EVIL)],
        [reply("x", stop=EVIL)],
    ],
    ids=["text", "command", "tool name", "error", "stop reason"],
)
def test_control_characters_never_reach_the_terminal(scripted, terminal, keyed, answers):
    scripted(*answers)
    shown = terminal("hi\nq\n")[1]
    assert re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown) == []


def test_line_breaks_and_tabs_of_the_model_are_shown_as_they_are(scripted, terminal, keyed):
    scripted(reply("one\n\ttwo \u6c49"))
    assert "one\n\ttwo \u6c49" in terminal("hi\nq\n")[1]


class Screen(io.TextIOWrapper):
    """A terminal for the program to write to."""

    def isatty(self):
        return True


@pytest.mark.parametrize("no_color, coloured", [(None, True), ("1", False)])
def test_only_a_terminal_gets_colours_unless_no_color_is_set(
    agent, monkeypatch, scripted, no_color, coloured
):
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    else:
        monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Screen(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", screen)
    scripted(reply("done"))
    agent.agent_loop([user("hi")])
    screen.flush()
    assert (b"\x1b" in screen.buffer.getvalue()) == coloured


# --- keys, endpoint, model -------------------------------------------------------------------


def env_after(agent, monkeypatch, env_file, environment):
    """What stands in the environment after read_env."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    Path(".env").write_text("\n".join(f"{name}={value}" for name, value in env_file.items()))
    agent.read_env()
    return {name: value for name, value in os.environ.items() if name.startswith("ANTHROPIC")}


KEY, TOKEN, URL = "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"


@pytest.mark.parametrize(
    "env_file, environment, expected",
    [
        ({KEY: "file"}, {}, {KEY: "file"}),
        ({KEY: "file"}, {KEY: "shell"}, {KEY: "file"}),
        ({KEY: ""}, {KEY: "shell"}, {KEY: "shell"}),
        ({}, {KEY: "shell"}, {KEY: "shell"}),
        ({TOKEN: "file"}, {KEY: "shell"}, {TOKEN: "file"}),
        ({TOKEN: "file", KEY: ""}, {KEY: "shell"}, {TOKEN: "file"}),
        ({TOKEN: "file", KEY: "file"}, {KEY: "shell"}, {TOKEN: "file", KEY: "file"}),
        ({TOKEN: ""}, {KEY: "shell"}, {KEY: "shell"}),
        ({URL: "http://file"}, {URL: "http://shell"}, {URL: "http://file"}),
    ],
)
def test_a_line_with_a_value_wins_over_the_environment(
    agent, monkeypatch, env_file, environment, expected
):
    assert env_after(agent, monkeypatch, env_file, environment) == expected


@pytest.mark.parametrize(
    "env_file, environment, model",
    [
        ({"MODEL_ID": "file"}, {"MODEL_ID": "shell"}, "file"),
        ({"MODEL_ID": ""}, {"MODEL_ID": "shell"}, "shell"),
        ({}, {"MODEL_ID": "shell"}, "shell"),
        ({}, {}, "claude-haiku-5-5"),
    ],
)
def test_the_model_comes_from_there_too(agent, monkeypatch, env_file, environment, model):
    env_after(agent, monkeypatch, env_file, environment)
    assert model == agent.MODEL


def test_the_env_file_is_looked_for_upward(agent, monkeypatch, tmp_path):
    (tmp_path / ".env").write_text("MODEL_ID=above")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    agent.read_env()
    assert agent.MODEL == "above"


@pytest.mark.parametrize("content", ["ANTHROPIC_API_KEY=k".encode("utf-16"), b"X=\xff\n"])
def test_an_env_file_that_is_no_utf_8_is_told_in_one_line(agent, terminal, content):
    Path(".env").write_bytes(content)
    status, shown = terminal("q\n", "--offline")
    assert status == 0 and len(re.findall(r"(?m)^\[\.env is not read: .*\]$", shown)) == 1


@pytest.mark.parametrize(
    "environment, key",
    [({URL: "http://127.0.0.1:9"}, "none"), ({KEY: "sk"}, None), ({TOKEN: "t"}, None)],
)
def test_an_endpoint_without_a_key_is_sent_none(agent, monkeypatch, environment, key):
    made = []
    sdk = types.ModuleType("anthropic")
    sdk.Anthropic = lambda **given: made.append(given)
    monkeypatch.setitem(sys.modules, "anthropic", sdk)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    agent.agent_loop([user("hi")])
    assert made[0].get("api_key") == key


# --- importing, and the program as a program -------------------------------------------------


def python(*argv, path=AGENTS, typed="", **environment):
    """Run Python in the current folder with nothing but `environment` set."""
    clean = {"PATH": os.environ["PATH"], "PYTHONPATH": str(path), **environment}
    return subprocess.run(
        [sys.executable, *argv], env=clean, input=typed, capture_output=True, text=True, timeout=60
    )


def test_importing_does_nothing_visible(agent, tmp_path):
    code = "import s06_context_compact, sys; print('anthropic' in sys.modules)"
    child = python("-B", "-c", code)
    assert (child.stdout, child.stderr) == ("False\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def stubs(tmp_path_factory):
    """A path on which anthropic and dotenv offer only what other people's tests give them."""
    folder = tmp_path_factory.mktemp("stubs")
    (folder / "anthropic.py").write_text("class Anthropic: pass")
    (folder / "dotenv.py").write_text("def load_dotenv(override=True): pass")
    return f"{folder}{os.pathsep}{AGENTS}"


LOAD_BY_PATH = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("lesson", {str(PROGRAM)!r})
lesson = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lesson)
print(len(lesson.TOOLS))
"""


def test_it_imports_where_the_sdk_and_dotenv_are_stubs(agent, stubs):
    by_name = "import s06_context_compact as lesson; print(len(lesson.TOOLS))"
    child = python("-B", "-c", by_name + LOAD_BY_PATH, path=stubs)
    assert (child.stdout, child.stderr) == ("5\n5\n", "")


def test_help_does_not_import_the_sdk(agent, tmp_path):
    (tmp_path / "anthropic.py").write_text("raise SystemExit('the SDK was imported')")
    child = python("-B", str(PROGRAM), "--help", path=tmp_path)
    assert (child.returncode, child.stderr) == (0, "")


@pytest.mark.parametrize("argv, status", [(["do it"], 1), (["--nonsense"], 2)])
def test_the_exit_status_reaches_the_shell(agent, argv, status):
    child = python("-B", str(PROGRAM), *argv, ANTHROPIC_BASE_URL="")
    assert child.returncode == status
    assert "Traceback" not in child.stderr


def test_offline_it_works_without_a_key(agent):
    child = python("-B", str(PROGRAM), "--offline", path=PLAIN_SDK, typed="hello\n/cost\nq\n")
    assert (child.returncode, child.stderr) == (0, "")
    assert "[ctx " in child.stdout and "practice model" in child.stdout


def test_where_the_packages_are_missing_it_says_how_to_install_them(agent):
    code = "import sys; sys.modules.update(anthropic=None, dotenv=None)\n"
    code += "import s06_context_compact as s06; sys.exit(s06.main(['--offline', 'hi']))"
    child = python("-B", "-c", code)
    assert (child.returncode, child.stderr) == (1, "")
    assert "install the packages: python -m pip install ." in child.stdout


def test_an_env_line_that_no_environment_can_hold_is_left_out(agent, terminal):
    Path(".env").write_bytes(b"A=\0\n'B=C'=d\nMODEL_ID=claude-x\n")
    assert terminal("q\n", "--offline")[0] == 0


def test_a_long_prompt_may_stand_behind_resume(agent, scripted, terminal, keyed):
    agent.archive([user("the secret word is ZEBRA"), assistant("ok")])
    agent.STATE.__init__(agent.STATE.usage)
    client = scripted(reply("ZEBRA"))
    assert terminal("", "--resume", "please " * 50)[0] == 0
    assert "please please" in str(client.requests[0]["messages"])


def test_a_reader_that_leaves_early_is_no_error_of_ours(agent):
    clean = {"PATH": os.environ["PATH"], "PYTHONPATH": PLAIN_SDK}
    line = f"{sys.executable} -B {PROGRAM} --offline 'Run `seq 9`' | true"
    child = subprocess.run(line, shell=True, env=clean, capture_output=True, timeout=60)
    assert child.stderr == b""


def test_the_source_is_ascii():
    assert PROGRAM.read_bytes().isascii()
