"""Exercise 3. Why does SUMMARY_PROMPT name three dimensions? Drop one of them.

Delete "What was accomplished", or "Current state", from SUMMARY_PROMPT and run this. The practice
model summarises what it is asked for and nothing else. Look at the calls after the compaction.
Then try the other one; then put it back.

    python -m pytest -q -s tests/exercises/check_3_dimensions.py
"""

from exercise import ask, files, start


def test_a_poorer_summary_makes_the_model_go_wrong(agent):
    client = start(agent, mine="SUMMARY_PROMPT")
    agent.THRESHOLD = 2500
    files(agent, 8, lines=60)
    answer = ask(agent, [], "Read every Python file in lib/ one by one")
    summaries = [r for r in client.api.requests if not r["body"].get("tools")]
    assert summaries, "no compaction happened"
    reads = client.reads()
    again = len(reads) - len(set(reads))
    told = sum(f"MARK_{number:02}" in answer for number in range(8))
    blocks = [block for r in client.api.requests for block in r["content"] or []]
    plans = sum(block.get("text", "").startswith("Plan") for block in blocks)
    print(f"files read twice: {again}; plans made: {plans}; facts told: {told} of 8")
    went_wrong = again > 0 or plans > 1 or told < 8
    assert went_wrong, "the summary still holds all that the model needs: drop another dimension"
