"""Exercise 7. A layer of your own: a result that is the same as a newer one need not stand twice.

Write drop_repeats(messages): a tool_result whose text is longer than 100 characters and equals
that of a newer tool_result becomes "[Same as a newer result]". Call it in agent_loop, beside
Layer 1. The rules of Layer 1 hold: in place, never the last message, the block stays with its id,
twice changes nothing more. And mind what an edit does to the thinking behind it: strip_thinking
is there to help. (When drop_repeats is right, tests that count on repeated results may fail.)

    python -m pytest -q -s tests/exercises/check_7_own_layer.py
"""

import copy

from exercise import ask, files, results, start
from fakes import session


def test_repeated_results_are_noted_in_place(agent):
    assert hasattr(agent, "drop_repeats"), "the exercise: write drop_repeats(messages)"
    messages = session(4)
    old = copy.deepcopy(messages)
    for message in messages[2::2]:
        message["content"][0]["content"] = "x" * 200
    agent.drop_repeats(messages)
    assert results(messages) == ["[Same as a newer result]"] * 3 + ["x" * 200]
    ids = [block["tool_use_id"] for m in messages[2::2] for block in m["content"]]
    assert ids == [block["tool_use_id"] for m in old[2::2] for block in m["content"]]
    again = copy.deepcopy(messages)
    agent.drop_repeats(again)
    assert again == messages


def test_the_loop_uses_it_and_the_api_accepts_it(agent):
    client = start(agent)
    files(agent, 3)
    messages = []
    for _ in range(3):
        ask(agent, messages, "Read lib/m00.py")
        ask(agent, messages, "Read lib/m01.py")
    sent = client.api.requests[-1]["body"]["messages"]
    assert results(sent).count("[Same as a newer result]") == 4
    assert client.refusals == [], "thinking behind an edit is refused: see step 4 of micro_compact"
