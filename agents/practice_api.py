"""The other end of the wire: a strict Messages API on 127.0.0.1, for tests and lessons.

It refuses what the real API refuses, with the same status and words, so that a mistake in an
agent shows here and costs nothing. In order: validation, tokens and prompt cache, the practice
model, the server, the demo.

    with PracticeAPI() as api:
        client = anthropic.Anthropic(base_url=api.url, api_key="test")

But: there is no intelligence in it. Its practice model is a script that decides from the request
alone. Tokens are bytes / 4, cache entries never expire, nothing streams, no reply ends at
max_tokens.
"""

import argparse
import base64
import hashlib
import hmac
import json
import os
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import takewhile
from pathlib import Path
from posixpath import normpath

# ------------------------------------------------------------------------------------------------
# validation: the first broken rule raises ApiError

SHAPES = {  # object -> its fields; "name?" may be missing; the types of blocks stand last
    "request": "model messages max_tokens system? tools? tool_choice? stop_sequences? stream? "
    "metadata? thinking? output_config? cache_control? container? service_tier? speed? "
    "inference_geo? diagnostics?",
    "tool": "name input_schema type? description? cache_control? strict? defer_loading? "
    "input_examples? allowed_callers? eager_input_streaming?",
    "message": "role content",
    "cache_control": "type ttl?",
    "text": "type text cache_control? citations?",
    "tool_use": "type id name input caller? cache_control? toolset_name?",
    "tool_result": "type tool_use_id content? is_error? cache_control? toolset_name?",
    "thinking": "type thinking signature?",
    "redacted_thinking": "type data",
    "image": "type source cache_control?",
    "document": "type source cache_control? citations? title? context?",
    "search_result": "type source title content cache_control? citations?",
}
FIELDS_OF_TYPE = {  # a field that is not here may hold anything
    str: "model role name id text data tool_use_id description",
    list: "messages tools stop_sequences",
    dict: "input input_schema tool_choice metadata output_config caller",
    bool: "stream is_error strict",
    int: "max_tokens",
    str | list: "system content",
    dict | None: "cache_control",
    str | None: "signature toolset_name",
}
TYPE_OF = {name: kind for kind, names in FIELDS_OF_TYPE.items() for name in names.split()}
WORDS = {str: "string", dict: "dictionary", list: "list", bool: "boolean", int: "integer"}
BLOCKS = tuple(SHAPES)[4:]
BLOCKS_OF_RESULTS = ("text", "image", "document", "search_result")
THINKING = ("thinking", "redacted_thinking")
SIDES = {"tool_result": "user", "document": "user"}
SIDES |= dict.fromkeys(["tool_use", *THINKING], "assistant")
SECRET = b"practice"  # seals the signatures; no secret at all

EMPTY_MESSAGE = (
    "messages.{}: all messages must have non-empty content except for the optional final "
    "assistant message"
)
NO_RESULT = (
    "{}: `tool_use` ids were found without `tool_result` blocks immediately after: {}. Each "
    "`tool_use` block must have a corresponding `tool_result` block in the next message."
)
NO_CALL = (
    "{}: unexpected `tool_use_id` found in `tool_result` blocks: {}. Each `tool_result` block must "
    "have a corresponding `tool_use` block in the previous message."
)
TWO_RESULTS = (
    "{}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {}"
)
NO_TOOLS = "Requests which include `tool_use` or `tool_result` blocks must define tools."
PREFILL = (
    "This model does not support assistant message prefill. "
    "The conversation must end with a user message."
)
FORGED = "{}: Invalid `signature` in `thinking` block"
MOVED = FORGED + ". The block is bound to a different conversation."
CHANGED = (
    "{}.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
    "modified. These blocks must remain as they were in the original response."
)
NO_THINKING = "The `content[].thinking` in the thinking mode must be passed back to the API."


class ApiError(Exception):
    """An answer other than 200: its HTTP status, error type and message."""

    def __init__(self, status, kind, message):
        super().__init__(f"{status} {kind}: {message}")
        self.status, self.type, self.message = status, kind, message


def need(condition, message):
    """Refuse the request with `message` unless the condition holds."""
    if not condition:
        raise ApiError(400, "invalid_request_error", message)


def validate(body, *, profile="claude", window=200_000, beta=False):
    """Return None for a request that the API accepts, raise ApiError for the first broken rule."""
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        need(False, f"The request body is not valid JSON: {error}")
    check_request(body, profile, beta)
    check_tools(body)
    for i, block in enumerate(as_blocks(body.get("system", []))):
        check_block(f"system.{i}", block, ("text",))
    check_messages(body["messages"])
    check_pairs(body)
    types = {block["type"] for _, _, block in in_messages(body)}
    need(body.get("tools") or not types & {"tool_use", "tool_result"}, NO_TOOLS)  # R19
    if profile == "deepseek":
        check_thinking_comes_back(body["messages"])
    else:
        need(body["messages"][-1]["role"] == "user", PREFILL)  # R14
        check_signatures(body)
        check_cache_marks(body)
    tokens = count_tokens(body)
    need(tokens <= window, f"prompt is too long: {tokens} tokens > {window} maximum")  # R22


def check_shape(where, value, shape):
    """R5: refuse a missing, unknown or mistyped field of the object at `where`."""
    need(isinstance(value, dict), f"{where.rstrip('.')}: Input should be a valid dictionary")
    names = SHAPES[shape].split()
    for name in names:
        need(name in value or name.endswith("?"), f"{where}{name}: Field required")
    for name, content in value.items():
        known = name in names or f"{name}?" in names
        need(known, f"{where}{name}: Extra inputs are not permitted")
        kind = TYPE_OF.get(name, object)
        word = WORDS.get(getattr(kind, "__args__", [kind])[0])
        need(isinstance(content, kind), f"{where}{name}: Input should be a valid {word}")


def check_request(body, profile, beta):
    """R4 and R21, the top level; a beta header allows the field context_management."""
    need(isinstance(body, dict), "Input should be a valid dictionary")
    hidden = ["context_management"] if beta else []
    check_shape("", {name: body[name] for name in body if name not in hidden}, "request")
    model, limit = body["model"], body["max_tokens"]
    if profile == "claude" and not model.startswith("claude-") and model != "practice":
        raise ApiError(404, "not_found_error", f"model: {model}")
    need(limit >= 0, "max_tokens: Input should be greater than or equal to 0")
    words = "which is the maximum allowed number of output tokens for"
    need(limit <= 128_000, f"max_tokens: {limit} > 128000, {words} {model}")


def check_tools(body):
    """R17 and R20: tool definitions and tool_choice."""
    tools, choice = body.get("tools", []), body.get("tool_choice")
    for i, tool in enumerate(tools):
        where = f"tools.{i}.custom."
        check_shape(where, tool, "tool")
        need((tool.get("type") or "custom") == "custom", f"tools.{i}: Input tag is not 'custom'")
        check_name(f"{where}name", tool["name"], "^[a-zA-Z0-9_-]{1,64}$")
        is_object = tool["input_schema"].get("type") == "object"
        need(is_object, f"{where}input_schema.type: Input should be 'object'")
    unique = len({tool["name"] for tool in tools}) == len(tools)
    need(unique, "tools: Tool names must be unique.")
    if choice is not None:
        need(tools, "tool_choice may only be specified while providing tools.")
        kind = choice.get("type")
        need(kind in ("auto", "any", "tool", "none"), f"tool_choice: Input tag {kind!r} is unknown")
        strict = body["model"].startswith(("claude-opus-5-5", "claude-fable-5"))
        forced = strict and kind in ("any", "tool")
        need(not forced, "tool_choice: Forced tool use is not supported for this model.")


def check_name(where, name, pattern):
    """R17: names and ids are made of plain characters."""
    need(re.search(pattern, name), f"{where}: String should match pattern '{pattern}'")


def check_messages(messages):
    """R6, R7, R12, R13, R16: roles, and blocks that fit them."""
    need(messages, "messages: at least one message is required")
    for i, message in enumerate(messages):
        check_shape(f"messages.{i}.", message, "message")
        role, where = message["role"], f"messages.{i}.role"
        need(role != "system", f"{where}: role 'system' is not supported by this model")
        need(role in ("user", "assistant"), f"{where}: Input should be 'user' or 'assistant'")
        last = role == "assistant" and i == len(messages) - 1
        need(message["content"] or last, EMPTY_MESSAGE.format(i))
    first = messages[0]["role"]
    need(first == "user", 'messages: first message must use the "user" role')
    for where, role, block in in_messages({"messages": messages}):
        check_block(where, block, BLOCKS)
        kind, message = block["type"], where.rpartition(".content")[0]
        side = SIDES.get(kind, role)
        need(side == role, f"{message}: `{kind}` blocks can only be in `{side}` messages")
        cited = (role, kind) == ("user", "text") and block.get("citations")
        need(not cited, f"{where}.text.citations: Extra inputs are not permitted")


def check_block(where, block, allowed):
    """R5, R13, R17, R18: one block whose type must be among `allowed`."""
    tag = block.get("type") if isinstance(block, dict) else None
    words = "found using 'type' does not match any of the expected tags"
    need(tag in allowed, f"{where}: Input tag {tag!r} {words}: {', '.join(allowed)}")
    check_shape(f"{where}.{tag}.", block, tag)
    if tag == "text":
        check_text(where, block)
    elif tag == "tool_use":
        check_name(f"{where}.{tag}.id", block["id"], "^[a-zA-Z0-9_-]+$")
    elif tag == "tool_result":
        check_name(f"{where}.{tag}.tool_use_id", block["tool_use_id"], "^[a-zA-Z0-9_-]+$")
        content = block.get("content", "")
        bare = block.get("is_error") and not content
        need(not bare, f"{where}.{tag}: content cannot be empty if `is_error` is true")
        for k, part in enumerate([] if isinstance(content, str) else content):
            check_block(f"{where}.{tag}.content.{k}", part, BLOCKS_OF_RESULTS)


def check_text(where, block):
    """R13 and R28: a text block holds something to read."""
    text, place = block["text"], where.partition(".")[0]
    marked = not text and block.get("cache_control")
    need(not marked, f"{where}.text: cache_control cannot be set for empty text blocks")
    need(text, f"{place}: text content blocks must be non-empty")
    need(text.strip(), f"{place}: text content blocks must contain non-whitespace text")


def check_pairs(body):
    """R8 to R11: a result in the next turn for every call, a call just before every result."""
    known, calls = set(), []
    rounds = turns(body)
    for blocks, following in zip(rounds, [*rounds[1:], []], strict=True):
        check_results(blocks, calls)
        calls = []
        for where, block in blocks:
            if block["type"] == "tool_use":
                need(block["id"] not in known, f"{where}: `tool_use` ids must be unique")
                known.add(block["id"])
                calls.append(block["id"])
        results = takewhile(lambda item: item[1]["type"] == "tool_result", following)
        answered = [block["tool_use_id"] for _, block in results]
        missing = [name for name in calls if name not in answered]
        message = blocks[-1][0].rpartition(".content")[0]
        need(not missing, NO_RESULT.format(message, ", ".join(missing)))


def check_results(blocks, calls):
    """R9 and R11: each result of a turn answers a call of the turn before, once."""
    seen = set()
    for where, block in blocks:
        if block["type"] == "tool_result":
            name = block["tool_use_id"]
            need(name in calls, NO_CALL.format(where, name))
            need(name not in seen, TWO_RESULTS.format(where, name))
            seen.add(name)


def check_thinking_comes_back(messages):
    """The rule of DeepSeek: whoever calls a tool after thinking sends the thinking back."""
    for message in messages:
        types = {block["type"] for block in as_blocks(message["content"])}
        need("tool_use" not in types or types & set(THINKING), NO_THINKING)


def check_signatures(body):
    """R25 to R27: thinking is ours, whole in the newest reply, and where it was made."""
    digest, found, newest = hashlib.sha256(), [], ""
    for where, role, block in rendered(body):
        message = where.rpartition(".")[0]
        newest = message if role == "assistant" else newest
        if block.get("type") in THINKING:
            claim = read_signature(block)
            need(claim, FORGED.format(where))
            found.append((where, message, claim, digest.hexdigest()))
        digest.update(canonical(role, block, sort_keys=True))
    places = [(k, n) for _, message, (_, k, n), _ in found if message == newest]
    whole = [(k + 1, n) for first, n in places if first == 1 for k in range(n)]
    need(places == whole, CHANGED.format(newest))
    for where, _, (prefix, _, _), true_prefix in found:
        need(prefix == true_prefix, MOVED.format(where))


def signature(prefix, k, n):
    """The signature of block k of n thinking blocks that follow the blocks with this hash."""
    claim = f"{prefix} {k} {n}"
    seal = hmac.new(SECRET, claim.encode(), "sha256").hexdigest()
    return base64.b64encode(f"{claim} {seal}".encode()).decode()


def read_signature(block):
    """(prefix, k, n) of a thinking block that we signed, or None."""
    signed = block.get("signature", block.get("data"))
    try:
        prefix, k, n, _ = base64.b64decode(signed).decode().split()
        claim = prefix, int(k), int(n)
    except (TypeError, ValueError):
        return None
    return claim if signature(*claim) == signed else None


def sign(body, content):
    """Sign the thinking blocks of this reply to `body`; one that has a signature keeps it."""
    digest, done = hashlib.sha256(), 0
    for _, role, block in rendered(body):
        digest.update(canonical(role, block, sort_keys=True))
    total = sum(block["type"] == "thinking" for block in content)
    for block in content:
        if block["type"] == "thinking":
            done += 1
            block.setdefault("signature", signature(digest.hexdigest(), done, total))
        digest.update(canonical("assistant", block, sort_keys=True))


def check_cache_marks(body):
    """R28: at most four marks, those of an hour before those of five minutes."""
    holders = [("", body), *((f"{where}.", block) for where, _, block in rendered(body))]
    for where, block in holders:
        mark = block.get("cache_control") or {"type": "ephemeral"}
        check_shape(f"{where}cache_control.ephemeral.", mark, "cache_control")
        fits = mark["type"] == "ephemeral" and mark.get("ttl", "5m") in ("5m", "1h")
        need(fits, f"{where}cache_control: Input should be 'ephemeral' with ttl '5m' or '1h'")
    ttls = [ttl for _, ttl in cache_marks(body)]
    words = "A maximum of 4 blocks with cache_control may be provided."
    need(len(ttls) <= 4, f"{words} Found {len(ttls)}.")
    need(ttls == sorted(ttls), "cache_control: ttl='1h' must not come after ttl='5m'")


# ------------------------------------------------------------------------------------------------
# the request as the model sees it; tokens and the prompt cache

IMAGE_TOKENS = 1600


def as_blocks(content):
    """A string is shorthand for one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content


def rendered(body):
    """Yield (where, role, block) for every block in the order tools, system, messages."""
    for role in ("tools", "system"):
        for i, block in enumerate(as_blocks(body.get(role, []))):
            yield f"{role}.{i}", role, block
    yield from in_messages(body)


def in_messages(body):
    """Yield (where, role, block) for every block of the messages."""
    for i, message in enumerate(body["messages"]):
        for j, block in enumerate(as_blocks(message["content"])):
            yield f"messages.{i}.content.{j}", message["role"], block


def turns(body):
    """[[(where, block), ...], ...]: neighbouring messages of one role are one turn."""
    found, before = [], None
    for where, role, block in in_messages(body):
        if role != before:
            found.append([])
        found[-1].append((where, block))
        before = role
    return found


def unmarked(value):
    """A copy without cache_control at any depth."""
    if isinstance(value, list):
        return [unmarked(item) for item in value]
    if isinstance(value, dict):
        return {key: unmarked(item) for key, item in value.items() if key != "cache_control"}
    return value


def canonical(role, block, sort_keys=False):
    """The bytes that stand for a block in a hash."""
    return json.dumps([role, unmarked(block)], ensure_ascii=False, sort_keys=sort_keys).encode()


def block_tokens(block):
    """The block's JSON in UTF-8 bytes / 4, rounded up; IMAGE_TOKENS for an image or document."""
    if block.get("type") in ("image", "document"):
        return IMAGE_TOKENS
    inner = block.get("content")
    if isinstance(inner, list):
        return block_tokens(block | {"content": ""}) + sum(map(block_tokens, inner))
    return -(-len(json.dumps(unmarked(block), ensure_ascii=False).encode()) // 4)


def count_tokens(body, count=block_tokens):
    """Tokens of tools, system and messages; `count` says how many one block has."""
    return sum(count(block) for _, _, block in rendered(body))


def cache_marks(body):
    """[(position, ttl)] of every cache mark, the automatic one of the top level included."""
    blocks = [block for _, _, block in rendered(body)]
    ttls = [(block.get("cache_control") or {"ttl": ""}).get("ttl", "5m") for block in blocks]
    if body.get("cache_control"):
        last = max(at for at, block in enumerate(blocks) if block.get("type") not in THINKING)
        ttl = body["cache_control"].get("ttl", "5m")
        need(ttls[last] in ("", ttl), "cache_control: two different ttl on the last block")
        ttls[last] = ttl
    return [(at, ttl) for at, ttl in enumerate(ttls) if ttl]


class PromptCache:
    """The prompt cache by its published rules, without expiry: entries only where marks stand.

    `minimum`: tokens below which a prefix is not cached; `count`: tokens of one block.
    """

    def __init__(self, minimum=0, count=block_tokens):
        self.minimum, self.count, self.entries = minimum, count, set()

    def usage(self, body, content=()):
        """The usage of the reply `content` to `body`; remembers the entries it writes."""
        digest, hashes, sizes = hashlib.sha256(body["model"].encode()), [], [0]
        for _, role, block in rendered(body):
            digest.update(canonical(role, block))
            hashes.append(digest.hexdigest())
            sizes.append(sizes[-1] + self.count(block))  # sizes[n]: the first n blocks
        marks = [(at, ttl) for at, ttl in cache_marks(body) if sizes[at + 1] >= self.minimum]
        last = marks[-1][0] + 1 if marks else 0
        hit = self.longest_hit(hashes, [at for at, _ in marks])
        hour = max([hit, *(at + 1 for at, ttl in marks if ttl == "1h")])
        self.entries.update(hashes[at] for at, _ in marks)
        return {
            "input_tokens": sizes[-1] - sizes[last],
            "output_tokens": sum(map(self.count, content)),
            "cache_read_input_tokens": sizes[hit],
            "cache_creation_input_tokens": sizes[last] - sizes[hit],
            "cache_creation": {
                "ephemeral_5m_input_tokens": sizes[last] - sizes[hour],
                "ephemeral_1h_input_tokens": sizes[hour] - sizes[hit],
            },
        }

    def longest_hit(self, hashes, marks):
        """How many blocks are read: from each mark, newest first, up to 20 blocks back."""
        for mark in reversed(marks):
            for at in range(mark, max(-1, mark - 20), -1):
                if hashes[at] in self.entries:
                    return at + 1
        return 0


# ------------------------------------------------------------------------------------------------
# the practice model: a script that decides from the request alone

HELP = """I am a script without intelligence, here to practise on. I can:
- Read every Python file in DIR one by one (or: several at once)
- Keep reading files until compression triggers automatically
- Use the compact tool to manually compress the conversation, focus on X
- Run `COMMAND`, Read FILE, Replace `a` with `b` in FILE
- answer a question from what stands in the context, and summarise it"""
LABEL = re.compile(r"(?mi)^\[([^\]\n]*user[^\]\n]*)\]\n")  # what stands above the request
PLAN = re.compile(r"Plan( again)?: \d+ files to read: (.+)")
ENTRY = re.compile(
    r"(?:\A|\n\n)(?:(user|assistant): |(call) ([\w-]+) (?={)|(result) of ([\w-]+): )"
)
FOLDER = re.compile(
    r"(?i)(?:\b(?:in|under|from|inside)\s+|[\u5728\u53d6]\s*)(?!parallel|order|one\b)"
    r"(?:the\s+)?(?:directory\s+|folder\s+)?([a-z0-9_./-]+)"
)
UNTIL = re.compile("(?i)until|\u76f4\u5230")
SEVERAL = re.compile("(?i)several|at once|parallel|\u540c\u65f6")
FOCUS = re.compile("(?i)(?:focus(?:ed|ing)? on|\u91cd\u70b9|\u805a\u7126|\u5173\u6ce8)(.+)")
COMMON = """what which who whom how many much does did the and that this are was were for from with
have has had you your there file files line lines about tell say says"""


@dataclass
class View:
    """What a request shows: the newest request of the user and what was done for it."""

    request: str = ""
    in_progress: bool = False  # a compaction happened while it was being worked on
    summary: str = ""
    trail: list = field(default_factory=list)  # (tool, argument) of calls before the compaction
    calls: list = field(default_factory=list)  # {"tool", "argument", "result"} of visible calls
    since: int = 0  # calls[since:] were made for the newest request
    texts: list = field(default_factory=list)  # what the assistant said since that request
    said: list = field(default_factory=list)  # what the assistant said at all


def practice_reply(body):
    """(content blocks, stop reason) of the script's answer to a request."""
    view = look(events(body["messages"]))
    offered = [tool["name"] for tool in body.get("tools", [])]
    if not offered and re.search("(?i)summar|\u6458\u8981|\u603b\u7ed3", view.request):
        system = "\n".join(block["text"] for block in as_blocks(body.get("system", "")))
        text, calls = summarise(f"{system}\n{view.request}"), []
    else:
        matches = ((re.search(pattern, view.request), act) for pattern, act in BEHAVIOURS)
        match, act = next((match, act) for match, act in matches if match)
        text, calls = act(view, match)
    lacking = [tool for tool, _ in calls if tool not in offered]
    if lacking:
        text, calls = f"I need the tool {lacking[0]}, which this request does not offer.", []
    content = [{"type": "text", "text": text}] if text else []
    seed = json.dumps(body["messages"])
    for number, (tool, inputs) in enumerate(calls):
        name = "toolu_" + hashlib.sha256(f"{number}{seed}".encode()).hexdigest()[:24]
        block = {"type": "tool_use", "id": name, "name": tool, "input": inputs}
        content.append(block | {"caller": {"type": "direct"}})
    return content, "tool_use" if calls else "end_turn"


def events(messages):
    """Yield (kind, key, value) for what happened: user, assistant, call, result."""
    for message in messages:
        for block in as_blocks(message["content"]):
            if block["type"] == "text":
                yield message["role"], "", block["text"]
            elif block["type"] == "tool_use":
                yield "call", block["id"], (block["name"], argument(block["input"]))
            elif block["type"] == "tool_result":
                parts = as_blocks(block.get("content", ""))
                text = "\n".join(part.get("text", "") for part in parts)
                yield "result", block["tool_use_id"], text


def events_of_text(data):
    """The same from the flat text that a summariser gets."""
    starts = list(ENTRY.finditer(data))
    for match, end in zip(starts, [*(m.start() for m in starts[1:]), len(data)], strict=True):
        text = data[match.end() : end].strip("\n")
        if match[2]:
            found = re.search(r'"(?:command|path|focus)": "((?:[^"\\]|\\.)*)"', text)
            yield "call", match[3], (match[3], json.loads(f'"{found[1]}"') if found else "")
        else:
            yield match[1] or "result", match[5] or "", text


def argument(inputs):
    """The main argument of a call."""
    return str(inputs.get("command") or inputs.get("path") or inputs.get("focus") or "")


def look(happened):
    """The View of a list of events."""
    view, waiting = View(), {}
    for kind, key, value in happened:
        if kind == "user" and value.startswith("[Conversation compressed"):
            read_compressed(view, value)
        elif kind == "user" and value.strip() != "(continue)":
            view.request, view.in_progress = value, False
            view.since, view.texts = len(view.calls), []
        elif kind == "assistant":
            view.texts.append(value)
            view.said.append(value)
        elif kind == "call":
            view.calls.append({"tool": value[0], "argument": value[1], "result": ""})
            waiting.setdefault(key, []).append(view.calls[-1])
        elif kind == "result" and waiting.get(key):
            cleared = value.startswith("[Previous: used ")
            waiting[key].pop(0)["result"] = "" if cleared else value
    return view


def read_compressed(view, text):
    """Take summary, trail and request from the message that a compaction leaves."""
    head, label, request = text, "", ""
    for match in LABEL.finditer(text):  # the last one counts
        head, label, request = text[: match.start()], match[1].lower(), text[match.end() :]
    rest = head.partition("\n\n")[2]
    view.summary, _, trail = rest.partition("\n\nCalls before this point")
    view.trail = re.findall(r"(?m)^- (\S+) ?(.*)$", trail)
    view.request = request.partition("\n[Go on from here")[0]
    view.in_progress = "in progress" in label


def facts(text):
    """What a file holds: its number of lines, first definitions and numbers, or first line."""
    cut = "+" if re.search(r"\[\.\.\. .*\d characters", text) else ""
    found = re.findall(r"(?m)^[ \t\d:|]*((?:def|class) \w+)", text)[:4]
    found += re.findall(r"(?m)^[ \t\d:|]*([A-Z_]{2,} = [\d_.]+)", text)[:3]
    first = next((line.strip() for line in text.splitlines() if line.strip()), "empty")
    return f"{len(text.splitlines())}{cut} lines, " + ", ".join(found or [first[:80]])


def files_read(view):
    """{path: facts} of every file that the context shows as read, "" where the facts are gone."""
    found = dict(re.findall(r"(?m)^- read (.+?): (.*)$", view.summary))
    if "accomplished" in view.summary:  # else nothing is known of the files on the trail
        reads = [path for tool, path in view.trail if tool == "read_file"]
        found = {**dict.fromkeys(map(normpath, reads), ""), **found}
    for call in view.calls:
        if call["tool"] == "read_file":
            path = normpath(call["argument"])
            found[path] = facts(call["result"]) if call["result"] else found.get(path, "")
    return found


def find_plan(view):
    """The files of the newest plan in sight, or None."""
    for text in reversed(view.texts):
        if PLAN.search(text):
            return PLAN.search(text)[2].split(", ")
    match = PLAN.search(view.summary) if view.in_progress else None
    if match and (match[1] or "accomplished" in view.summary):
        return match[2].split(", ")
    return None


def listing(request):
    """(command, pattern): how to list the files that a request names, and how they look."""
    named = FOLDER.search(request)
    folder = named[1].rstrip("/.") if named else ""
    folder = "." if folder in ("", "this", "current", "the", "directory", "folder") else folder
    until = UNTIL.search(request)
    ending = re.search(r"\*(\.\w+)|\s(\.\w+) file", request)
    name = "*.py" if until or re.search("(?i)python", request) else "*"
    name = "*" + (ending[1] or ending[2]) if ending else name
    if until:
        command = f'find {folder} -type f -name "{name}" -not -path "*/.*" | sort | head -200'
        return command, f"{folder}/{name}"
    return f"ls -1dp {folder}/{name}", f"{folder}/{name}"


def read_on(view, _):
    """List, plan, read the files of the plan, answer."""
    command, pattern = listing(view.request)
    plan, text, known = find_plan(view), "", files_read(view)
    if plan is None:
        calls = [call for call in view.calls[view.since :] if call["argument"] == command]
        if not calls or not calls[-1]["result"]:
            return "", [("bash", {"command": command})]
        lines = [line for line in calls[-1]["result"].splitlines() if not line.endswith("/")]
        plan = [normpath(line) for line in lines if fnmatchcase(line, pattern)]
        if not plan:
            return f"I found no file {pattern}: {calls[-1]['result'][:200]}", []
        again = " again" if view.in_progress else ""
        text = f"Plan{again}: {len(plan)} files to read: {', '.join(plan)}"
    left = [path for path in plan if path not in known]
    if left and not seen_enough(view):
        number = 5 if SEVERAL.search(view.request) else 1
        return text, [("read_file", {"path": path}) for path in left[:number]]
    lines = [f"- {path}: {known[path] or 'read, but no longer in my context'}" for path in known]
    lines = [line for line in lines if fnmatchcase(line, f"- {normpath(pattern)}: *")]
    return f"I have read {len(lines)} files ({pattern}).\n" + "\n".join(lines), []


def seen_enough(view):
    """Reading "until compaction" ends three files after one; the open exchange is a fourth."""
    reads = [call for call in view.calls if call["tool"] == "read_file"]
    return UNTIL.search(view.request) and view.in_progress and len(reads) > 3


def compact(view, match):
    """Call the compact tool once, then say what came of it."""
    done = [call for call in view.calls[view.since :] if call["tool"] == "compact"]
    if not done:
        focus = FOCUS.search(match[0])
        focus = {"focus": focus[1].strip(" .:\u3002\uff1a")} if focus else {}
        return "", [("compact", focus)]
    if view.in_progress and done[-1]["result"].startswith("Compressing"):
        return "The conversation is compressed. I go on from its summary.", []
    return f"The compact tool answered: {done[-1]['result']}", []


def run(view, match):
    """Run a command once, then tell what it printed."""
    done = [call for call in view.calls[view.since :] if call["tool"] == "bash"]
    if not done:
        return "", [("bash", {"command": match[1]})]
    lines = done[-1]["result"].splitlines()
    return f"The command printed {len(lines)} lines:\n" + "\n".join(lines[:5]), []


def read_one(view, match):
    """Read one file, then tell what it holds."""
    done = [call for call in view.calls[view.since :] if call["tool"] == "read_file"]
    if not done:
        return "", [("read_file", {"path": match[1]})]
    return f"{match[1]}: {facts(done[-1]['result'])}", []


def replace(view, match):
    """Read the file unless it is in sight, edit it, read it again."""
    old, new, path = match.groups()
    tools = [call["tool"] for call in view.calls[view.since :]]
    seen = any(call["argument"] == path and call["result"] for call in view.calls)
    if "edit_file" not in tools:
        edit = ("edit_file", {"path": path, "old_text": old, "new_text": new})
        return "", [edit if seen else ("read_file", {"path": path})]
    if tools[-1] == "edit_file" and not view.calls[-1]["result"].startswith("Error"):
        return "", [("read_file", {"path": path})]
    return f"{path}: {view.calls[-1]['result'][:200]}", []


def answer(view, _):
    """The lines of the context that share the rarest words with the question."""
    lines = view.summary.replace(" | ", "\n").splitlines()
    lines = [line for line in lines if not line.startswith(("- asked: ", "- read "))]
    lines += [f"{path}: {fact}" for path, fact in files_read(view).items()]
    found = best_lines(view.request, lines + lines_seen(view), 3)
    return "\n".join(found) or "The context that I see does not hold the answer.", []


def lines_seen(view):
    """The lines of all results, and what the assistant said."""
    texts = [call["result"] for call in view.calls] + view.said
    return [line for text in texts for line in text.splitlines()]


def best_lines(question, lines, limit):
    """Up to `limit` lines that share the rarest words with the question, best first."""
    asked = words_of(question) - words_of(COMMON)
    shared = {line.strip(): asked & words_of(line) for line in lines}
    common = Counter(word for words in shared.values() for word in words)
    score = {line: sum(1 / common[word] for word in shared[line]) for line in shared}
    ranked = sorted(filter(score.get, score), key=score.get, reverse=True)
    return [line for line in ranked[:limit] if score[line] > score[ranked[0]] / 2]


def words_of(text):
    """Words, names and paths of three letters or more."""
    return {word.strip("./-") for word in re.findall(r"[\w./-]{3,}", text.lower())}


def summarise(prompt):
    """A summary of the fenced data with those parts that the text around it names."""
    fenced = re.search(r"(?s)<data-(\w+)>\n(.*)\n</data-\1>", prompt)
    data = fenced[2] if fenced else prompt
    asked = prompt.replace(data, "") if fenced else prompt
    view = look(events_of_text(data))
    parts = [
        ("What was accomplished", "accomplished", accomplished),
        ("Current state", "current state", state),
        ("Key decisions", "key decisions", decisions),
    ]
    texts = [
        f"{title}:\n- " + "\n- ".join(part(view) or ["nothing"])
        for title, word, part in parts
        if word in asked.lower()
    ]
    focus = re.search("(?m)^Focus: (.+)$", asked)
    texts = focus_lines(view, focus[1] if focus else "") + texts
    return "\n\n".join(texts) or "No part of a summary was asked for."


def old_lines(view, title):
    """The lines of one part of the earlier summary."""
    part = re.search(rf"(?m)^{title}:\n((?:- .*\n?)*)", view.summary)
    return [line[2:] for line in part[1].splitlines() if line != "- nothing"] if part else []


def accomplished(view):
    """Files read, with their facts; commands and edits, with what came back."""
    old = [line for line in old_lines(view, "What was accomplished") if line[:5] != "read "]
    other = [call for call in view.calls if call["tool"] in ("bash", "edit_file", "write_file")]
    new = [" ".join(f"{c['tool']} {c['argument']}: {c['result'][:100]}".split()) for c in other]
    reads = [f"read {path}: {fact or 'facts lost'}" for path, fact in files_read(view).items()]
    return reads + list(dict.fromkeys(old + new))[-20:]


def state(view):
    """The request, and what remains of the plan."""
    known, plan = files_read(view), find_plan(view) or []
    left = [path for path in plan if path not in known]
    again = " again" if "Plan again" in "".join([view.summary, *view.texts]) else ""
    rest = [f"Plan{again}: {len(left)} files to read: {', '.join(left)}"] if left else []
    return [f"asked: {' '.join(view.request.split())[:300]}", *rest]


def decisions(view):
    """The approach chosen."""
    new = ["read in the order of the listing, no file twice"] if files_read(view) else []
    return list(dict.fromkeys(old_lines(view, "Key decisions") + new))


def focus_lines(view, focus):
    """["Focus: X: the lines that mention it"], behind those of earlier summaries."""
    old = re.findall("(?m)^Focus: .*$", view.summary)
    found = best_lines(focus, lines_seen(view), 6)
    if found:
        old = [line for line in old if not line.startswith(f"Focus: {focus}: ")]
        old.append(f"Focus: {focus}: " + " | ".join(line[:200] for line in found))
    return old[-5:]


BEHAVIOURS = [  # the first pattern found in the newest request decides
    (r"(?is)^\W*(?:please )?(?:use|\u4f7f\u7528).{0,9}compact.*", compact),
    (r"(?is)(?:read|\u8bfb).*(?:until|\u76f4\u5230)", read_on),
    (r"(?is)read\s+(?:every|each|all)\b|\u8bfb\u53d6.*(?:\u6240\u6709|\u6bcf)", read_on),
    (r"(?is)replace `(.+?)` with `(.*?)` in `?([\w./-]*\w)", replace),
    (r"(?is)^\W*(?:please )?(?:run|\u8fd0\u884c|\u6267\u884c)\b\s*(?:the command )?`?([^`]+)", run),
    (r"(?is)^\W*(?:please )?(?:read|\u8bfb\u53d6)\s+`?([\w-]*[./][\w./-]*\w)", read_one),
    (r"(?is)[?\uff1f]|what|which|how many|who|\u4ec0\u4e48|\u591a\u5c11", answer),
    ("", lambda view, match: (HELP, [])),
]


# ------------------------------------------------------------------------------------------------
# the server

ERRORS = {  # status -> error type, message
    400: ("invalid_request_error", "Bad request"),
    401: ("authentication_error", "invalid x-api-key"),
    403: ("permission_error", "Your API key does not have permission to use this resource"),
    404: ("not_found_error", "Not found"),
    413: ("request_too_large", "Request exceeds the maximum size"),
    429: ("rate_limit_error", "This request would exceed your rate limit"),
    500: ("api_error", "Internal server error"),
    502: ("api_error", "Bad gateway"),
    503: ("api_error", "Service unavailable"),
    529: ("overloaded_error", "Overloaded"),
}
SPOILED = {  # fault -> (content, stop reason) that it makes of a reply's content
    "empty": lambda content: ([], "end_turn"),
    "refusal": lambda content: ([], "refusal"),
    "unknown block": lambda content: ([{"type": "brand_new_block"}, *content], "end_turn"),
    "cut reply": lambda content: ([cut_in_half(block) for block in content], "max_tokens"),
}
BROKEN = {  # fault -> (bytes sent, content type, bytes that Content-Length promises beyond them)
    "html": (b"<html><body>Welcome</body></html>", "text/html", 0),
    "no body": (b"", "application/json", 0),
    "cut body": (b'{"id": "msg_', "application/json", 100),
}
UNANSWERED = ("timeout", "cut")


def cut_in_half(block):
    """A text block as max_tokens leaves it; others stay."""
    half = len(block.get("text", "")) // 2 + 1
    return block | {"text": block["text"][:half]} if block["type"] == "text" else block


def error(status, message=""):
    """The ApiError of a status, with its usual message unless there is another."""
    kind, usual = ERRORS.get(status, ERRORS[500])
    return ApiError(status, kind, message or usual)


class PracticeAPI:
    """The server as a context manager; `url` is where it listens.

    requests  every POST: {"path", "body", "status", "error", "content", "stop_reason", "usage"}
    replies   [(content blocks, stop reason)] that are given before the model is asked
    faults    what goes wrong, one per request: a status, (status, message), a key of SPOILED or
              BROKEN, "timeout", "cut", "no usage", "stop:REASON"; or a function of the body that
              returns one of these or None, which is asked again for each request
    retry     False tells the client not to try again after a fault
    """

    def __init__(
        self,
        port=0,
        profile="claude",
        window=200_000,
        model=practice_reply,
        key=None,
        thinking=True,
        max_body=32_000_000,
        cache_minimum=0,
        retry=True,
    ):
        self.rules = {"profile": profile, "window": window}
        self.model, self.key, self.thinking = model, key, thinking
        self.max_body, self.retry, self.cache = max_body, retry, PromptCache(cache_minimum)
        self.requests, self.faults, self.replies = [], [], []
        self.lock, self.closed = threading.Lock(), threading.Event()
        handler = type("Handler", (Handler,), {"api": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()

    def next_fault(self, body):
        """The fault for this request: a function is asked, anything else is used up."""
        for at, fault in enumerate(self.faults):
            fault = fault(body) if callable(fault) else self.faults.pop(at)
            if fault is not None:
                return fault
        return ""

    def answer(self, path, headers, raw):
        """(status, JSON object, fault) for a POST; recorded in `requests`."""
        record = {"path": path, "body": {}, "status": 200, "error": None, "content": None}
        record |= {"stop_reason": None, "usage": None}
        fault = ""
        with self.lock:
            self.requests.append(record)
            try:
                body = record["body"] = self.read(headers, raw)
                rules = {**self.rules, "beta": "anthropic-beta" in headers}
                if path == "/v1/messages/count_tokens":
                    validate(body | {"max_tokens": 1}, **rules)
                    return 200, {"input_tokens": count_tokens(body)}, ""
                if path != "/v1/messages":
                    raise error(404)
                fault = self.next_fault(body)
                validate(body, **rules)
                need(not body.get("stream"), "stream: this practice API does not stream")
                return 200, self.reply(body, fault, record), fault
            except ApiError as problem:
                record.update(status=problem.status, error=problem.message)
                words = {"type": problem.type, "message": problem.message}
                return problem.status, {"type": "error", "error": words}, fault

    def read(self, headers, raw):
        """R1 to R3: the body of a request that shows a key and a version."""
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        given = headers.get("x-api-key") or bearer
        if not given:
            raise error(401, "x-api-key header is required")
        if self.key and given != self.key:
            raise error(401)
        need("anthropic-version" in headers, "anthropic-version: header is required")
        known = headers["anthropic-version"] in ("2023-06-01", "2026-10-21")
        need(known, "anthropic-version: is not a known version")
        if len(raw) > self.max_body:
            raise error(413)
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        need(isinstance(body, dict), "The request body is not valid JSON")
        return body

    def reply(self, body, fault, record):
        """The message that answers a valid request, as the fault leaves it."""
        if isinstance(fault, (int, tuple)):
            raise error(*fault) if isinstance(fault, tuple) else error(fault)
        if fault in UNANSWERED or fault in BROKEN:
            record.update(status=None if fault in UNANSWERED else 200, error=fault)
            return {}
        content, stop = self.replies.pop(0) if self.replies else self.model(body)
        if body["max_tokens"] == 0:
            content, stop = [], "max_tokens"
        if fault in SPOILED:
            content, stop = SPOILED[fault](content)
        elif fault.startswith("stop:"):
            stop = fault.removeprefix("stop:")
        content = self.with_thinking(body, content)
        usage = self.cache.usage(body, content)
        record.update(content=content, stop_reason=stop, usage=usage)
        message = {"id": f"msg_{len(self.requests):024}", "type": "message", "role": "assistant"}
        message |= {"model": body["model"], "content": content, "stop_reason": stop}
        message |= {"stop_sequence": None, "stop_details": None}
        return message if fault == "no usage" else message | {"usage": usage}

    def with_thinking(self, body, content):
        """A copy of a reply that begins with thinking, signed as the profile does it."""
        content = [dict(block) for block in content]
        if self.thinking and content and content[0]["type"] != "thinking":
            content.insert(0, {"type": "thinking", "thinking": ""})
        if self.rules["profile"] == "deepseek":
            for block in content:
                block.update({"signature": ""} if block["type"] == "thinking" else {})
        sign(body, content)
        return content


class Handler(BaseHTTPRequestHandler):
    """HTTP around PracticeAPI.answer."""

    protocol_version = "HTTP/1.1"
    api = None

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        status, answer, fault = self.api.answer(self.path.partition("?")[0], self.headers, raw)
        if status == 200 and fault in UNANSWERED:
            if fault == "timeout":
                self.api.closed.wait()
            self.close_connection = True
        elif status == 200 and fault in BROKEN:
            self.send(200, fault, *BROKEN[fault])
            self.close_connection = True
        else:
            self.send(status, fault, json.dumps(answer).encode())

    def do_GET(self):
        words = {"type": "not_found_error", "message": "Not found"}
        self.send(404, "", json.dumps({"type": "error", "error": words}).encode())

    def send(self, status, fault, data, kind="application/json", missing=0):
        """Send an answer whose Content-Length promises `missing` bytes more than there are."""
        self.send_response(status)
        headers = {"content-type": kind, "content-length": len(data) + missing}
        headers["request-id"] = f"req_{len(self.api.requests):024}"
        if status == 429:
            headers["retry-after"] = 0
        final = 400 <= status < 500 and status not in (408, 409, 429)
        if final or fault and not self.api.retry:
            headers["x-should-retry"] = "false"
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Nothing is printed per request."""


def main():
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(
        description="A strict stand-in for the Messages API on 127.0.0.1, for tests and lessons. "
        "There is no intelligence in it: a script answers."
    )
    parser.add_argument("--port", type=int, default=8082, help="0 = any free one")
    parser.add_argument("--profile", choices=["claude", "deepseek"], default="claude")
    parser.add_argument("--window", type=int, default=200_000, help="context window in tokens")
    options = parser.parse_args()
    try:
        api = PracticeAPI(options.port, options.profile, options.window)
    except (OSError, OverflowError) as problem:
        parser.error(f"port {options.port}: {problem}")
    with api:
        variables = f"ANTHROPIC_BASE_URL={api.url} ANTHROPIC_API_KEY=practice"
        print(f"Practice API on {api.url}; set {variables}", flush=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            print()


# ------------------------------------------------------------------------------------------------
# the demo

ACTS = [  # prompt, knobs, why and what to watch
    (
        "Read every Python file in the agents/ directory one by one",
        {"PRESERVE_RESULT_TOOLS": set(), "KEEP_RECENT": 1},
        "few files, so Layer 1 clears all but one: results become [Previous: used read_file]",
    ),
    (
        "Keep reading files until compression triggers automatically",
        {"PRESERVE_RESULT_TOOLS": {"read_file"}, "THRESHOLD": 16_000},
        "a low threshold that is soon reached: Layer 2 puts a summary in place of everything",
    ),
    (
        "Read agents/s06_context_compact.py",
        {},
        "so that there is something to remember",
    ),
    (
        "Use the compact tool to manually compress the conversation, focus on micro_compact",
        {},
        "Layer 3: the model itself asks for the summary",
    ),
    ("What does micro_compact do?", {}, "only the summary is left to answer from"),
]


def go_offline(agent, api):
    """Make the agent module talk to a running PracticeAPI, whatever keys and proxies are set."""
    os.environ.update(ANTHROPIC_BASE_URL=api.url, ANTHROPIC_API_KEY="practice")
    os.environ.update(NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
    os.environ.pop("ANTHROPIC_AUTH_TOKEN", None)
    vars(agent).update(client=None, MODEL="claude-haiku-5-5")


def demo(agent):
    """Play the lesson's prompts with the agent module; 0, or 1 when its loop failed."""
    root = Path(__file__).resolve().parent.parent
    before, environment = dict(vars(agent)), dict(os.environ)
    try:
        with PracticeAPI() as api:
            go_offline(agent, api)
            vars(agent).update(WORKDIR=root, TRANSCRIPT_DIR=root / ".transcripts")
            return play(agent, api)
    finally:
        vars(agent).update(before)
        os.environ.clear()
        os.environ.update(environment)


def play(agent, api):
    """Every act, the results as they stand after the first, then the saw-tooth."""
    messages, old = [], set(agent.TRANSCRIPT_DIR.glob("*.jsonl"))
    for prompt, knobs, why in ACTS:
        turned = ", ".join(f"{name} = {value}" for name, value in knobs.items())
        print(f"\n--- {turned or 'knobs as they are'}: {why}\ns06 >> {prompt}")
        vars(agent).update(knobs)
        agent.add(messages, "user", prompt)
        if agent.agent_loop(messages) is False:
            return 1
        for kind, _, value in events(messages) if "KEEP_RECENT" in knobs else []:
            if kind == "result":
                print(f"  result, {len(value):6,} characters: {value.partition(chr(10))[0][:60]}")
    sizes, marks = measured(api.requests)
    print("\n" + sawtooth(sizes, agent.THRESHOLD, marks))
    new = sorted(set(agent.TRANSCRIPT_DIR.glob("*.jsonl")) - old)
    names = ", ".join(path.name for path in new)
    print(f"Every message is on disk, in {agent.TRANSCRIPT_DIR.name}/: {names}")
    return 0


def measured(requests):
    """(context sizes, {index: layer}) of the answered requests with tools."""
    sizes, marks, before, cleared_before = [], {}, "", 0
    for record in requests:
        if not record["usage"] or not record["body"].get("tools"):
            continue
        messages, usage = record["body"]["messages"], record["usage"]
        start = as_blocks(messages[0]["content"])[0].get("text", "").partition("\n")[0]
        cleared = json.dumps(messages).count('"[Previous: used ')
        if start.startswith("[Conversation compressed") and start != before:
            asked = [value[0] for kind, _, value in events(messages[:2]) if kind == "call"]
            marks[len(sizes)] = "3" if "compact" in asked else "2"
        elif cleared > cleared_before:
            marks[len(sizes)] = "1"
        before, cleared_before = start, cleared
        sizes.append(sum(usage[name] for name in usage if name.endswith("input_tokens")))
    return sizes, marks


def sawtooth(sizes, threshold, marks, width=72, height=10):
    """A text chart of context sizes; marks: {index of a request: layer that fired before it}."""
    top = max(threshold, 1, *sizes) if sizes else max(threshold, 1)
    line = round(threshold / top * height)
    labels = {height: f"{top:,}", 0: "0", line: f"threshold {threshold:,}"}
    left = max(map(len, labels.values()))
    room = width - left - 2
    per = max(1, -(-len(sizes) // room))  # requests in one column
    groups = [range(at, min(at + per, len(sizes))) for at in range(0, len(sizes), per)]
    wide = max(1, min(4, room // max(1, len(groups))))  # characters of one column
    rows = []
    for row in range(height, 0, -1):
        blank = "-" if row == line else " "
        tall = [max(sizes[at] for at in group) >= top * (row - 0.5) / height for group in groups]
        bars = "".join(("#" if full else blank) * wide for full in tall)
        rows.append(f"{labels.get(row, ''):>{left}} |{bars}")
    rows.append(f"{'0':>{left}} +" + "-" * wide * len(groups))
    fired = [max(marks.get(at, " ") for at in group) for group in groups]
    rows.append(f"{'layer':>{left}}  " + "".join(mark.ljust(wide) for mark in fired))
    return "\n".join(row.rstrip() for row in rows)


if __name__ == "__main__":
    main()
