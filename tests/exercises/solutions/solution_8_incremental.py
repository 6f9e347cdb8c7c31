"""Exercise 8: incremental summaries.

Now the summaries grow: each compaction adds one and none goes. Fold them (by the shipped way) when
the compressed message is, say, a tenth of THRESHOLD. What is won: old facts are never told again
in other words, and a later summary request is shorter. What is lost: a state that was true once
("two tests fail") stays in the text beside the newer one.
"""
# ruff: noqa: F821  (the names are those of the lesson: paste this above `if __name__`)

summarise_all = summarise


def summarise(history, focus):
    """The old summary as it is, then one of what has happened since."""
    first, *rest = blocks_of(history[0])
    text = first.get("text", "")
    if not text.startswith(COMPRESSED):
        return summarise_all(history, focus)
    old = text.partition("\n\n")[2]
    old = re.split(r"\n\nCalls before this point|\n\n\[The user's request", old)[0]
    request = still_open(history[:1])[1]
    begin = {"role": "user", "content": [{"type": "text", "text": request or CONTINUE}, *rest]}
    return f"{old}\n\n{summarise_all([begin, *history[1:]], focus)}"
