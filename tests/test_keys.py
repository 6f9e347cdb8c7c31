"""A person's keys at a real terminal: what is typed, pasted and interrupted, as it happens."""

import json
import os
import re
import select
import signal
import sys
import threading
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("needs a POSIX system", allow_module_level=True)

from fakes import SHIPPED, call, lines_of, problems, reply, text
from practice_api import PracticeAPI, as_blocks
from terminal import BACKSPACE, CTRL_C, PASTE, Terminal, run

PROMPT = "s06 >> "


@pytest.fixture
def api():
    """An API whose model always says "done"."""
    with PracticeAPI(model=lambda body: ([text("done")], "end_turn"), retry=False) as practice:
        practice.server.handle_error = lambda *_: None  # after Ctrl-C nobody takes the answer
        yield practice


def plan(api, *calls):
    """The next reply makes these calls."""
    api.replies.append((list(calls), "tool_use"))


def hang(api, kind="step"):
    """The next "step" or "summary" is never answered; an Event that tells when it is asked for."""
    arrived = threading.Event()

    def fault(body):
        if ("tools" in body) == (kind == "step") and not arrived.is_set():
            arrived.set()
            return "timeout"

    api.faults.append(fault)
    return arrived


def heard(api):
    """The texts of the newest user message of each request."""
    last = [as_blocks(record["body"]["messages"][-1]["content"]) for record in api.requests]
    return [[b["text"] for b in blocks if b["type"] == "text"] for blocks in last]


def answers(api):
    """What the newest request holds as results of tools."""
    blocks = as_blocks(api.requests[-1]["body"]["messages"][-1]["content"])
    return [block["content"] for block in blocks if block["type"] == "tool_result"]


@pytest.fixture
def sit_down(api, tmp_path):
    """sit_down() starts the program at a terminal and waits for its prompt."""
    started = []

    def start(*argv, **options):
        started.append(Terminal(tmp_path, *argv, **{"api": api} | options))
        started[-1].wait(PROMPT)
        return started[-1]

    yield start
    for person in started:
        person.__exit__()


def say(person, words):
    """Type a line, and wait until the prompt is back; what was shown meanwhile."""
    person.type(words if isinstance(words, bytes) else f"{words}\n")
    return person.wait(PROMPT)


# --- typing ----------------------------------------------------------------------------------


def test_ctrl_d_leaves_with_a_newline_and_status_0(sit_down):
    person = sit_down()
    assert person.leave() == 0
    assert person.shown.endswith(b"\n")


TYPED = [  # keys -> the prompt
    (f"\u6c49\u5b57x{BACKSPACE}{BACKSPACE}\u7801\n", "\u6c49\u7801"),  # edited by characters
    (b"a\xffb\n", "a\ufffdb"),
    (PASTE.format("def f():\n\treturn 1\n\n\nf()\n") + "\n", "def f():\n\treturn 1\n\n\nf()"),
]


def test_what_is_typed_or_pasted_is_one_prompt_and_blank_lines_are_none(sit_down, api):
    person = sit_down()
    for keys in ("\n", *[keys for keys, _ in TYPED], " \t \n"):
        say(person, keys if isinstance(keys, bytes) else keys.encode())
    assert heard(api) == [[prompt] for _, prompt in TYPED]
    assert b"\x1b[?2004h" in person.shown  # asks the terminal to mark what is pasted


def test_in_the_c_locale_a_chinese_line_arrives(sit_down, api):
    """What it needs of readline: set convert-meta off."""
    say(sit_down(LC_ALL="C", PYTHONUTF8="0"), "\u6c49\u5b57")
    assert heard(api) == [["\u6c49\u5b57"]]


def test_a_pasted_command_of_the_shell_is_not_run_as_a_command_of_ours(sit_down, api):
    say(sit_down(), "look at\n" + PASTE.format("one\n/clear\nq\n"))
    assert heard(api)[0] == ["look at"]


LONG = "".join(f"{n:07}\n" for n in range(125_000))  # 1 MB


def test_a_long_paste_is_on_disk_whole_and_capped_in_the_context(sit_down, api, tmp_path):
    """Not the whole megabyte: readline takes a read(2) for every byte."""
    words = LONG[:60_000]
    say(sit_down(), PASTE.format(words))
    [path] = (tmp_path / ".transcripts").glob("*.jsonl")
    assert lines_of(path)[0]["content"] == words.strip()
    assert 49_999 <= len(heard(api)[0][0]) <= 50_000


def test_a_line_of_a_megabyte_in_a_pipe_is_one_prompt(api, tmp_path):
    words = LONG.replace("\n", " ").strip()
    assert run(tmp_path, api=api, typed=words).returncode == 0
    [path] = (tmp_path / ".transcripts").glob("*.jsonl")
    assert lines_of(path)[0]["content"] == words


def test_what_is_typed_ahead_waits_for_its_turn(sit_down, api):
    person = sit_down()
    person.type("one\ntwo\n")
    person.wait("(?s)done.*done")
    assert heard(api) == [["one"], ["two"]]


def test_in_a_narrow_terminal_a_long_line_arrives_whole(sit_down, api):
    words = "word " * 50 + "end"
    say(sit_down(columns=20), words)
    assert heard(api) == [[words]]


# --- commands --------------------------------------------------------------------------------


def test_the_commands_do_what_they_say(sit_down, api):
    person = sit_down()
    assert "/compact [focus]" in say(person, "/help")
    assert "/compact [focus]" in say(person, "/nonsense")
    say(person, "hi")
    assert re.search(r"input \d+, output [1-9]", say(person, "/cost"))
    assert "[new conversation]" in say(person, "/clear")
    say(person, "again")
    assert [len(record["body"]["messages"]) for record in api.requests] == [1, 1]


def test_compact_asks_for_a_summary_with_its_focus(sit_down, api):
    person = sit_down()
    say(person, "hi " * 500)
    assert "[transcript saved: " in say(person, "/compact the AUTH-77 bug")
    assert "Focus: the AUTH-77 bug" in heard(api)[1][0]
    say(person, "next")
    assert len(api.requests[2]["body"]["messages"]) == 1


# --- Ctrl-C ----------------------------------------------------------------------------------


def test_ctrl_c_at_the_prompt_clears_the_line(sit_down, api):
    person = sit_down()
    for keys in (CTRL_C, CTRL_C * 2):
        person.type("half")
        person.wait("half")
        person.type(keys)
        while not person.sees(PROMPT, 0.3) and person.child.poll() is None:
            person.type(CTRL_C)  # Python does not hear it between two keys: a person tries again
        say(person, "whole")
    assert heard(api) == [["whole"]] * 2


@pytest.mark.parametrize("keys, sdk", [(CTRL_C, True), (CTRL_C * 2, False)])
def test_ctrl_c_while_the_model_thinks_brings_the_prompt_back(sit_down, api, keys, sdk):
    person, asked = sit_down(real_sdk=sdk), hang(api)
    person.type("first\n")
    assert asked.wait(30)
    person.type(keys)
    assert "Traceback" not in person.wait(rf"(?s)\[interrupted\].*{PROMPT}")
    say(person, "second")
    assert heard(api)[1] == ["first", "second"]


@pytest.fixture
def pipe(tmp_path):
    """Reads what processes write to ./pipe, and b"" when none of them is left."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    yield lambda: os.read(reader, 99) if select.select([reader], [], [], 30)[0] else b"waiting"
    os.close(reader)


FAMILY = "exec >pipe; (sleep 99 & sleep 99) & bash -c 'sleep 99 & echo all here; wait'"


@pytest.mark.parametrize("keys", [CTRL_C, CTRL_C * 2])
def test_ctrl_c_ends_a_command_its_children_and_grandchildren(sit_down, api, pipe, keys):
    plan(api, call("t1", "bash", command=FAMILY), call("t2", "bash", command="echo not run"))
    person = sit_down()
    person.type("go\n")
    person.wait("> bash exec")
    assert pipe() == b"all here\n"
    person.type(keys)
    person.wait(rf"(?s)\[interrupted\].*{PROMPT}")
    assert pipe() == b""
    say(person, "next")
    assert answers(api) == ["interrupted by the user"] * 2


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_program_that_is_ended_from_outside_ends_its_command_too(sit_down, api, pipe, name):
    plan(api, call("t1", "bash", command=FAMILY))
    person = sit_down()
    person.type("go\n")
    person.wait("> bash exec")
    assert pipe() == b"all here\n"
    person.child.send_signal(getattr(signal, name))
    assert pipe() == b"" and person.child.wait(30) == 1


SLOW_DISK = """
real = s06.os.open
def slow(path, *rest, **more):
    if str(path).endswith("slow.txt"):
        print("READING", flush=True)
        while True:  # an interrupt that comes just before a long sleep would wait for its end
            s06.time.sleep(0.01)
    return real(path, *rest, **more)
s06.os.open = slow
"""


FILE_CALLS = [
    call("t1", "read_file", path="slow.txt"),
    call("t2", "write_file", path="slow.txt", content="x"),
    call("t3", "edit_file", path="slow.txt", old_text="as", new_text="x"),
]


def test_ctrl_c_in_a_file_tool_answers_its_call(sit_down, api, tmp_path):
    (tmp_path / "slow.txt").write_text("as it was")
    person = sit_down(code=SLOW_DISK)
    for one in FILE_CALLS:
        plan(api, one)
        person.type("go\n")
        person.wait("READING")
        person.type(CTRL_C)
        person.wait(rf"(?s)\[interrupted\].*{PROMPT}")
        say(person, "next")
        assert (answers(api), heard(api)[-1]) == (["interrupted by the user"], ["next"])
    assert (tmp_path / "slow.txt").read_text() == "as it was"


def test_ctrl_c_during_a_summary_leaves_the_history_as_it_was(sit_down, api):
    person = sit_down()
    say(person, "first")
    asked = hang(api, "summary")
    person.type("/compact\n")
    assert asked.wait(30)
    say(person, CTRL_C.encode())
    say(person, "second")
    before, after = (api.requests[n]["body"]["messages"] for n in (0, -1))
    assert (len(before), len(after)) == (1, 3)
    assert heard(api)[-1] == ["second"]


def test_ctrl_c_during_an_automatic_summary_brings_the_prompt_back(sit_down, api):
    person = sit_down(code="vars(s06).update(THRESHOLD=20, MIN_SAVINGS=0)")
    asked = hang(api, "summary")
    person.type("first " * 50 + "\n")
    assert asked.wait(30)
    person.type(CTRL_C)
    person.wait(rf"(?s)\[interrupted\].*{PROMPT}")
    assert person.leave() == 0


def test_ctrl_c_ends_a_run_with_a_prompt_with_status_1(api, tmp_path):
    with Terminal(tmp_path, "do it", api=api) as person:
        assert hang(api).wait(30)
        assert person.leave(CTRL_C) == 1
    assert b"[interrupted]" in person.shown and b"Traceback" not in person.shown


# --- colours ---------------------------------------------------------------------------------

EVIL = "\x1b[31mred\x1b]0;title\x07"


def test_a_terminal_gets_colours_and_a_status(sit_down):
    shown = say(sit_down(), "hi")
    assert "working..." in shown and "\x1b[2m[ctx" in shown


def test_no_color_leaves_only_what_readline_does_itself(sit_down, api):
    api.replies.append(([text(EVIL)], "end_turn"))
    shown = say(sit_down(NO_COLOR="1"), "hi").replace("\x1b[?2004l", "").replace("\x1b[?2004h", "")
    assert "ctx" in shown and "\x1b" not in shown


def test_in_a_pipe_there_is_no_escape_code_in_a_whole_session(api, tmp_path):
    plan(api, call("t1", "bash", command=f"printf '{EVIL}'"))
    api.replies.append(([text(EVIL)], "end_turn"))
    child = run(tmp_path, api=api, typed="go\n/compact\n/cost\n/help\n/nonsense\nq\n")
    assert (child.returncode, child.stderr) == (0, b"")
    assert b"\x1b" not in child.stdout and b"\x07" not in child.stdout


# --- Ctrl-C at any line at all ---------------------------------------------------------------

STRIDE = 7  # 1 = really every line, in some ten seconds
SOURCE = str(Path(__file__).parents[1] / "agents" / "s06_context_compact.py")


def interrupt_at(number):
    """From now on the `number`-th line of s06 that runs raises KeyboardInterrupt."""
    left = [number]

    def trace(frame, event, _):
        if frame.f_code.co_filename != SOURCE:
            return None
        left[0] -= event == "line"
        if left[0] == 0:
            sys.settrace(None)
            frame.f_trace = None
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    return left


def turn_as_chat_does(agent, messages, words):
    try:
        agent.add(messages, "user", words)
        agent.agent_loop(messages)
    except KeyboardInterrupt:
        pass


def interrupted_session(agent, scripted, number):
    """A turn with a tool, interrupted at a line; then another turn: (lines left, request, list)."""
    agent.STATE.__init__(agent.STATE.usage)
    client, messages = scripted(*[reply(call("t1", "bash", command="x")), *[reply("ok")] * 3]), []
    left = interrupt_at(number)
    turn_as_chat_does(agent, messages, "FIRST")
    sys.settrace(None)
    client.replies = [reply("ok")]
    turn_as_chat_does(agent, messages, "SECOND")
    return left[0], client.requests[-1], messages


def faults(agent, request, messages):
    """Which promises do not hold after an interrupted session."""
    found = [] if problems(request) == [] else ["the next request is refused"]
    found += [] if "SECOND" in json.dumps(request["messages"]) else ["the prompt was not sent"]
    joined, stored = (
        {json.dumps(block) for message in there for block in as_blocks(message["content"])}
        for there in (messages, lines_of(agent.STATE.path))
    )
    found += [] if joined <= stored else ["a message is not on disk"]
    path = agent.STATE.path
    agent.STATE.__init__(agent.STATE.usage)
    resumed = [*agent.resume(str(path)), {"role": "user", "content": "THIRD"}]
    return found + ["resumed, it is refused"] * (problems(request | {"messages": resumed}) != [])


def test_ctrl_c_at_any_line_leaves_a_list_that_can_be_sent_and_is_on_disk(
    agent, monkeypatch, scripted
):
    for name, value in SHIPPED.items():
        monkeypatch.setattr(agent, name, value)
    monkeypatch.setitem(agent.TOOL_HANDLERS, "bash", lambda command: "output")
    found, number, left = {}, 1, 0
    while left <= 0:
        left, request, messages = interrupted_session(agent, scripted, number)
        found |= {number: faults(agent, request, messages)}
        number += STRIDE
    assert number > 200 and {n: texts for n, texts in found.items() if texts} == {}
