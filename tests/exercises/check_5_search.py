"""Exercise 5. Replay and search a transcript: give the model a tool for it.

Add a tool `search_transcripts(word: str) -> str` with the decorator @tool, beside run_edit. It
goes through TRANSCRIPT_DIR, loads each transcript with load() and returns, for each tool_result
that holds the word, one line: the transcript's name and some 200 characters around the word. When
nothing is found it says so; it never fails on a file that is no transcript. blocks_of and text_of
are there to help.

    python -m pytest -q -s tests/exercises/check_5_search.py
"""

from exercise import ask, cleared, files, results, start
from practice_api import validate


def test_a_cleared_result_is_found_again(agent):
    assert "search_transcripts" in agent.TOOL_HANDLERS, "the exercise: add this tool"
    client = start(agent)
    agent.PRESERVE_RESULT_TOOLS = set()
    files(agent, 8)
    messages = []
    ask(agent, messages, "Read every Python file in lib/ one by one")
    assert cleared(messages)[1]
    assert "MARK_00 = 0" not in "".join(results(messages))
    (agent.TRANSCRIPT_DIR / "notes.jsonl").write_text("not a transcript\n{}\n")
    found = agent.run_tool("search_transcripts", {"word": "MARK_00"})
    assert "MARK_00 = 0" in found
    assert agent.STATE.path.name in found
    assert "value_0_29" not in found, "some 200 characters around the word, not the whole file"
    missing = agent.run_tool("search_transcripts", {"word": "nowhere_to_be_found"})
    assert missing.strip()
    assert not missing.startswith("Error:")
    # Replay: what a transcript holds is a conversation that the API would take.
    history = agent.load(agent.STATE.path)
    while history[-1]["role"] == "assistant":
        history.pop()
    body = {"model": "claude-haiku-5-5", "max_tokens": 100, "messages": history}
    agent.strip_thinking(history)  # it is bound to what was sent then
    validate(body | {"tools": agent.TOOLS})
    assert client.refusals == []
