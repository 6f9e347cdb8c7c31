"""The measurements measure what they say: see tests/bench. Short sessions, no tokenizer."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
from fakes import assistant, call, result, session, text, user

sys.path.insert(0, str(Path(__file__).with_name("bench")))

import accuracy
import compare
import generate
import practice_api
import replay
import sawtooth


@pytest.fixture(autouse=True)
def no_tokenizer(agent, monkeypatch):
    """Characters / 3.44, whatever the developer's environment says; the agent as it was."""
    for name in replay.SHIPPED:
        monkeypatch.setattr(agent, name, getattr(agent, name, None), raising=False)
    monkeypatch.setenv("TOKENIZER_WHEEL", "")
    replay.use_wheel("")


def blocks(letters):
    """[(key, tokens), ...]: a block of 10 tokens for every letter."""
    return [(letter, 10) for letter in letters]


# --- the prompt cache ------------------------------------------------------------------------


def test_a_marked_prefix_is_written_once_and_then_read():
    cache = replay.PromptCache()
    assert cache.ask(blocks("abc"), [1]) == (0, 20, 10)
    assert cache.ask(blocks("abcd"), [3]) == (20, 20, 0)


def test_a_changed_block_makes_all_behind_it_new():
    cache = replay.PromptCache()
    cache.ask(blocks("abcd"), [0, 3])
    assert cache.ask(blocks("aXcd"), [3]) == (10, 30, 0)


@pytest.mark.parametrize("added, read", [(19, 10), (20, 0)])
def test_an_entry_is_found_twenty_places_back_and_no_further(added, read):
    cache = replay.PromptCache()
    cache.ask(blocks("a"), [0])
    assert cache.ask(blocks("a" + "b" * added), [added])[0] == read


def test_without_marks_nothing_is_cached():
    cache = replay.PromptCache()
    assert cache.ask(blocks("abc"), []) == cache.ask(blocks("abc"), []) == (0, 0, 30)


def test_a_prefix_below_the_minimum_is_not_cached():
    cache = replay.PromptCache(minimum=30)
    assert cache.ask(blocks("ab"), [1]) == (0, 0, 20)
    assert cache.ask(blocks("abc"), [1, 2]) == (0, 30, 0)


def test_it_agrees_with_the_cache_of_the_practice_api():
    """Request by request over a session in which both layers fire."""
    ours, theirs, meter = replay.PromptCache(), practice_api.PromptCache(), []

    def watch(agent, messages, _):
        request = replay.marked(messages, "tail")
        body = {"model": "claude-haiku-5-5", "messages": request}
        flat = [(m["role"], block) for m in request for block in replay.as_blocks(m)]
        known = [(replay.key_of(*b, {}), practice_api.block_tokens(b[1])) for b in flat]
        usage = theirs.usage(body)
        names = "cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens"
        meter.append((ours.ask(known, [len(flat) - 1]), tuple(usage[name] for name in names)))

    row = compare.row_of("both layers, as shipped") | {"knobs": {"THRESHOLD": 8000}}
    replay.replay(replay.analyse(generate.generate(30)), row, watch=watch)
    assert all(mine == other for mine, other in meter)
    assert sum(read for (read, _, _), _ in meter) > 0


# --- what is needed, what is kept ------------------------------------------------------------


def test_needed_is_what_only_tool_results_have_shown():
    given = {"path": "src/a.py", "old_text": "x = make_order(1)", "new_text": "y"}
    messages = [
        user("look at src/b.py"),
        assistant(call("t1", "bash", command="grep new_name")),
        user(result("t1", "src/a.py: x = make_order(1)\nsrc/b.py: new_name")),
        assistant(call("t2", "edit_file", **given), call("t3", "bash", command="cat src/b.py")),
    ]
    shown = ["make_order", "src/a.py", "x = make_order(1)"]
    assert replay.needed_strings(messages) == [[], [(word, ["t1"]) for word in shown]]


def test_the_meter_sees_what_is_needed_and_still_there():
    recording = {"messages": [*session(1), assistant(text("ok"))]}
    meter = replay.Meter(replay.analyse(recording), replay.PRICES)
    meter.measure(recording["messages"][:3], True, [("R0-HEAD", ["t0"]), ("gone", [])])
    assert (meter.visible, meter.needed) == (1, 2)


@pytest.mark.parametrize("name", ["both layers, as shipped", "Layer 2 alone", "PRESERVE = set()"])
def test_the_lesson_loses_nothing_and_is_never_refused(name):
    row = compare.row_of(name)
    row["knobs"] = row["knobs"] | {"THRESHOLD": 8000}
    sums = replay.replay(replay.analyse(generate.generate(40)), row)
    assert (sums["kept"], sums["refused"]) == (sums["bytes"], 0)
    assert sums["bill"] < sums["plain"]


def test_the_well_known_version_loses_what_it_cleared():
    sums = replay.replay(
        replay.analyse(generate.generate(40)), compare.row_of("well-known version")
    )
    assert sums["kept"] < sums["bytes"]


# --- the session, the table, the picture -----------------------------------------------------


def test_the_generated_session_never_changes():
    data = json.dumps(generate.generate(), sort_keys=True).encode()
    assert hashlib.sha256(data).hexdigest()[:16] == "be8a7fc277e2a4fa"


def test_the_table_has_a_cell_under_every_heading():
    sums = replay.replay(replay.analyse(generate.generate(20)), compare.row_of("Layer 1 alone"))
    lines = compare.table({"Layer 1 alone": sums}).splitlines()
    assert {line.count("|") for line in lines} == {len(compare.HEADER) + 1}


def test_the_samples_of_the_accuracy_table_are_long_enough():
    assert all(5000 < len(sample) < 10_000 for sample in accuracy.samples().values())


def test_the_picture_is_up_to_date():
    """If not: python tests/bench/sawtooth.py, and look at it."""
    assert sawtooth.SVG.read_text(encoding="utf-8") == sawtooth.svg(sawtooth.series())
