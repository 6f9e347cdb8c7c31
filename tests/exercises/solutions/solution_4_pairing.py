"""Exercise 4: delete the old tool_result instead of clearing it.

The API answers 400: the call is still there, its result is not. The loop says so in one line and
stops; the history can be gone on with only when somebody puts a result back. That is why Layer 1
touches nothing but the content: the id stays, and with it the pairing.
"""
# ruff: noqa: F821  (the names are those of the lesson: paste this above `if __name__`)


def micro_compact(messages, clear_at_least=0, drop_thinking=False):
    """Layer 1, broken: whole blocks go."""
    results = [(m, b) for m in messages for b in blocks_of(m, "tool_result")]
    for message, block in results[: max(0, len(results) - KEEP_RECENT)]:
        if message is not messages[-1] and len(text_of(block)) > 100:
            message["content"] = [b for b in message["content"] if b is not block]
            message["content"] = message["content"] or "(cleared)"
    return messages
