"""Exercise 5: a tool that searches the transcripts.

A transcript is the history line by line, so load() is all it takes. The decorator tells the model
the docstring and the parameter; the loop caps and archives what the tool returns.
"""
# ruff: noqa: F821  (the names are those of the lesson: paste this above `if __name__`)


@tool("search_transcripts")
def search_transcripts(word: str) -> str:
    """Search the results of earlier calls for a word; they are whole in the transcripts."""
    lines = []
    for path in sorted(TRANSCRIPT_DIR.glob("*.jsonl")):
        with suppress(ValueError, OSError):
            for result in (b for m in load(path) for b in blocks_of(m, "tool_result")):
                text = text_of(result)
                at = text.find(word)
                if at >= 0:
                    lines.append(f"{path.name}: {text[max(0, at - 100) : at + 100]!r}")
    return "\n".join(lines[:20]) or f"no result holds {word}"
