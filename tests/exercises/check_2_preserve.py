"""Exercise 2. Set PRESERVE_RESULT_TOOLS = set().

Layer 1 now clears read_file, too, and the context stays smaller. Ask a question about a file that
was read long ago: what can the model answer, and where is the text of the file now?

    python -m pytest -q -s tests/exercises/check_2_preserve.py
"""

from exercise import ask, cleared, files, results, start


def test_cleared_files_leave_the_context_but_not_the_disk(agent):
    start(agent, mine="PRESERVE_RESULT_TOOLS")
    files(agent, 8)
    messages = []
    ask(agent, messages, "Read every Python file in lib/ one by one")
    assert agent.PRESERVE_RESULT_TOOLS == set(), "the exercise: PRESERVE_RESULT_TOOLS = set()"
    assert cleared(messages)[1:] == [True] * 5 + [False] * 3
    # What is cleared cannot be answered from the context ...
    assert "= 37" not in ask(agent, messages, "What is MARK_01?")
    assert "= 259" in ask(agent, messages, "What is MARK_07?")
    # ... but the transcript has it, byte for byte.
    texts = results(agent.load(agent.STATE.path))
    assert all(path.read_text() in texts for path in (agent.WORKDIR / "lib").iterdir())
