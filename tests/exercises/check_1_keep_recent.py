"""Exercise 1. Set KEEP_RECENT = 0 in agents/s06_context_compact.py.

Before you run this, say what Layer 1 clears now, and when. Is there a result that the model never
gets to see? Can it still work? Try also PRESERVE_RESULT_TOOLS = set() beside it.

    python -m pytest -q -s tests/exercises/check_1_keep_recent.py
"""

from exercise import ask, cleared, files, start


def test_what_is_read_goes_and_what_is_unread_stays(agent):
    client = start(agent, mine="KEEP_RECENT")
    agent.PRESERVE_RESULT_TOOLS = set()
    files(agent, 6)
    messages = []
    answer = ask(agent, messages, "Read every Python file in lib/ one by one")
    assert agent.KEEP_RECENT == 0, "the exercise: KEEP_RECENT = 0"
    # The newest result stays, whatever the knob says: it was in the last message when it was sent.
    assert cleared(messages) == [False, True, True, True, True, True, False]  # ls is short
    # The work gets done: the plan and the calls are still there, so no file is read twice.
    assert len(client.reads()) == len(set(client.reads())) == 6
    # But what stood in the files is gone from the context.
    assert answer.count("no longer in my context") == 5
