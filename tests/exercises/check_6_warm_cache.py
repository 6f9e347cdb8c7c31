"""Exercise 6. Make the cache warm: set CLEAR_AT_LEAST = 5000.

Layer 1 then clears rarely and much at once. The context gets larger and the bill smaller: why?
Try 1000 and 20000, too. (With a key, /cost shows the same three numbers for your own session.)

    python -m pytest -q -s tests/exercises/check_6_warm_cache.py
"""

from exercise import ask, files, start


def test_clearing_less_often_costs_less(agent):
    files(agent, 24, lines=100)
    mine = agent.CLEAR_AT_LEAST
    bills = {}
    for value in sorted({0, mine}):
        client = start(agent)
        agent.PRESERVE_RESULT_TOOLS, agent.CLEAR_AT_LEAST = set(), value
        ask(agent, [], "Read every Python file in lib/ one by one")
        bills[value] = client.bill
        used = [r["usage"] for r in client.api.requests]
        kinds = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        sums = ", ".join(f"{kind} {sum(u[kind] for u in used):,}" for kind in kinds)
        print(f"CLEAR_AT_LEAST = {value}: {sums}; bill {client.bill:,}")
    assert mine > 0, "the exercise: CLEAR_AT_LEAST = 5000"
    assert bills[mine] < 0.9 * bills[0], "at least a tenth cheaper"
