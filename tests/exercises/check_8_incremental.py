"""Exercise 8. Incremental summaries: keep the old summary as it is, summarise only what is new.

As shipped, a later compaction asks for a summary of the old summary and of what followed; each
time the oldest facts are told again in other words. Change summarise(): when the history begins
with a compressed message, leave its summary out of what the model is shown, and return the old
summary, a blank line, and the new one. What grows now, and when would you fold it?

    python -m pytest -q -s tests/exercises/check_8_incremental.py
"""

from exercise import start
from fakes import ScriptedClient, assistant, call, reply, result, text, user


def test_the_old_summary_is_kept_word_by_word(agent):
    start(agent)
    words = ["ALPHA: the parser is done.", "BETA: the tests pass.", "GAMMA: the docs are written."]
    agent.client = client = ScriptedClient([reply(word) for word in words])
    messages = [user("Work through the list.")]
    for number in range(3):
        use = call(f"t{number}", "bash", command=f"step {number}")
        output = result(f"t{number}", f"output {number} " * 20)
        agent.join(messages, assistant(use))
        agent.join(messages, user(output))
        agent.join(messages, assistant(text(f"Step {number} is done.")))
        messages = agent.auto_compact(messages)
        assert len(messages) == 1
        assert all(word in messages[0]["content"] for word in words[: number + 1])
        assert f"output {number}" in client.summaries[number]
    later = client.summaries[1:]
    assert not any("ALPHA" in shown for shown in later), "the old summary is still summarised again"
    assert messages[0]["content"].count("ALPHA") == 1
    assert messages[0]["content"].count("Calls before this point") == 1
