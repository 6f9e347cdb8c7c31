"""What users of other agents ran into: O01 to O32 of field_reports.md, each with its small input.

A test that starts with test_o17 fails on the fault of report O17. Read one, break the agent in
that way, and see it fail.
"""

import contextlib
import copy
import io
import json
import os
import stat
import sys
import time
from collections import Counter
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import (
    SHIPPED,
    ApiFault,
    ScriptedClient,
    assistant,
    big,
    call,
    lines_of,
    problems,
    reply,
    result,
    results,
    session,
    text,
    thinking,
    turn,
    user,
)

CHINESE = "\u6c49"
DONE = assistant("done")
PAST = [*session(4), DONE, user("go")]  # long enough for a compaction to gain something
EXCHANGE = [call("e1", "bash", command="echo hi"), call("e2", "compact")]
DOWN = [ApiFault(529), ApiFault(429), ApiFault(400), ConnectionError("no route"), TimeoutError()]
posix = pytest.mark.skipif(os.name == "nt", reason="process groups and modes are those of POSIX")


@pytest.fixture(autouse=True)
def shipped_knobs(agent, monkeypatch):
    environment = dict(os.environ)
    for name, value in SHIPPED.items():
        monkeypatch.setattr(agent, name, value)
    yield
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def knob(agent, monkeypatch):
    """knob(THRESHOLD=50) turns knobs for one test."""

    def turn_them(**values):
        for name, value in values.items():
            monkeypatch.setattr(agent, name, value)

    return turn_them


@pytest.fixture
def run(agent, scripted):
    """run(reply, ...) lets the agent work on `messages` with these replies: (list, client)."""

    def start(*replies, messages=()):
        client, joined = scripted(*replies), []
        for message in messages or [user("go")]:
            agent.add(joined, message["role"], message["content"])
        agent.agent_loop(joined)
        return joined, client

    return start


@pytest.fixture
def compact(agent, scripted):
    """compact(list, reply) runs Layer 2 on a student's list: (new list, the request's text)."""

    def start(messages, answer=None):
        client = scripted(answer or reply("SUM"))
        return agent.auto_compact(messages), client.summaries[0]

    return start


@pytest.fixture
def typed(agent, monkeypatch, capsys):
    """typed(b"hello") runs the program on a user's bytes: (exit status, what it printed)."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-SECRET")

    def start(keys):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(keys)))
        return agent.main([]), capsys.readouterr().out

    return start


class Model(ScriptedClient):
    """Takes its `steps` as replies, then says "ok"; answers summary requests with `summary`."""

    def __init__(self, *steps, summary=None):
        super().__init__(())
        self.next, self.summary = chain(steps, repeat(reply("ok"))), summary or reply("SUM")

    def create(self, **request):
        self.replies = [next(self.next) if "tools" in request else self.summary]
        return super().create(**request)


def converse(agent, monkeypatch, model, prompts, messages=None):
    """Say `prompts` one after the other to `model`; returns the list."""
    monkeypatch.setattr(agent, "client", model)
    messages = [] if messages is None else messages
    for prompt in prompts:
        agent.add(messages, "user", prompt)
        agent.agent_loop(messages)
    return messages


def tool_returns(agent, monkeypatch, function, name="bash"):
    monkeypatch.setitem(agent.TOOL_HANDLERS, name, lambda **given: function())


def interrupt():
    raise KeyboardInterrupt


def fail(error):
    raise error


def sent(request):
    return json.dumps(request["messages"], ensure_ascii=False)


def transcripts(agent):
    return list(agent.TRANSCRIPT_DIR.glob("*.jsonl"))


def archived(agent):
    """All that the transcripts hold, as one text."""
    return "\n".join(path.read_text(encoding="utf-8") for path in transcripts(agent))


@contextlib.contextmanager
def unchanged(messages):
    """The list must hold the same objects with the same bytes when the block ends."""
    ids, whole = list(map(id, messages)), copy.deepcopy(messages)
    yield
    assert list(map(id, messages)) == ids and messages == whole


@contextlib.contextmanager
def disk_full(room):
    """No file can grow past `room` bytes: a write stops half-way, then fails."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# --- O01 to O05: what stands in the list after a compaction ----------------------------------


@pytest.mark.parametrize("calls", [EXCHANGE[1:], EXCHANGE, EXCHANGE[::-1]])
def test_o01_a_compact_call_and_its_batch_keep_call_and_result_together(agent, run, calls):
    messages, client = run(reply(*calls), reply("SUM"), reply("ok"), messages=PAST)
    assert [len(client.steps), len(client.summaries)] == [2, 1]
    summary, batch, answers, _ = messages
    assert summary["content"].startswith("[Conversation compressed.")
    assert batch == assistant(*calls)
    assert [b["tool_use_id"] for b in answers["content"]] == [b["id"] for b in calls]


@pytest.mark.parametrize("order", [1, -1])
def test_o01_the_other_calls_of_the_batch_run_once_and_reach_summary_and_archive(agent, run, order):
    replies = reply(*EXCHANGE[::order]), reply("SUM"), reply("ok")
    messages, client = run(*replies, messages=PAST)
    assert "result of bash: hi" in client.summaries[0]
    assert archived(agent).count('"content": "hi\\n"') == 2  # in both files: each can be resumed
    assert results(messages).count("hi\n") == 1


def test_o02_the_newest_work_and_the_first_request_reach_the_summariser(compact):
    history = [user("FIRST-1"), *(m for n in range(9) for m in turn(n, output=big(22_000)))]
    _, prompt = compact([*history, assistant("LAST-7731")])
    assert "FIRST-1" in prompt and "LAST-7731" in prompt
    assert len(prompt) < 130_000 and "is cut here" in prompt


def test_o02_what_is_left_out_of_a_long_talk_is_the_middle(compact):
    talk = [m for n in range(10) for m in (user("ask"), assistant(big(20_000, f"A{n}")))]
    _, prompt = compact([*talk, user("LAST-7731")])
    assert "LAST-7731" in prompt and "A9-TAIL" in prompt
    assert "A1-HEAD" not in prompt and "... cut ..." in prompt


LONG = [user("go"), *(m for n in range(3) for m in turn(n, "read_file", big(9_000)))]
WAYS = {  # what starts a compaction -> replies, history
    "automatic": ([reply("SUM"), reply("ok")], LONG),
    "after an answer": ([reply("SUM"), reply("ok")], [*LONG, DONE]),
    "the tool": ([reply(EXCHANGE[1]), reply("SUM"), reply("ok")], PAST),
    "too long": ([ApiFault(413), reply("SUM"), reply("ok")], [*PAST, DONE, user("hi")]),
}


@pytest.mark.parametrize("way", WAYS)
def test_o03_first_and_last_message_are_the_users_after_any_compaction(run, knob, way):
    replies, history = WAYS[way]
    knob(THRESHOLD=5_000)
    _, client = run(*replies, messages=history)
    after = client.steps[-1]["messages"]
    assert "[Conversation compressed." in str(after[0])
    assert (after[0]["role"], after[-1]["role"]) == ("user", "user")


def test_o04_the_newest_request_survives_a_summary_that_forgets_it(run, knob):
    knob(THRESHOLD=5_000)
    history = [*LONG, DONE, user("ZEBRA-42: rename foo to bar")]
    _, client = run(reply("unrelated text"), reply("ok"), messages=history)
    assert len(client.summaries) == 1
    assert "ZEBRA-42: rename foo to bar" in sent(client.steps[0])


def test_o04_it_survives_in_the_middle_of_the_work(run, knob):
    knob(THRESHOLD=5_000)
    _, client = run(reply("x"), reply("ok"), messages=[user("ZEBRA-42: rename foo"), *LONG[1:]])
    assert len(client.summaries) == 1
    assert "ZEBRA-42: rename foo" in sent(client.steps[0])


def test_o04_it_survives_one_compaction_after_another(agent, compact):
    first, _ = compact([user("ZEBRA-42: rename foo"), *turn(1)])
    second, _ = compact([*first, *turn(2)])
    assert "ZEBRA-42: rename foo" in str(compact([*second, *turn(3)])[0])


def test_o04_the_compact_call_is_not_taken_for_the_users_request(run):
    asked = reply(call("t1", "compact", focus="FOCUS-9"))
    messages, _ = run(asked, reply("x"), reply("ok"), messages=[*PAST, DONE, user("ZEBRA-42")])
    assert "ZEBRA-42" in messages[0]["content"]
    assert "FOCUS-9" not in messages[0]["content"].partition("[The user's request")[2]


def test_o05_after_a_compact_call_the_task_goes_on_by_itself(run):
    steps = [reply(EXCHANGE[1]), reply("a done, b left"), reply(EXCHANGE[0]), reply("done")]
    messages, client = run(*steps, messages=[*PAST, DONE, user("fix a and b")])
    assert messages[0]["content"].startswith("[Conversation compressed.")
    assert messages[-1] == assistant(text("done"))
    assert client.replies == []  # all from one prompt


# --- O06 to O12: the summary, and when there is none -----------------------------------------

NO_SUMMARY = [reply(), reply(""), reply("  \n"), reply(thinking())]  # O06, O07
NO_SUMMARY += [reply("The user wants X and so far we", stop="max_tokens")]  # O08


@pytest.mark.parametrize("answer", NO_SUMMARY, ids=["none", "empty", "blank", "thinking", "cut"])
def test_o06_o07_o08_without_a_whole_summary_the_history_stays(agent, scripted, capsys, answer):
    messages = session(3)
    scripted(answer)
    with unchanged(messages):
        assert agent.auto_compact(messages) is messages
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("answer", NO_SUMMARY, ids=["none", "empty", "blank", "thinking", "cut"])
def test_o06_no_success_is_claimed(agent, scripted, capsys, answer):
    messages = session(3)
    scripted(answer)
    agent.compact_history(messages)
    shown = capsys.readouterr().out
    assert "history kept" in shown and "saved" not in shown and "compacted" not in shown


@pytest.mark.parametrize(
    "blocks, summary", [([thinking(), "SUM"], "SUM"), (["A", "B"], "AB"), (["A", thinking()], "A")]
)
def test_o07_the_summary_is_all_text_and_no_thinking(compact, blocks, summary):
    (message,), _ = compact([user("go"), DONE], reply(*blocks))
    assert message["content"].split("\n\n")[1] == summary


@pytest.mark.parametrize("error", DOWN, ids=repr)
def test_o09_when_the_summary_call_fails_the_next_step_has_the_whole_history(
    run, knob, capsys, error
):
    knob(THRESHOLD=5_000)
    messages, client = run(error, reply("ok"), messages=LONG)
    assert messages == [*LONG, assistant(text("ok"))]
    assert len(client.summaries) == 1 and capsys.readouterr().out.count("history kept") == 1


@pytest.mark.parametrize("error", DOWN, ids=repr)
def test_o09_the_model_is_told_that_its_compact_call_did_nothing(run, error):
    messages, client = run(reply(*EXCHANGE), error, reply("ok"))
    assert messages[0] == user("go") and messages[-1] == assistant(text("ok"))
    assert "failed" in results(messages)[1] and results(messages)[0] == "hi\n"
    assert len(client.summaries) == 1


def test_o10_after_three_failures_it_rests_and_says_so_once(agent, monkeypatch, knob, capsys):
    knob(THRESHOLD=5_000)
    model = Model(summary=ApiFault(400, "prompt is too long"))
    converse(agent, monkeypatch, model, [big(30_000), *"2345678"])
    assert [len(model.steps), len(model.summaries)] == [8, 3]
    assert capsys.readouterr().out.count("rests") == 1


def test_o10_a_manual_compaction_still_tries(agent, monkeypatch, knob):
    knob(THRESHOLD=5_000)
    model = Model(summary=ApiFault(400, "prompt is too long"))
    messages = converse(agent, monkeypatch, model, [big(30_000), *"2345678"])
    agent.compact_history(messages)
    assert len(model.summaries) == 4


NO_GAIN = {  # why a compaction does not help: knobs, the summary, the first prompt
    "the threshold is too low": ({"THRESHOLD": 50}, big(400), big(800)),
    "the summary is longer": ({"THRESHOLD": 9_000}, big(260_000), big(49_000)),
    "the request stays": ({"THRESHOLD": 20_000, "REQUEST_CHARS": 10**6}, "SUM", CHINESE * 49_000),
}


@pytest.mark.parametrize("why", NO_GAIN)
def test_o11_a_compaction_that_does_not_help_is_not_repeated_for_ever(
    agent, monkeypatch, knob, capsys, why
):
    knobs, summary, prompt = NO_GAIN[why]
    knob(**knobs)
    model = Model(summary=reply(summary))
    converse(agent, monkeypatch, model, [prompt, *"23456"])
    assert len(model.steps) == 6 and len(model.summaries) <= 3
    assert "tokens" in capsys.readouterr().out


def test_o12_the_whole_request_for_a_summary_is_bounded(compact):
    history = [m for n in range(20) for m in (user(f"SAID-{n}"), *turn(n, output=big(100_000)))]
    _, prompt = compact([*history, user("LAST-7731")])
    assert len(prompt) < 130_000
    said = [f"SAID-{n}" for n in range(20)] + ["LAST-7731"]
    assert all(words in prompt for words in said)  # tool results are cut first


def test_o12_after_a_refusal_the_next_attempt_sends_half(agent, scripted):
    client = scripted(ApiFault(400, "prompt is too long"), reply("SUM"))
    messages = [user("go"), *turn(1, output=big(300_000))]
    agent.compact_history(messages)
    agent.compact_history(messages)
    assert len(client.summaries[1]) < 0.6 * len(client.summaries[0])


# --- O13 to O19: results, and what Layer 1 makes of them -------------------------------------

ENORMOUS = {
    "output": lambda: "x" * 3_000_000,
    "file": lambda: Path("big.txt").read_text(),
    "exception": lambda: fail(ValueError("x" * 3_000_000)),
}


@pytest.mark.parametrize("source", ENORMOUS)
def test_o13_an_enormous_result_is_capped_when_it_is_made(agent, monkeypatch, run, source):
    Path("big.txt").write_text("x" * 3_000_000)
    tool_returns(agent, monkeypatch, ENORMOUS[source])
    messages, client = run(reply(EXCHANGE[0]), reply("ok"))
    assert len(sent(client.requests[1])) < 60_000
    assert "3,000,0" in results(messages)[0]  # the mark names the size
    assert "x" * 3_000_000 in archived(agent)


@pytest.mark.parametrize(
    "given, output", [({"path": "a"}, "x" * 8_000), ({"path": "x" * 8_000}, "")]
)
@pytest.mark.parametrize("tool", ["read_file", "write_file"])
def test_o14_the_size_is_checked_inside_a_long_turn(agent, monkeypatch, knob, tool, given, output):
    knob(THRESHOLD=10_000, PRESERVE_RESULT_TOOLS={tool})
    tool_returns(agent, monkeypatch, lambda: output, tool)
    model = Model(*(reply(call(f"t{n}", tool, **given)) for n in range(30)))
    converse(agent, monkeypatch, model, ["go"])
    sizes = [agent.estimate_tokens(request["messages"]) for request in model.steps]
    assert len(sizes) == 31 and max(sizes) <= 10_000


@pytest.mark.parametrize("keep", [0, 1, 3, 10])
def test_o15_a_batch_that_the_model_has_not_read_is_never_cleared(agent, knob, keep):
    knob(KEEP_RECENT=keep)
    batch = [call(f"t{n}", "bash") for n in range(5)]
    unread = [user("q"), assistant(*batch), user(*(result(f"t{n}", big(500)) for n in range(5)))]
    with unchanged(unread):
        agent.micro_compact(unread)


def test_o16_the_archive_holds_every_result_that_layer_1_cleared_in_order(agent, monkeypatch, run):
    outputs = [big(500, f"R{n}") for n in range(6)]
    tool_returns(agent, monkeypatch, iter(outputs).__next__)
    calls = [reply(call(f"t{n}", "bash")) for n in range(6)]
    messages, _ = run(*calls, reply("done"))
    assert results(messages)[0] == "[Previous: used bash]"
    whole = results(m for path in transcripts(agent) for m in lines_of(path))
    assert whole == outputs


def test_o16_the_summariser_sees_them_too(agent, monkeypatch, run):
    outputs = [big(500, f"R{n}") for n in range(6)]
    tool_returns(agent, monkeypatch, iter(outputs).__next__)
    calls = [reply(call(f"t{n}", "bash")) for n in range(6)]
    _, client = run(*calls, reply(call("t9", "compact")), reply("SUM"), reply("done"))
    assert all(output in client.summaries[0] for output in outputs)
    assert "[Previous: used" not in client.summaries[0]


def test_o17_the_model_is_told_what_a_placeholder_means(agent):
    for words in ("removed to save space", "again", "never guess", "names the tool"):
        assert words in agent.SYSTEM.replace("\n", " ")


def test_o17_the_call_stays_and_preserved_tools_are_honoured(agent):
    listing = "\n".join(f"file_{n}.py  100 lines" for n in range(12))
    messages = [*session(1), *turn(7, output=listing)]
    for number in range(1, 5):
        messages += turn(number, "read_file")
    agent.micro_compact(messages)
    assert results(messages)[1] == "[Previous: used bash]"
    assert messages[3] == assistant(call("t7", "bash", command="cmd 7"))
    assert results(messages)[2:] == [big(500, f"R{n}") for n in range(1, 5)]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
CONTENTS = [[text(big(5_000))], [IMAGE], [text("ok"), IMAGE], "", None, [], "MISSING", [text("ok")]]


def odd_results():
    """A list with each of CONTENTS as the content of a result; the newest three are normal."""
    messages = session(len(CONTENTS) + 3)
    for content, message in zip(CONTENTS, messages[2::2], strict=False):
        message["content"][0]["content"] = copy.deepcopy(content)
        if content == "MISSING":
            del message["content"][0]["content"]
    return messages


def test_o18_long_lists_and_images_are_cleared_and_nothing_else_is(agent):
    stub, messages = "[Previous: used bash]", odd_results()
    agent.micro_compact(messages)
    assert results(messages)[:8] == [stub, stub, stub, "", None, [], None, [text("ok")]]


def test_o18_a_second_run_changes_nothing_more(agent):
    messages = agent.micro_compact(odd_results())
    with unchanged(messages):
        agent.micro_compact(messages)


def sdk_call(name):
    from anthropic.types import ToolUseBlock

    return ToolUseBlock(id="t1", name=name, input={"command": "ls"}, type="tool_use")


CALLS = {
    "dict": lambda: call("t1", "bash"),
    "SDK object": lambda: sdk_call("bash"),
    "look-alike": lambda: SimpleNamespace(type="tool_use", id="t1", name="bash"),
    "unknown": lambda: call("other", "bash"),
}


@pytest.mark.parametrize("shape", CALLS)
def test_o19_the_placeholder_names_the_tool_in_every_shape(agent, shape):
    own = {"role": "assistant", "content": [CALLS[shape]()]}
    messages = [user("go"), own, user(result("t1", big(500))), *turn(2), *turn(3), *turn(4)]
    name = "unknown" if shape == "unknown" else "bash"
    agent.micro_compact(messages)
    assert messages[2] == user(result("t1", f"[Previous: used {name}]"))


# --- O20 to O23: the archive -----------------------------------------------------------------


def test_o20_what_was_archived_can_be_read_back_and_sent(agent):
    own = {"role": "assistant", "content": [sdk_call("bash")]}
    path = agent.archive([user("a\nb\u2028c\x85d"), own, user(result("t1", "x\r\ny"))])
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        assert json.loads(line)["role"]
    loaded = agent.load(path)
    assert loaded[1] == assistant(call("t1", "bash", command="ls"))
    assert loaded[0] == user("a\nb\u2028c\x85d")
    assert problems({"messages": loaded, "tools": []}) == []


@pytest.mark.parametrize("programs", [1, 2])
def test_o21_two_archives_in_one_second_are_two_files(agent, monkeypatch, scripted, programs):
    monkeypatch.setattr(agent.time, "gmtime", lambda: time.struct_time([0] * 9))
    for name in ("ONE", "TWO"):
        scripted(reply("SUM"))
        if programs == 2:
            monkeypatch.setattr(agent, "STATE", type(agent.STATE)(Counter()))
        agent.auto_compact([user(name), DONE])
    first = [lines_of(path)[0]["content"] for path in transcripts(agent)]
    assert sorted(first) == ["ONE", "TWO"]


def test_o22_where_the_archive_cannot_be_written_nothing_is_compacted(agent, scripted, capsys):
    agent.TRANSCRIPT_DIR.write_text("a file")
    messages = session(3)
    client = scripted()
    with unchanged(messages):
        assert agent.auto_compact(messages) is messages
    assert client.requests == []  # the archive comes first
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_o22_and_the_session_lives(agent, run, knob):
    knob(THRESHOLD=5_000)
    agent.TRANSCRIPT_DIR.write_text("a file")
    messages, _ = run(reply("ok"), messages=[*LONG, *turn(7), *turn(8), *turn(9), *turn(10)])
    assert messages[-1] == assistant(text("ok"))
    assert "[Previous" not in str(messages)  # nor does Layer 1 clear anything


def test_o22_a_disk_that_fills_up_half_way_leaves_no_half_line(agent, scripted, capsys):
    messages = []
    agent.add(messages, "user", "before")
    with disk_full(room=1_000):
        agent.add(messages, "user", big(5_000, "LATE"))
        assert agent.auto_compact(messages) is messages
    (path,) = transcripts(agent)
    assert lines_of(path) == [user("before")] and path.read_bytes().endswith(b"\n")
    agent.add(messages, "assistant", "after")
    assert "LATE-TAIL" in str(agent.load(path)) and len(lines_of(path)) == 3


@posix
@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_o23_nobody_else_can_read_the_archive(agent, umask):
    before = os.umask(umask)
    path = agent.archive([user("secret")])
    os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_o23_git_ignores_the_archive_and_the_keys(agent):
    agent.archive([user("hi")])
    ignored = Path(__file__).parents[1].joinpath(".gitignore").read_text().split()
    assert ".env" in ignored
    assert (agent.TRANSCRIPT_DIR / ".gitignore").read_text().split()[0] == "*"


def test_o23_the_key_is_not_written_by_us(agent, typed, scripted):
    scripted(reply(call("t1", "bash", command="env")), ApiFault(401, "bad key sk-SECRET"))
    _, shown = typed(b"go\n")
    assert "sk-SECRET" not in archived(agent) + shown


# --- O24 to O26: sizes and the focus ---------------------------------------------------------


def test_o24_chinese_is_not_under_counted(agent):
    assert agent.estimate_tokens([user(CHINESE * 100_000)]) >= 60_000
    assert 25_000 <= agent.estimate_tokens([user("x" * 100_000)]) < 25_050


def test_o24_so_a_chinese_conversation_is_compacted_in_time(agent, monkeypatch):
    talk = [m for n in range(4) for m in (user(CHINESE * 20_000), DONE)]
    model = Model()
    monkeypatch.setattr(agent, "client", model)
    agent.agent_loop([*talk, user("and now?")])
    assert len(model.summaries) == 1


def test_o25_base64_never_reaches_the_summariser(compact):
    picture = copy.deepcopy(IMAGE)
    picture["source"]["data"] = "QUJD" * 250_000
    _, prompt = compact([user(text("look"), picture), DONE, *turn(1, output=[picture])])
    assert "QUJDQUJD" not in prompt and len(prompt) < 10_000


def test_o25_base64_that_is_text_is_counted_and_capped(agent):
    messages = []
    agent.add(messages, "user", "QUJD" * 250_000)
    assert agent.estimate_tokens([user("QUJD" * 250_000)]) > 240_000
    assert agent.estimate_tokens(messages) < 15_000


def test_o26_the_focus_reaches_the_summariser_from_tool_and_command(agent, run, scripted):
    _, client = run(reply(call("t1", "compact", focus="AUTH-77")), reply("SUM"), reply("ok"))
    assert "AUTH-77" in client.summaries[0].partition("<data")[0]
    client = scripted(reply("SUM"))
    agent.run_command([user("go"), DONE], "/compact AUTH-78")
    assert "AUTH-78" in client.summaries[0]


@pytest.mark.parametrize("given", [{}, {"focus": ""}, {"focus": None}, {"focus": ["a"]}])
def test_o26_a_focus_that_is_none_adds_nothing(run, given):
    _, client = run(reply(call("t1", "compact", **given)), reply("SUM"), reply("ok"))
    head = client.summaries[0].partition("<data")[0]
    assert "Focus" not in head and "None" not in head


def test_o26_two_compact_calls_compact_once_and_both_are_answered(run):
    calls = [call("t1", "compact", focus="AUTH-77"), call("t2", "compact")]
    messages, client = run(reply(*calls), reply("SUM"), reply("ok"), messages=PAST)
    assert len(client.summaries) == 1 and "AUTH-77" in client.summaries[0]
    assert results(messages) == ["Compressing..."] * 2


# --- O27 to O32: interrupts, errors, odd replies, odd bytes ----------------------------------


def test_o27_ctrl_c_in_a_tool_answers_every_call_of_the_batch(agent, monkeypatch, scripted):
    """That the command and its children are gone: in test_tools.py."""
    tool_returns(agent, monkeypatch, interrupt)
    two = reply(call("t1", "bash"), call("t2", "bash"))
    model = Model(two)
    messages = converse(agent, monkeypatch, model, ["go", "continue"])
    assert results(messages) == ["interrupted by the user"] * 2
    assert messages[-1] == assistant(text("ok"))


@pytest.mark.parametrize("error", [ApiFault(401), *DOWN], ids=repr)
def test_o28_after_an_error_the_prompt_is_back_and_nothing_is_sent_twice(
    agent, monkeypatch, capsys, error
):
    model = Model(error)
    messages = converse(agent, monkeypatch, model, ["ALPHA-1", "BETA-2"])
    request = sent(model.requests[1])
    assert request.count("ALPHA-1") == request.count("BETA-2") == 1
    assert messages[-1] == assistant(text("ok")) and len(model.requests) == 2
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("[") and not first.startswith("[ctx") and last == "ok"


def test_o28_the_end_of_input_leaves_with_status_0(typed):
    assert typed(b"")[0] == 0


def test_o29_a_call_in_a_cut_reply_is_answered_but_not_run(run):
    cut = reply(call("t1", "write_file", path="a", content="half"), stop="max_tokens")
    messages, _ = run(cut, reply("ok"))
    assert not Path("a").exists()
    assert results(messages)[0].startswith("Error") and messages[2]["content"][0]["is_error"]


def test_o29_ten_of_them_in_a_row_come_to_an_end(agent, monkeypatch, capsys):
    model = Model(*(reply(call(f"t{n}", "bash"), stop="max_tokens") for n in range(10)))
    converse(agent, monkeypatch, model, ["go"])
    assert len(model.requests) == 3 and "cut short" in capsys.readouterr().out


@pytest.mark.parametrize("empty", [reply(), reply(""), reply(" \n"), reply(thinking())])
def test_o30_an_empty_reply_is_followed_by_a_request_the_api_takes(agent, monkeypatch, empty):
    model = Model(empty)
    messages = converse(agent, monkeypatch, model, ["go", "x"])
    assert messages[1]["content"][-1] == text("(no reply)")  # and Model is as strict as the API


@pytest.mark.parametrize("output", ["", " \n"])
def test_o30_a_tool_that_prints_nothing_has_a_result(agent, monkeypatch, run, output):
    tool_returns(agent, monkeypatch, lambda: output)
    messages, _ = run(reply(EXCHANGE[0]), reply("ok"))
    assert results(messages) == ["(no output)"]


def test_o30_a_blank_prompt_is_ignored(typed, scripted, agent):
    assert typed(b"   \n\n")[0] == 0
    assert scripted().requests == [] and transcripts(agent) == []


@pytest.mark.parametrize("command", [r"printf '\377\376'", r"printf '\377\376' >&2; exit 3"])
def test_o31_odd_bytes_of_a_command_are_replaced(agent, command):
    assert agent.run_bash(command).startswith("\ufffd\ufffd")


def test_o31_odd_bytes_in_a_file_are_replaced(agent, tmp_path):
    """Those before a timeout: in test_tools.py."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert agent.run_read("binary") == "\ufffd\ufffd\x00"


def test_o32_a_lone_surrogate_that_is_typed_harms_no_later_request(agent, typed, monkeypatch):
    model = Model()
    monkeypatch.setattr(agent, "client", model)
    assert typed(b"a\xffb\nclean\n")[0] == 0
    assert len(model.requests) == 2
    assert all(sent(request).encode() for request in model.requests)


def test_o32_nor_does_one_of_the_model_or_in_a_file_name(agent, run):
    Path("odd\udcff.txt").write_text("hi")
    odd = reply("odd \udcff", call("t1", "bash", command="ls; echo \udcff"))
    _, client = run(odd, reply(call("t2", "read_file", path="odd\udcff.txt")), reply("ok"))
    assert len(client.requests) == 3
    assert all(sent(request).encode() for request in client.requests)
    assert archived(agent).encode()
