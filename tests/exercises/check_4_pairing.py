"""Exercise 4. Break a pairing on purpose, and read what the API says.

Change micro_compact so that it deletes an old tool_result instead of replacing its content. It
looks tidier, and saves a few tokens more. (A message that becomes empty needs some text instead,
or the API complains of that first.) What does it answer? And what has become of the conversation
after that?

    python -m pytest -q -s tests/exercises/check_4_pairing.py
"""

from exercise import ask, files, start


def test_a_call_without_its_result_is_refused(agent):
    client = start(agent)
    agent.PRESERVE_RESULT_TOOLS = set()
    files(agent, 6)
    ask(agent, [], "Read every Python file in lib/ one by one")
    print(*client.refusals, sep="\n")
    assert client.refusals, "the API accepted every request: each call has its result"
    assert "`tool_use` ids were found without `tool_result` blocks" in client.refusals[0]
