"""The second lesson: the context measured by the API's own numbers, five graded layers."""

import io
import os
import sys
import tempfile
import time
from types import SimpleNamespace

import ch07_graded_context as ch07
import practice_api
import pytest
from fakes import (
    SHIPPED,
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
    user,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

DRAFT = "<analysis>first this, then that</analysis>\n<summary>\n1. Request: go\n</summary>"
KNOBS = {  # as shipped, but for a window of 10,000 tokens
    "MODEL_WINDOW": 12_000,
    "RESERVE": 2000,
    "BUDGET_AT": 0.5,
    "SNIP_AT": 0.6,
    "TIGHT_AT": 0.7,
    "COMPACT_AT": 0.85,
    "BUDGET_CHARS": 30_000,
    "TIGHT_CHARS": 15_000,
    "SNIPPABLE_TOOLS": {"read_file", "bash"},
    "SNIP_KEEP": 3,
    "IDLE_MINUTES": 5,
    "IDLE_KEEP": 5,
    "PAYS": 4,
    "RECOVER_FILES": 5,
    "RECOVER_EACH": 5000,
    "RECOVER_ALL": 25_000,
}


@pytest.fixture
def s06(agent, monkeypatch):
    """The first lesson with the second one put over it."""
    for name, value in (SHIPPED | {"input": input}).items():
        monkeypatch.setattr(agent, name, value, raising=False)
    for name in ch07.PARTS.split():
        monkeypatch.setattr(agent, name, getattr(agent, name))
    for name, value in KNOBS.items():
        monkeypatch.setattr(ch07, name, value)
    monkeypatch.setattr(ch07, "METER", SimpleNamespace(first=None, offset=0, last_call=0))
    ch07.turn_over()
    return agent


@pytest.fixture
def knobs(s06, monkeypatch):
    """knobs(MODEL_WINDOW=...) turns knobs of the second lesson."""
    return lambda **given: [monkeypatch.setattr(ch07, *item) for item in given.items()]


@pytest.fixture
def practice(s06, monkeypatch):
    """practice(profile=..., ...) starts a PracticeAPI and turns the agent to it."""
    running = []

    def start(**options):
        for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "NO_PROXY", "no_proxy"):
            monkeypatch.setenv(name, "")
        options = {"retry": False, "model": ch07.practice_model} | options
        running.append(practice_api.PracticeAPI(**options).__enter__())
        practice_api.go_offline(s06, running[-1])
        return running[-1]

    yield start
    for api in running:
        api.__exit__()


def exchange(number, output, tool, **fields):
    """A call and its result."""
    return [assistant(call(f"t{number}", tool, **fields)), user(result(f"t{number}", output))]


def conversation(*exchanges):
    """A request, and [(output, tool, input), ...] as exchanges."""
    messages = [user("go")]
    for number, (output, tool, fields) in enumerate(exchanges):
        messages += exchange(number, output, tool, **fields)
    return messages


def reading(output="text " * 30, path="a.py", **given):
    return output, "read_file", {"path": path, **given}


def running(output="text " * 30, command="ls"):
    return output, "bash", {"command": command}


def full(messages, share):
    """Make the API's count such that `share` of the window is used."""
    target = int(share * (ch07.MODEL_WINDOW - ch07.RESERVE))
    ch07.METER.first, ch07.METER.offset = messages[0], 0
    ch07.METER.offset = target - ch07.context_size(messages)
    return messages


def snipped(messages):
    """The numbers of the results that snip would take."""
    blocks = [block for _, block, _ in ch07.results_in(messages)]
    return [number for number, b in enumerate(blocks) for e in ch07.snip(messages) if e[2] is b]


def install(s06, monkeypatch, *replies):
    monkeypatch.setattr(s06, "client", ScriptedClient(replies))
    return s06.client


# --- measure ---------------------------------------------------------------------------------


class PlainUsage(practice_api.PromptCache):
    """The usage of an endpoint without a prompt cache: two fields."""

    def usage(self, body, content=()):
        tokens = practice_api.count_tokens(body)
        return {
            "input_tokens": tokens,
            "output_tokens": sum(map(practice_api.block_tokens, content)),
        }


@pytest.fixture
def sized(s06, monkeypatch):
    """The size of every request as the agent sees it before the model is asked."""
    sizes, ask = [], s06.ask_model

    def watched(messages):
        sizes.append(ch07.context_size(messages))
        return ask(messages)

    monkeypatch.setattr(s06, "ask_model", watched)
    return sizes


@pytest.mark.parametrize("usage", ["with cache", "plain", "missing"])
def test_the_size_is_within_ten_percent_of_what_the_api_counts_next(
    practice, sized, tmp_path, usage
):
    """Right after a compaction, too: the window of 10,000 tokens fills several times."""
    api = practice(faults=[lambda body: "no usage" if usage == "missing" else None])
    api.cache = PlainUsage() if usage == "plain" else api.cache
    for number in range(10):
        lines = "".join(f"value_{n} = {n}  # \u6587\n" for n in range(150 + 30 * number))
        (tmp_path / f"m{number:02}.py").write_text(lines, encoding="utf-8")
    assert ch07.agent_loop([user("Read every Python file in ./ one by one")])
    bodies = [record["body"] for record in api.requests if record["body"].get("tools")]
    ratios = [size / practice_api.count_tokens(b) for size, b in zip(sized, bodies, strict=True)]
    assert len(ratios) > 10 and 0.9 < min(ratios) <= max(ratios) < 1.1
    assert sum("compressed" in str(b["messages"][0]) for b in bodies) > 2


def test_the_anchor_counts_input_cache_and_output_and_the_estimate_what_joined_since(s06):
    messages = session(2)
    ch07.anchor(messages, s06.Counter(input=10, cache_read_input=5000, output=90))
    assert ch07.context_size(messages) == 5100
    messages.append(assistant(big(4000)))
    assert 6000 < ch07.context_size(messages) < 6200


def test_without_usage_the_estimate_alone_counts_with_system_and_tools(s06):
    messages = session(2)
    ch07.anchor(messages, s06.Counter())
    alone = s06.estimate_tokens(messages) + s06.estimate_tokens([s06.SYSTEM, s06.TOOLS])
    assert ch07.context_size(messages) == alone


def test_a_compaction_resets_the_anchor(s06, monkeypatch):
    install(s06, monkeypatch, reply(DRAFT))
    messages = full(session(30), 0.9)
    ch07.METER.offset += 5000
    assert s06.compact_history(messages) == ""
    assert ch07.context_size(messages) < 2500


# --- when which layer acts -------------------------------------------------------------------


@pytest.mark.parametrize(
    "share, left",
    [(0.3, 40_000), (0.49, 40_000), (0.5, 30_000), (0.69, 30_000), (0.75, 15_000), (0.84, 15_000)],
)
def test_budget_follows_the_utilization(s06, knobs, share, left):
    knobs(PAYS=0, MODEL_WINDOW=102_000)
    messages = full(conversation(reading(big(40_000)), reading(path="b.py")), share)
    ch07.graded_compact(messages)
    assert left <= len(results(messages)[0]) <= left + 200


@pytest.mark.parametrize("share, gone", [(0.3, 0), (0.59, 0), (0.6, 1), (0.84, 1)])
def test_snip_follows_the_utilization(s06, knobs, share, gone):
    knobs(PAYS=0)
    messages = full(conversation(*[reading()] * 2, *[reading(path="b")] * 3), share)
    ch07.graded_compact(messages)
    assert results(messages).count(ch07.SNIPPED) == gone


@pytest.mark.parametrize("share, compacted", [(0.84, False), (0.85, True), (2, True)])
def test_compaction_follows_the_utilization(s06, monkeypatch, share, compacted):
    install(s06, monkeypatch, reply(DRAFT))
    messages = full([user("go"), assistant(big(30_000)), user("on")], share)
    ch07.graded_compact(messages)
    assert (s06.COMPRESSED in str(messages[0])) == compacted


# --- budget, snip, idle ----------------------------------------------------------------------


def test_budget_keeps_head_and_tail_and_says_how_much_is_gone_and_where_it_is(s06, knobs):
    knobs(PAYS=0, MODEL_WINDOW=102_000)
    messages = full(conversation(running(big(40_000)), running()), 0.5)
    ch07.graded_compact(messages)
    shown = results(messages)[0]
    assert shown.startswith("BIG-HEAD") and shown.endswith("BIG-TAIL")
    assert "[... budgeted: 10000 chars truncated ...] whole in .transcripts" in shown


def test_budget_cuts_a_result_of_several_parts_as_well(s06, knobs):
    knobs(PAYS=0, MODEL_WINDOW=102_000)
    parts = [{"type": "text", "text": big(40_000)}]
    messages = full(conversation(running(parts), running()), 0.5)
    ch07.graded_compact(messages)
    assert "[... budgeted: 10000 chars truncated ...]" in results(messages)[0]


def test_a_second_cut_adds_up_what_is_gone(s06):
    messages = conversation(running(big(40_000)), running())
    ch07.apply(messages, ch07.budget(messages, 30_000))
    ch07.apply(messages, ch07.budget(messages, 15_000))
    gone = int(results(messages)[0].split("budgeted: ")[1].split()[0])
    assert 25_000 <= gone < 25_100


@pytest.mark.parametrize(
    "first, second, gone",
    [
        (reading(), reading(), [0]),
        (reading(), reading(offset=5), []),
        (reading(limit=9), reading(limit=8), []),
        (running(command="grep -n one a.py"), running(command="grep -n two a.py"), []),
        (running(command="git diff"), running(command="git diff"), [0]),
        (running(), reading(), []),
        (reading(), reading("Error: no such file"), []),
        (running(), running("not found\n[exit code 1]"), []),
        (("x", "write_file", {"path": "a"}), ("x", "write_file", {"path": "a"}), []),
    ],
)
def test_snip_takes_what_the_same_call_has_shown_again(s06, first, second, gone):
    assert snipped(conversation(first, second, *[running(command="date")] * 3)) == gone


@pytest.mark.parametrize("between", ["edit_file", "write_file", "bash"])
def test_an_edit_makes_earlier_reads_stale_once_the_file_was_read_again(s06, between):
    edit = ("Edited", between, {"path": "./a.py", "command": "x"})
    others = [running(command="date")] * 3
    old = [reading(offset=1), reading(offset=2)]
    assert snipped(conversation(*old, edit, *others)) == []
    stale = [] if between == "bash" else [0, 1]
    assert snipped(conversation(*old, edit, reading(offset=3), *others)) == stale


def test_snip_never_takes_the_newest_three(s06):
    assert snipped(conversation(*[reading()] * 3)) == []
    assert snipped(conversation(*[reading()] * 5)) == [0, 1]


@pytest.mark.parametrize("minutes, gone", [(0, 0), (4, 0), (6, 3)])
def test_idle_clearing_waits_until_the_cache_is_cold(s06, minutes, gone):
    messages = conversation(*[reading(path=f"{n}.py") for n in range(8)])
    ch07.METER.last_call = time.time() - 60 * minutes
    ch07.graded_compact(messages)
    assert results(messages).count(ch07.CLEARED) == gone


def test_idle_clearing_leaves_what_is_shorter(s06):
    messages = conversation(*[reading("short", f"{n}.py") for n in range(8)])
    ch07.METER.last_call = 1
    assert ch07.graded_compact(messages) == {}


# --- the prompt cache ------------------------------------------------------------------------


@pytest.mark.parametrize("behind, pays", [(0, True), (1000, True), (30_000, False)])
def test_an_edit_waits_until_it_frees_enough_of_what_is_sent_again(s06, behind, pays):
    between = [running(big(behind // 5 + 20), f"ls {number}") for number in range(5)]
    messages = conversation(running(big(20_000), "git diff"), *between, running("", "git diff"))
    messages = full(messages + exchange(9, "x", "bash", command="date"), 0.65)
    ch07.graded_compact(messages)
    assert (results(messages)[0] == ch07.SNIPPED) == pays


@pytest.mark.parametrize(
    "size, share, gone", [(20_000, 0.55, 1), (2000, 0.55, 0), (20_000, 0.3, 0)]
)
def test_old_results_are_cleared_on_a_warm_cache_when_it_fills_and_that_pays(
    s06, size, share, gone
):
    messages = conversation(running(big(size)), *[running(big(800), f"ls {n}") for n in range(6)])
    ch07.METER.last_call = time.time()
    freed = ch07.graded_compact(full(messages, share))
    assert [results(messages).count(ch07.CLEARED) > 0, list(freed)] == [gone, ["clear"] * gone]


def test_the_next_request_marks_the_cache_before_the_edit(s06):
    messages = full(conversation(running(), running(big(9000)), *[running()] * 5), 0.4)
    ch07.apply(messages, ch07.clear_idle(messages, 5)[1:])
    marked = s06.with_cache_marks(messages)
    assert "cache_control" in marked[3]["content"][-1]


# --- compaction and recovery -----------------------------------------------------------------


def editing(tmp_path, *names, size=400):
    """A conversation in which these files were read; each then holds something else."""
    for name in names:
        (tmp_path / name).write_text(f"NEW {name}\n" + "x" * size)
    return conversation(*[reading(f"OLD {name} " + big(9000), name) for name in names])


def test_files_in_work_are_attached_again_fresh_from_disk(s06, monkeypatch, tmp_path):
    client = install(s06, monkeypatch, reply(DRAFT), reply("done"))
    messages = full(editing(tmp_path, "a.py", "b.py", "c.py"), 0.9)
    assert ch07.agent_loop(messages)
    shown = str(client.steps[-1]["messages"])
    assert all(f"NEW {name}" in shown for name in ("a.py", "b.py", "c.py"))
    assert "OLD a.py" not in shown and "OLD c.py" in shown  # c.py was not read by the model yet


def test_recovery_keeps_its_caps(s06, tmp_path):
    messages = editing(tmp_path, *[f"{n}.py" for n in range(7)], size=100_000)
    blocks = ch07.recover(messages, 25_000)
    assert [b["text"].split("]")[0][-4:] for b in blocks] == [f"{n}.py" for n in range(2, 7)]
    assert all(s06.estimate_tokens(block["text"]) <= 5020 for block in blocks)
    assert s06.estimate_tokens(ch07.recover(messages, 8000)) <= 8400


def test_recovery_gives_back_no_more_than_half_of_what_was_freed(s06, monkeypatch, tmp_path):
    install(s06, monkeypatch, reply(DRAFT))
    messages = [*editing(tmp_path, "a.py", "b.py", size=100_000), assistant("ok")]
    before = s06.estimate_tokens(messages)
    assert s06.compact_history(messages) == "" and "NEW b.py" in str(messages)
    assert s06.estimate_tokens(messages) < 0.6 * before + 200


@pytest.mark.parametrize("data", [None, b"\x00\x01\xff", b"\xff\xfe"])
def test_a_deleted_or_binary_file_is_named_and_not_attached(s06, tmp_path, data):
    messages = editing(tmp_path, "a.py")
    (tmp_path / "a.py").unlink()
    if data:
        (tmp_path / "a.py").write_bytes(data)
    [block] = ch07.recover(messages, 5000)
    assert block["text"].startswith(f"{ch07.ATTACHED}a.py]\n(")


def test_attached_files_are_attached_again_but_not_summarised(s06, monkeypatch, tmp_path):
    client = install(s06, monkeypatch, reply(DRAFT), reply(DRAFT))
    messages = [*editing(tmp_path, "a.py"), assistant(big(9000))]
    assert s06.compact_history(messages) == ""
    (tmp_path / "a.py").write_text("NEWEST")
    messages += [assistant(big(9000)), user("on")]
    assert s06.compact_history(messages) == ""
    assert "NEWEST" in str(messages[0]) and "NEW a.py" not in client.summaries[1]


@pytest.mark.parametrize(
    "draft",
    ["", "a summary", "<analysis>x</analysis>", "<summary>cut", "<summary> </summary>"]
    + ["<analysis><summary>x</summary></analysis> nothing"],
)
def test_a_draft_without_a_summary_changes_nothing(s06, monkeypatch, capsys, draft):
    install(s06, monkeypatch, reply(draft))
    messages = session(5)
    before = str(messages)
    assert "compaction failed" in s06.compact_history(messages)
    assert str(messages) == before


def test_the_analysis_is_thrown_away(s06, monkeypatch):
    client = install(s06, monkeypatch, reply(DRAFT))
    messages = session(30)
    s06.compact_history(messages)
    assert "1. Request: go" in str(messages) and "first this" not in str(messages)
    sections = "intent concepts files errors solving messages pending current next".split()
    assert [word for word in sections if word not in client.summaries[0].lower()] == []


def test_three_failures_in_a_row_and_automatic_compaction_rests(s06, monkeypatch, capsys):
    client = install(s06, monkeypatch, *[reply("no summary")] * 3)
    messages = full([user("go"), assistant(big(36_000)), user("on")], 0.95)
    for _ in range(5):
        ch07.graded_compact(messages)
    assert len(client.requests) == 3 and "rests after failures" in capsys.readouterr().out


# --- the faults of the published original ----------------------------------------------------


def test_a_compaction_inside_a_tool_loop_leaves_every_result_with_its_call(s06, monkeypatch):
    client = install(s06, monkeypatch, reply(DRAFT), reply(call("n", "bash", command="echo hi")))
    client.replies.append(reply("done"))
    assert ch07.agent_loop(full(session(30), 0.9))
    assert [problems(request) for request in client.requests] == [[], [], []]
    assert results(client.steps[0]["messages"]) == [session(30)[-1]["content"][0]["content"]]


def test_the_last_answer_is_not_forgotten_by_a_compaction(s06, monkeypatch):
    client = install(s06, monkeypatch, reply(DRAFT))
    messages = [*session(30), assistant("the answer is FORTYTWO")]
    s06.run_command(messages, "/compact")
    assert "FORTYTWO" in client.summaries[0] and len(messages) == 1


def test_few_messages_are_compacted_when_they_are_large(s06, monkeypatch):
    install(s06, monkeypatch, reply(DRAFT))
    messages = full([user(big(36_000)), assistant("ok"), user("on")], 0.95)
    assert ch07.graded_compact(messages)["compact"] > 5000


def test_another_pattern_does_not_erase_the_first(s06):
    greps = [running(command=f"grep -n {word} a.py") for word in ("one", "two", "three", "four")]
    assert snipped(conversation(*greps, *greps[:1])) == [0]


@pytest.mark.parametrize("cold", [False, True])
def test_what_the_model_has_not_read_is_never_touched(s06, knobs, cold, monkeypatch):
    knobs(PAYS=0, SNIP_KEEP=0, IDLE_KEEP=0)
    install(s06, monkeypatch, reply(DRAFT))
    messages = full(conversation(*[running(big(40_000))] * 2), 0.95)
    ch07.METER.last_call = int(cold)
    ch07.graded_compact(messages)
    assert results(messages)[-1] == big(40_000)


def test_every_original_is_on_disk_before_it_is_edited(s06, knobs):
    knobs(PAYS=0)
    messages = full(conversation(*[running(big(9000, f"R{n}")) for n in range(9)]), 0.8)
    originals = results(messages)
    assert ch07.graded_compact(messages) and results(messages) != originals
    assert results(lines_of(s06.STATE.path)) == originals


def test_without_an_archive_nothing_is_edited(s06, knobs, tmp_path, monkeypatch, capsys):
    knobs(PAYS=0)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(s06, "TRANSCRIPT_DIR", tmp_path / "file")
    messages = full(session(40), 0.95)
    before = str(messages)
    assert ch07.graded_compact(messages) == {} and str(messages) == before


# --- the invariants --------------------------------------------------------------------------

OUTPUTS = st.sampled_from(["ok", "Error: no", big(300), big(3000), big(20_000), "\u6587" * 400])
CALLS = st.sampled_from([running(), running(command="date"), reading(), reading(offset=2)])
EXCHANGES = st.lists(
    st.tuples(OUTPUTS, CALLS).map(lambda both: (both[0], *both[1][1:])), max_size=14
)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(EXCHANGES, st.floats(0, 1.5), st.sampled_from([0, 1, 4]), st.booleans(), st.booleans())
def test_any_history_stays_valid_and_whole_on_disk(s06, exchanges, share, pays, cold, claude):
    s06.STATE, s06.client = s06.State(s06.Counter()), ScriptedClient([reply(DRAFT)] * 2)
    s06.MODEL, ch07.PAYS = "claude-haiku-5-5" if claude else "deepseek-x", pays
    messages = conversation(*exchanges)
    for message in messages[1::2]:
        message["content"].insert(0, thinking())
    originals, unread = results(messages), results(messages)[-1:]
    ch07.METER.last_call = int(cold)
    ch07.graded_compact(full(messages, share))
    assert results(messages)[-1:] == unread
    request = {"messages": s06.with_cache_marks(messages), "tools": s06.TOOLS}
    assert problems(request) == []
    assert "thinking" in str(messages[1:]) or claude or len(messages) < 2
    disk = [r for f in s06.TRANSCRIPT_DIR.glob("*.jsonl") for r in results(lines_of(f))]
    assert [output for output in originals if output not in disk] == []


@pytest.mark.parametrize("profile", ["claude", "deepseek"])
def test_no_request_is_refused_in_either_world_of_thinking(
    s06, practice, tmp_path, monkeypatch, knobs, profile
):
    knobs(PAYS=0.2, MODEL_WINDOW=9000)
    monkeypatch.setattr(s06, "PRESERVE_RESULT_TOOLS", set())
    api = practice(profile=profile)
    monkeypatch.setattr(s06, "MODEL", "claude-haiku-5-5" if profile == "claude" else "deepseek-x")
    for number in range(14):
        (tmp_path / f"m{number:02}.py").write_text(f"MARK = {number}\n" + "x = 1\n" * 400)
    messages = [user("Read every Python file in ./ one by one")]
    assert ch07.agent_loop(messages)
    s06.add(messages, "user", "Use the compact tool to manually compress the conversation")
    assert ch07.agent_loop(messages)
    assert [record["error"] for record in api.requests if record["status"] != 200] == []
    assert not any(problems(record["body"]) for record in api.requests)
    assert any("compressed" in str(record["body"]["messages"][0]) for record in api.requests)


def test_the_request_is_carried_over_as_it_is_from_compaction_to_compaction(
    s06, monkeypatch, tmp_path
):
    (tmp_path / "a.py").write_text("A = 1\n")
    install(s06, monkeypatch, *[reply(DRAFT)] * 4)
    messages = conversation(reading(big(9000)), running())
    messages[0]["content"] = "ZEBRA-42"
    for number in range(4):
        assert s06.compact_history(messages) == ""
        messages += exchange(f"more{number}", big(9000), "read_file", path="a.py")
        messages += exchange(f"last{number}", "x", "bash", command="ls")
    assert str(messages[0]).count("ZEBRA-42") == 1
    assert str(messages[0]).count(s06.COMPRESSED) == 1


# --- the terminal ----------------------------------------------------------------------------


@pytest.fixture
def terminal(s06, monkeypatch, capsys):
    """terminal("typed lines", "--flag") runs the program: (exit status, what it printed)."""
    monkeypatch.setattr(practice_api, "PracticeAPI", practice_api.PracticeAPI)
    for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")

    def run(typed, *argv):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
        monkeypatch.setattr(tempfile, "tempdir", os.getcwd())
        try:
            status = ch07.main(list(argv))
        except SystemExit as leaving:
            status = leaving.code
        output = capsys.readouterr()
        return status, output.out + output.err

    return run


def test_the_demo_makes_every_layer_fire_and_names_it(terminal):
    status, shown = terminal("", "--demo")
    words = (
        "cap: 50,000",
        "is cut here",
        "budget -",
        "snip -",
        "idle -",
        "clear -",
        "compact -",
        "Attached again",
        "CHANGED",
    )
    assert status == 0 and [word for word in words if word not in shown] == []


def test_commands_say_utilization(terminal):
    typed = "Run `echo hello`\n/cost\n/compact\n/clear\nq\n"
    status, shown = terminal(typed, "--offline")
    assert status == 0 and "ch07 >> " in shown and "hello" in shown
    assert shown.count("%]") == 5


@pytest.mark.parametrize(
    "knob, value",
    [
        ("RESERVE", -1),
        ("PAYS", "x"),
        ("MODEL_WINDOW", 100),
        ("IDLE_KEEP", 2.5),
        ("SNIPPABLE_TOOLS", "bash"),
        ("RECOVER_FILES", "5"),
    ],
)
def test_a_nonsense_knob_ends_with_one_line_that_names_it(terminal, knobs, knob, value):
    knobs(**{knob: value})
    status, shown = terminal("", "hello")
    assert status == 2 and f"{knob} = {value!r}" in shown and len(shown.splitlines()) == 1


def test_the_gauge_shows_utilization_and_what_each_layer_did(s06, knobs):
    knobs(MODEL_WINDOW=200_000, RESERVE=20_000)
    freed = s06.Counter(budget=1200, snip=3400)
    shown = ch07.gauge(full(session(2), 62_000 / 180_000), freed)
    assert shown == "[ctx 62,000/180,000 34% budget -1,200 snip -3,400]"


def test_system_says_what_the_notes_of_this_lesson_mean(s06):
    assert all(word in s06.SYSTEM for word in ("snipped", "cleared", "budgeted", "Attached again"))
    assert text(s06.SYSTEM)["text"].isascii()
