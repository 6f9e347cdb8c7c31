"""The other end of the wire: a strict Messages API on 127.0.0.1, for tests and lessons.

It refuses what the real API refuses, with the same status and the words to search for, so that a
mistake in an agent shows here and costs nothing.

    with PracticeAPI() as api:
        client = anthropic.Anthropic(base_url=api.url, api_key="test")

But: there is no intelligence in it. Its practice model is a script that decides from the request
alone. Tokens are bytes / 4, cache entries never expire, nothing streams, no reply ends at
max_tokens.
"""

import argparse
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

# ------------------------------------------------------------------------------------------------
# validation: the first broken rule raises ApiError; R1, R2 ... are the rules of shared/api_rules.md

WORDS = {str: "string", dict: "dictionary", list: "list", int: "integer", bool: "boolean"}
WORDS |= {type(None): "null"}
SHAPES = {  # object -> its fields, as name:kind; "?" = may be missing; a kind may be a shape
    "request": "model:string messages:list max_tokens:integer system:string|list? tools:list? "
    "tool_choice:choice|null? stop_sequences:list? stream:boolean? metadata:dictionary? thinking? "
    "output_config:dictionary? cache_control:mark|null? container? service_tier? speed? "
    "inference_geo? diagnostics?",
    "choice": "type:'auto'|'any'|'tool'|'none' name:string? disable_parallel_tool_use:boolean?",
    "mark": "type:'ephemeral' ttl:'5m'|'1h'?",
    "message": "role:'user'|'assistant' content:string|list",
    "custom": "name:^[a-zA-Z0-9_-]{1,64}$ input_schema:dictionary type:'custom'|null? "
    "description:string? cache_control:mark|null? strict:boolean? defer_loading? "
    "input_examples? allowed_callers? eager_input_streaming?",
    "text": "type text:string cache_control:mark|null? citations?",
    "tool_use": "type id:^[a-zA-Z0-9_-]+$ name:string input:dictionary caller:dictionary? "
    "cache_control:mark|null? toolset_name:string|null?",
    "tool_result": "type tool_use_id:^[a-zA-Z0-9_-]+$ content:string|list? is_error:boolean? "
    "cache_control:mark|null? toolset_name:string|null?",
    "thinking": "type thinking:string signature:string|null?",
    "redacted_thinking": "type data:string",
    "image": "type source cache_control:mark|null?",
    "document": "type source cache_control:mark|null? citations? title? context?",
    "search_result": "type source title content cache_control:mark|null? citations?",
}
BLOCKS = tuple(SHAPES)[5:]
SHAPES["beta request"] = SHAPES["request"] + " context_management?"
ALLOWED = {"tools": ("custom",), "system": ("text",)}  # role -> types of its blocks
ALLOWED |= {"result": ("text", "image", "document", "search_result")}
FORGED = "Invalid `signature` in `thinking` block"
THINKING = ("thinking", "redacted_thinking")
SIDES = {"tool_result": "user", "document": "user", "tool_use": "assistant"}
SIDES |= dict.fromkeys(THINKING, "assistant")


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
    check_shape("", body, "beta request" if beta else "request")
    for i, message in enumerate(body["messages"]):
        check_shape(f"messages.{i}", message, "message")
    for where, role, block in rendered(body):
        check_block(where, role, block)
    check_limits(body, profile)
    check_messages(body["messages"])
    check_pairs(body["messages"])
    if profile == "deepseek":
        check_thinking_comes_back(body["messages"])
    else:
        last = body["messages"][-1]["role"]
        need(last == "user", "This model does not support assistant message prefill.")  # R14
        check_signatures(body)
        ttls = [ttl for _, ttl in cache_marks(body)]
        words = f"A maximum of 4 blocks with cache_control may be provided. Found {len(ttls)}."
        need(len(ttls) <= 4, words)  # R28
        need(ttls == sorted(ttls), "cache_control: ttl='1h' must not come after ttl='5m'")
    tokens = count_tokens(body)
    need(tokens <= window, f"prompt is too long: {tokens} tokens > {window} maximum")  # R22


def check_shape(where, value, kind):
    """R5, R17: refuse a missing, unknown or mistyped field, at any depth that SHAPES names."""
    kinds, prefix = kind.split("|"), f"{where}." if where else ""
    if kinds[0] in SHAPES and (value is not None or "null" not in kinds):
        need(isinstance(value, dict), f"{where}: Input should be a valid dictionary")
        unknown = set(value)
        for entry in SHAPES[kinds[0]].split():
            name, _, inner = entry.rstrip("?").partition(":")
            need(name in value or entry.endswith("?"), f"{prefix}{name}: Field required")
            if name in value and inner:
                check_shape(f"{prefix}{name}", value[name], inner)
            unknown.discard(name)
        need(not unknown, f"{prefix}{min(unknown, default='')}: Extra inputs are not permitted")
    elif kind.startswith("^"):
        fits = isinstance(value, str) and re.search(kind, value)
        need(fits, f"{where}: String should match pattern '{kind}'")
    else:
        fits = {WORDS.get(type(value)), repr(value)} & set(kinds)
        words = " or ".join(kinds) if "'" in kind else f"a valid {kinds[0]}"
        need(fits, f"{where}: Input should be {words}")


def check_block(where, role, block):
    """R5, R12, R13, R18: one block, with what stands inside it."""
    tag = block.get("type") if isinstance(block, dict) else None
    tag = "custom" if role == "tools" else tag
    words = "found using 'type' does not match any of the expected tags"
    need(tag in ALLOWED.get(role, BLOCKS), f"{where}: Input tag {tag!r} {words}")
    check_shape(f"{where}.{tag}", block, tag)
    side, message = SIDES.get(tag, role), where.partition(".content")[0]
    need(role in (side, "result"), f"{message}: `{tag}` blocks can only be in `{side}` messages")
    if tag == "text":
        empty_mark = not block["text"] and block.get("cache_control")
        need(not empty_mark, f"{where}.text: cache_control cannot be set for empty text blocks")
        need(block["text"], "messages: text content blocks must be non-empty")
        blank = not block["text"].strip()
        need(not blank, "messages: text content blocks must contain non-whitespace text")
    elif tag == "tool_result":
        content = block.get("content", "")
        bare = block.get("is_error") and not content
        need(not bare, f"{where}.tool_result: content cannot be empty if `is_error` is true")
        for k, part in enumerate(content if isinstance(content, list) else []):
            check_block(f"{where}.tool_result.content.{k}", "result", part)


def check_limits(body, profile):
    """R4, R17, R20, R21: what concerns the request as a whole."""
    model, limit, tools = body["model"], body["max_tokens"], body.get("tools", [])
    if profile == "claude" and not model.startswith("claude-") and model != "practice":
        raise ApiError(404, "not_found_error", f"model: {model}")
    words = f"which is the maximum allowed number of output tokens for {model}"
    need(limit <= 128_000, f"max_tokens: {limit} > 128000, {words}")
    need(limit >= 0, "max_tokens: Input should be greater than or equal to 0")
    objects = all(tool["input_schema"].get("type") == "object" for tool in tools)
    need(objects, "tools: input_schema.type: Input should be 'object'")
    names = [tool["name"] for tool in tools]
    need(len(set(names)) == len(names), "tools: Tool names must be unique.")
    choice = body.get("tool_choice")
    need(tools or not choice, "tool_choice may only be specified while providing tools.")
    forced = choice and choice["type"] in ("any", "tool")
    strict = model.startswith(("claude-opus-5-5", "claude-fable-5"))
    need(not (forced and strict), "tool_choice: Forced tool use is not supported for this model.")
    used = {block["type"] for _, _, block in rendered(body) if "type" in block}
    words = "Requests which include `tool_use` or `tool_result` blocks must define tools."
    need(tools or not used & {"tool_use", "tool_result"}, words)  # R19


def check_messages(messages):
    """R7, R13: there is something to answer, and it begins with the user."""
    need(messages, "messages: at least one message is required")
    need(messages[0]["role"] == "user", 'messages: first message must use the "user" role')
    words = "all messages must have non-empty content except for the optional final assistant one"
    for i, message in enumerate(messages):
        last = message["role"] == "assistant" and i == len(messages) - 1
        need(message["content"] or last, f"messages.{i}: {words}")


def check_pairs(messages):
    """R8 to R11: a result in the next turn for every call, a call just before every result."""
    used, calls, waiting, caller, before = set(), [], [], "", ""
    for where, role, block in [*rendered({"messages": messages}), ("", "end", {"type": ""})]:
        if block["type"] == "tool_result":
            name = block["tool_use_id"]
            words = "unexpected `tool_use_id` found in `tool_result` blocks"
            need(name in calls, f"{where}: {words}: {name}")
            need(name in waiting, f"{where}: each tool_use must have a single result: {name}")
            waiting.remove(name)
        elif (before, role) != ("assistant", "assistant"):  # neighbours of one role are one turn
            words = "`tool_use` ids were found without `tool_result` blocks immediately after"
            need(not waiting, f"{caller}: {words}: {', '.join(waiting)}")
            calls = []
        if block["type"] == "tool_use":
            need(block["id"] not in used, f"{where}: `tool_use` ids must be unique")
            used.add(block["id"])
            calls.append(block["id"])
            waiting.append(block["id"])
            caller = where.partition(".content")[0]
        before = role


def check_signatures(body):
    """R25 to R27: thinking is ours, whole in the newest reply, and where it was made."""
    prefix, newest, parts, moved = "", "", [], ""
    for where, role, block in rendered(body):
        message = where.rpartition(".")[0]
        if role == "assistant" and message != newest:
            newest, parts = message, []
        if block.get("type") in THINKING:
            signature = block.get("signature") or ""
            claim = signature.rpartition(" ")[0]
            need(claim and signature == seal(claim), f"{where}: {FORGED}")
            number, total, made_after = claim.split(" ")
            parts.append((int(number), int(total)))
            moved = moved or ("" if made_after == prefix else where)
        prefix = chained(prefix, role, block)
    whole = [(k + 1, total) for first, total in parts if first == 1 for k in range(total)]
    words = "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be"
    need(parts == whole, f"{newest}.0: {words} modified.")
    need(not moved, f"{moved}: {FORGED}. The block is bound to a different conversation.")


def check_thinking_comes_back(messages):
    """The rule of DeepSeek: whoever calls a tool after thinking sends the thinking back."""
    for message in messages:
        types = {block["type"] for block in as_blocks(message["content"])}
        words = "The `content[].thinking` in the thinking mode must be passed back to the API."
        need("tool_use" not in types or types & set(THINKING), words)


def seal(claim):
    """The claim and a proof that it is ours; here anyone could forge it, which is no harm."""
    return f"{claim} {hashlib.sha256(f'practice {claim}'.encode()).hexdigest()}"


def sign(body, content):
    """Sign the thinking of this reply to `body`: which of how many it is, and after what."""
    prefix, total = "", sum(block["type"] == "thinking" for block in content)
    for _, role, block in rendered(body):
        prefix = chained(prefix, role, block)
    number = 0
    for block in content:
        if block["type"] == "thinking":
            number += 1
            block.setdefault("signature", seal(f"{number} {total} {prefix}"))
        prefix = chained(prefix, "assistant", block)


# ------------------------------------------------------------------------------------------------
# the request as the model sees it; tokens and the prompt cache


def as_blocks(content):
    """A string is shorthand for one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content


def rendered(body):
    """Yield (where, role, block) for every block in the order tools, system, messages."""
    lists = [(role, role, body.get(role, [])) for role in ("tools", "system")]
    for i, message in enumerate(body["messages"]):
        lists.append((f"messages.{i}.content", message["role"], message["content"]))
    for where, role, content in lists:
        for j, block in enumerate(as_blocks(content)):
            yield f"{where}.{j}", role, block


def unmarked(block):
    """The block without its cache mark, as JSON; the SDK may shuffle its fields, not deeper."""
    fields = sorted(item for item in block.items() if item[0] != "cache_control")
    return json.dumps(dict(fields), ensure_ascii=False)


def chained(prefix, role, block):
    """The hash of a block and of all before it, which have the hash `prefix`."""
    return hashlib.sha256(f"{prefix} {role} {unmarked(block)}".encode()).hexdigest()


def block_tokens(block):
    """UTF-8 bytes of the block's JSON / 4, rounded up; 1600 for an image or document."""
    if block.get("type") in ("image", "document"):
        return 1600
    inner = block.get("content")
    if isinstance(inner, list):
        return block_tokens(block | {"content": ""}) + sum(map(block_tokens, inner))
    return -(-len(unmarked(block).encode()) // 4)


def count_tokens(body, count=block_tokens):
    """Tokens of tools, system and messages; `count` says how many one block has."""
    return sum(count(block) for _, _, block in rendered(body))


def cache_marks(body):
    """[(position, ttl)] of every cache mark, the automatic one of the top level included."""
    blocks = [block for _, _, block in rendered(body)]
    marks = [block.get("cache_control") for block in blocks]
    automatic = body.get("cache_control")
    if automatic:
        last = max(at for at, block in enumerate(blocks) if block.get("type") not in THINKING)
        marks[last] = marks[last] or automatic
    ttls = [(at, mark.get("ttl", "5m")) for at, mark in enumerate(marks) if mark]
    same = not automatic or dict(ttls)[last] == automatic.get("ttl", "5m")
    need(same, "cache_control: two different ttl on the last block")
    return ttls


class PromptCache:
    """The prompt cache by its published rules, without expiry: entries only where marks stand.

    `minimum`: tokens below which a prefix is not cached; `count`: tokens of one block.
    """

    def __init__(self, minimum=0, count=block_tokens):
        self.minimum, self.count, self.entries = minimum, count, set()

    def usage(self, body, content=()):
        """The usage of the reply `content` to `body`; remembers the entries it writes."""
        prefix, hashes, sizes = body["model"], [], [0]
        for _, role, block in rendered(body):
            prefix = chained(prefix, role, block)
            hashes.append(prefix)
            sizes.append(sizes[-1] + self.count(block))  # sizes[n]: the first n blocks
        marks = [(at, ttl) for at, ttl in cache_marks(body) if sizes[at + 1] >= self.minimum]
        near = [at - back for at, _ in reversed(marks) for back in range(min(20, at + 1))]
        hit = next((at + 1 for at in near if hashes[at] in self.entries), 0)
        last = marks[-1][0] + 1 if marks else 0
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


# ------------------------------------------------------------------------------------------------
# the practice model: a script that decides from the request alone

HELP = """I am a script without intelligence, here to practise on. I can:
- Read every Python file in DIR/ one by one (or: several at once)
- Keep reading files until compression triggers automatically
- Use the compact tool to manually compress the conversation, focus on X
- Run `COMMAND`, or Read FILE
- answer a question from what stands in the context, and summarise it"""
PLAN = re.compile(r"Plan( again)?: \d+ files to read: (.+)")
ENTRY = re.compile(
    r"(?:\A|\n\n)(user: |assistant: |call [\w-]+ (?={)|result of [\w-]+: |\[\.\.\. cut )"
)
COMPRESSED = re.compile(  # summary, calls before, "in progress", request
    r"(?s)\[Conversation compressed[^\n]*\n\n(.*?)(?:\n\nCalls before this point[^\n]*(.*?))?"
    r"(?:\n\n\[[^\]\n]*user[^\]\n]*?(in progress)?\]\n(.*?)(?:\n\[Go on from here.*)?)?$"
)
FOLDER = re.compile(r"(?ia)\bin (?!this|order|parallel|one)(?:the )?([\w./-]+)|([\w./-]+)/")
UNTIL = re.compile("(?i)until|\u76f4\u5230")
SEVERAL = re.compile("(?i)several|at once|parallel|\u540c\u65f6")
COMMON = re.compile("what|which|who|whom|how|many|much|does|did|the|and|that|this|are|was|from")


def practice_reply(body):
    """(content blocks, stop reason) of the script's answer to a request."""
    view = look(steps(body["messages"]))
    matches = ((re.search(pattern, view.request), act) for pattern, act in BEHAVIOURS)
    match, act = next((match, act) for match, act in matches if match)
    text, calls = act(view, match)
    offered = [tool["name"] for tool in body.get("tools", [])]
    lacking = [tool for tool, _ in calls if tool not in offered]
    if lacking:
        text, calls = f"I need the tool {lacking[0]}, which this request does not offer.", []
    content = [{"type": "text", "text": text}] if text else []
    for number, (tool, given) in enumerate(calls):
        seed = f"{number}{json.dumps(body['messages'])}"
        name = f"toolu_{hashlib.sha256(seed.encode()).hexdigest()[:24]}"
        call = {"type": "tool_use", "id": name, "name": tool, "input": given}
        content.append(call | {"caller": {"type": "direct"}})
    return content, "tool_use" if calls else "end_turn"


def steps(messages):
    """What happened, as [kind, argument, text]; kind: "user", "assistant" or a tool's name."""
    found, calls = [], {}
    for _, role, block in rendered({"messages": messages}):
        if block["type"] == "text":
            found.append([role, "", block["text"]])
        elif block["type"] == "tool_use":
            given = json.dumps(block["input"], ensure_ascii=False)
            calls[block["id"]] = [block["name"], main_argument(given), ""]
            found.append(calls[block["id"]])
        elif block["type"] == "tool_result":
            parts = [part.get("text", "") for part in as_blocks(block.get("content", ""))]
            cleared = parts and parts[0].startswith("[Previous: used ")
            calls[block["tool_use_id"]][2] = "" if cleared else "\n".join(parts)
    return found


def steps_of_text(data):
    """The same from the text that a summariser gets; an entry starts in column 0."""
    found, waiting = [], []
    parts = ENTRY.split(data)
    for head, text in zip(parts[1::2], parts[2::2], strict=True):
        kind, name = head.split()[0].strip(":"), head.split()[-1].strip(":")
        if kind == "call":
            found.append([name, main_argument(text), ""])
            waiting.append(found[-1])
        elif kind == "result":
            answered = next((step for step in waiting if step[0] == name), ["", "", ""])
            answered[2] = text.replace("\n  ", "\n")
            waiting = [step for step in waiting if step is not answered]
        else:
            found.append([kind, "", text])
            waiting = []  # after a gap nobody knows whose result comes
    return found


def main_argument(given):
    """The command, path or focus in the JSON of a call's input, which may be cut."""
    found = re.search(r'"(?:command|path|focus)": "((?:[^"\\]|\\.)*)"', given)
    return found[1] if found else ""


def look(happened):
    """What the steps show: the newest request of the user and what was done for it."""
    view = SimpleNamespace(request="", in_progress="", summary="", trail="", steps=[], new=[])
    for step in happened:
        compressed = COMPRESSED.match(step[2]) if step[0] == "user" else None
        if compressed:
            found = [part or "" for part in compressed.groups()]
            view.summary, view.trail, view.in_progress, view.request = found
        elif step[0] != "user":
            view.steps.append(step)
            view.new.append(step)  # what was done for the newest request
        elif step[2].strip() != "(continue)":
            view.request, view.in_progress, view.new = step[2], "", []
    return view


def facts(text):
    """What a file holds: its number of lines, first definitions and numbers, or first line."""
    cut = "+" if "\n[... " in text else ""
    found = re.findall(r"(?m)^\s*((?:def|class) \w+)", text)[:4]
    found += re.findall(r"(?m)^([A-Z][A-Z_\d]+ = [\d_.]+)", text)[:3]
    first = text.strip().partition("\n")[0][:80]
    return f"{len(text.splitlines())}{cut} lines, {', '.join(found) or first}"


def files_read(view):
    """{path: facts} of every file that the context shows as read, "" where the facts are gone."""
    found = {}
    if "accomplished" in view.summary:  # else nothing is known of the files on the trail
        found = dict.fromkeys(re.findall(r"(?m)^- read_file (.+)$", view.trail), "")
    found |= dict(re.findall(r"(?m)^- read (.+?): (.*)$", view.summary))
    for tool, path, text in view.steps:
        if tool == "read_file":
            found[path] = facts(text) if text else found.get(path, "")
    return found


def find_plan(view):
    """(" again" or "", files) of the newest plan in sight, or None."""
    told = [text for kind, _, text in view.new if kind == "assistant"]
    if view.in_progress and re.search("accomplished|Plan again", view.summary):
        told.insert(0, view.summary)
    plans = PLAN.findall("\n".join(told))
    return (plans[-1][0], plans[-1][1].split(", ")) if plans else None


def read_on(view, _):
    """List, plan, read the files of the plan, answer."""
    folder = next(filter(None, FOLDER.search(f"{view.request} ./").groups())).rstrip("/.") or "."
    until = UNTIL.search(view.request)
    ending = ".md" if re.search(r"(?i)markdown|\.md\b", view.request) else ""
    ending = ".py" if until or re.search(r"(?i)python|\.py\b", view.request) else ending
    levels = ["", "*/", "*/*/"] if until else [""]
    patterns = [f"{folder}/{level}*{ending}".removeprefix("./") for level in levels]
    command = "ls -1dp " + " ".join(patterns)
    again, plan = find_plan(view) or ("", None)
    text, known = "", files_read(view)
    if plan is None:
        listed = [result for _, given, result in view.new if given == command and result]
        if not listed:
            return "", [("bash", {"command": command})]
        lines = [line for line in listed[-1].splitlines() if not line.endswith("/")]
        plan = [line for line in lines if fnmatchcase(line, patterns[0])]
        again = " again" if view.in_progress else ""
        text = f"Plan{again}: {len(plan)} files to read: {', '.join(plan)}"
    left = [path for path in plan if path not in known]
    reads = [step for step in view.steps if step[0] == "read_file"]
    seen_enough = until and view.in_progress and len(reads) > 3  # three after the compaction
    if left and not seen_enough:
        number = 5 if SEVERAL.search(view.request) else 1
        return text, [("read_file", {"path": path}) for path in left[:number]]
    lines = [
        f"- {path}: {fact or 'read, but no longer in my context'}"
        for path, fact in known.items()
        if fnmatchcase(path, patterns[0])
    ]
    return "\n".join([f"I have read {len(lines)} files ({patterns[0]}).", *lines]), []


def once(tool, field, say):
    """A behaviour: call the tool with what the pattern found, then say what came of it."""

    def act(view, match):
        done = [text for kind, _, text in view.new if kind == tool]
        if done:
            return say(match[1], done[-1]), []
        return "", [(tool, {field: match[1]} if match[1] else {})]

    return act


def after_compact(_, result):
    """What to say when the compact tool was called: the result tells how it went."""
    if result.startswith("Compressing"):
        return "The conversation is compressed. I go on from its summary."
    return f"The compact tool answered: {result}"


def answer(view, _):
    """The lines of the context that share most with the question."""
    lines = view.summary.replace(" | ", "\n").splitlines()
    lines = [line for line in lines if not line.startswith("- asked: ")] + lines_seen(view)
    found = best_lines(view.request, lines, 3)
    return "\n".join(found) or "The context that I see does not hold the answer.", []


def lines_seen(view):
    """The lines of all results, and what the assistant said."""
    return [line for _, _, text in view.steps for line in text.splitlines()]


def best_lines(question, lines, limit):
    """The lines that share the longest words with the question, best first."""
    asked = words_of(question)
    score = {line.strip(): sum(map(len, asked & words_of(line))) for line in lines}
    best = max(score.values(), default=0)
    ranked = sorted(score, key=score.get, reverse=True)
    return [line for line in ranked if score[line] > best / 2][:limit]


def words_of(text):
    """Words, names and paths of three letters or more."""
    words = re.findall(r"\w[\w./-]+\w", text.lower())
    return {word for word in words if not COMMON.fullmatch(word)}


def summarise(view, match):
    """A summary of the fenced data with those parts that the words before it name."""
    asked, view = match[1], look(steps_of_text(match[3]))
    known, (again, plan) = files_read(view), find_plan(view) or ("", [])
    done = re.findall(r"(?m)^- ((?:bash|edit_file|write_file) .*)$", view.summary)
    for tool, given, text in view.steps:
        if tool in ("bash", "edit_file", "write_file"):
            done.append(" ".join(f"{tool} {given}: {text[:100]}".split()))
    left = [path for path in plan if path not in known]
    todo = [f"Plan{again}: {len(left)} files to read: {', '.join(left)}"] if left else []
    reads = [f"read {path}: {fact or 'facts lost'}" for path, fact in known.items()]
    parts = {
        "What was accomplished": reads + list(dict.fromkeys(done))[-20:],
        "Current state": [f"asked: {' '.join(view.request.split())[:300]}", *todo],
        "Key decisions": ["read in the order of the listing, no file twice"] if known else [],
    }
    texts = focus_lines(view, asked) + [
        f"{title}:\n- " + "\n- ".join(lines or ["nothing"])
        for title, lines in parts.items()
        if title.lower() in asked.lower()
    ]
    return "\n\n".join(texts) or "No part of a summary was asked for.", []


def focus_lines(view, asked):
    """["Focus: X: the lines that mention it"], behind those of earlier summaries."""
    old = re.findall("(?m)^Focus: .*$", view.summary)
    for focus in re.findall("(?m)^Focus: .*$", asked):
        found = best_lines(focus[7:], lines_seen(view), 6)
        if found:
            old = [line for line in old if not line.startswith(f"{focus}: ")]
            old.append(f"{focus}: " + " | ".join(line[:200] for line in found))
    return old[-5:]


BEHAVIOURS = [  # the first pattern found in the newest request decides
    (r"(?is)(.*summar.*)<([\w-]+)>\n(.*)\n</\2>", summarise),
    (
        "(?is)^\\W*(?:please )?(?:use|\u4f7f\u7528).{0,9}compact"
        "(?:.*?(?:focus\\w* on|\u91cd\u70b9|\u805a\u7126|\u5173\u6ce8)\\W*(.+?)\\W*$)?",
        once("compact", "focus", after_compact),
    ),
    (
        r"(?is)^\W*(?:please )?(?:run|\u8fd0\u884c|\u6267\u884c)\b\s*(?:the command )?`?([^`]+)",
        once("bash", "command", lambda _, result: f"The command printed:\n{result[:500]}"),
    ),
    (
        r"(?is)(?:read|\u8bfb).*(?:until|\u76f4\u5230)|read\s+(?:every|each|all)\b"
        r"|\u8bfb.*(?:\u6240\u6709|\u6bcf)",
        read_on,
    ),
    (
        r"(?is)^\W*(?:please )?(?:read|\u8bfb\u53d6)\s+`?([\w-]*[./][\w./-]*\w)",
        once("read_file", "path", lambda path, result: f"{path}: {facts(result)}"),
    ),
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
SPOILED = {  # fault -> what it changes in a message
    "empty": lambda message: {"content": []},
    "refusal": lambda message: {"content": [], "stop_reason": "refusal"},
    "no usage": lambda message: {"usage": None},
    "unknown block": lambda message: {
        "content": [{"type": "brand_new_block"}, *message["content"]]
    },
    "cut reply": lambda message: {
        "content": [
            block | {"text": block["text"][: len(block["text"]) // 2 + 1]}
            if block["type"] == "text"
            else block
            for block in message["content"]
        ],
        "stop_reason": "max_tokens",
    },
}
BROKEN = {  # fault -> (bytes sent, content type, bytes that are promised beyond them)
    "html": (b"<html><body>Welcome</body></html>", "text/html", 0),
    "no body": (b"", "application/json", 0),
    "cut body": (b'{"id": "msg_', "application/json", 100),
    "cut": (b"", "cut", 1),
    "timeout": (b"", "timeout", 1),
}


def error(status, message=""):
    """The ApiError of a status, with its usual message unless there is another."""
    kind, usual = ERRORS.get(status, ERRORS[500])
    return ApiError(status, kind, message or usual)


@dataclass
class PracticeAPI:
    """The server, as a context manager; it listens at `url`."""

    port: int = 0  # 0 = any free one
    profile: str = "claude"  # or "deepseek": wants all thinking back, signs nothing
    window: int = 200_000  # tokens that a request may have
    model: Callable = practice_reply  # body -> (content blocks, stop reason)
    key: str | None = None  # the one that is accepted; None = any
    thinking: bool = True  # replies begin with a thinking block
    max_body: int = 32_000_000  # bytes
    cache_minimum: int = 0  # tokens below which the prompt cache does nothing
    retry: bool = True  # False tells the client not to try again after an error
    requests: list = field(default_factory=list)  # every POST: {"path", "body", "status", ...}
    replies: list = field(default_factory=list)  # (content, stop reason) before the model is asked
    # What goes wrong, one per request: a status, (status, message), a key of SPOILED or BROKEN,
    # "stop:REASON"; or a function of the body, asked each time, that returns such a thing or None.
    faults: list = field(default_factory=list)

    def __post_init__(self):
        self.cache, self.lock = PromptCache(self.cache_minimum), threading.Lock()
        self.closed = threading.Event()
        handler = type("Handler", (Handler,), {"api": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path, headers, raw):
        """(status, bytes, content type, bytes promised beyond) for a POST; kept in `requests`."""
        record = {"path": path, "body": {}, "status": 200, "error": None}
        record |= dict.fromkeys(("content", "stop_reason", "usage"))
        with self.lock:
            self.requests.append(record)
            try:
                body = record["body"] = self.read(headers, raw)
                rules = {"profile": self.profile, "window": self.window}
                rules["beta"] = "anthropic-beta" in headers
                if path == "/v1/messages/count_tokens":
                    validate(body | {"max_tokens": 1}, **rules)
                    answer = {"input_tokens": count_tokens(body)}
                elif path == "/v1/messages":
                    fault = self.next_fault(body)
                    validate(body, **rules)
                    need(not body.get("stream"), "stream: this practice API does not stream")
                    if fault in BROKEN:
                        record.update(status=None, error=fault)
                        return 200, *BROKEN[fault]
                    answer = self.reply(body, fault)
                    record.update((name, answer[name]) for name in record.keys() & answer.keys())
                else:
                    raise error(404)
            except ApiError as problem:
                record.update(status=problem.status, error=problem.message)
                words = {"type": problem.type, "message": problem.message}
                answer = {"type": "error", "error": words}
            return record["status"], json.dumps(answer).encode(), "application/json", 0

    def next_fault(self, body):
        """The fault for this request: a function is asked, anything else is used up."""
        for at, fault in enumerate(self.faults):
            fault = fault(body) if callable(fault) else self.faults.pop(at)
            if fault is not None:
                return fault
        return ""

    def read(self, headers, raw):
        """R1 to R3: the body of a request that shows a key and a version."""
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        given = headers.get("x-api-key") or bearer
        if not given or self.key not in (None, given):
            raise error(401, "" if given else "x-api-key header is required")
        version = headers.get("anthropic-version") in ("2023-06-01", "2026-10-21")
        need(version, "anthropic-version: header is required, with a known version")
        if len(raw) > self.max_body:
            raise error(413)
        with suppress(ValueError):
            body = json.loads(raw)
            need(isinstance(body, dict), "The request body is not a JSON object")
            return body
        raise error(400, "The request body is not valid JSON")

    def reply(self, body, fault):
        """The message that answers a valid request, as the fault leaves it."""
        if isinstance(fault, (int, tuple)):
            raise error(*fault) if isinstance(fault, tuple) else error(fault)
        content, stop = self.replies.pop(0) if self.replies else self.model(body)
        if body["max_tokens"] == 0:
            content, stop = [], "max_tokens"
        content = [dict(block) for block in content]
        if self.thinking and content and content[0]["type"] != "thinking":
            content.insert(0, {"type": "thinking", "thinking": ""})
            content[0] |= {"signature": ""} if self.profile == "deepseek" else {}
        sign(body, content)
        message = {"id": f"msg_{len(self.requests):024}", "type": "message", "role": "assistant"}
        message |= {"model": body["model"], "content": content, "stop_reason": stop}
        message |= {"stop_sequence": None, "stop_details": None}
        message["usage"] = self.cache.usage(body, content)
        if fault in SPOILED:
            return message | SPOILED[fault](message)
        return message | ({"stop_reason": fault[5:]} if fault.startswith("stop:") else {})


class Handler(BaseHTTPRequestHandler):
    """HTTP around PracticeAPI.answer."""

    protocol_version = "HTTP/1.1"
    api = None

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.partition("?")[0]
        status, data, kind, missing = self.api.answer(path, self.headers, raw)
        self.close_connection = self.close_connection or missing > 0
        if kind == "timeout":
            self.api.closed.wait()
        if kind in ("timeout", "cut"):
            return
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data) + missing))
        self.send_header("request-id", f"req_{len(self.api.requests):024}")
        if status == 429:
            self.send_header("retry-after", "0")
        if 400 <= status < 500 and status != 429 or not self.api.retry:
            self.send_header("x-should-retry", "false")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Nothing is printed per request."""


def main():
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--port", type=int, default=8082, help="0 = any free one")
    parser.add_argument("--profile", choices=["claude", "deepseek"], default="claude")
    parser.add_argument("--window", type=int, default=200_000, help="context window in tokens")
    options = parser.parse_args()
    try:
        api = PracticeAPI(options.port, options.profile, options.window)
    except (OSError, OverflowError) as problem:
        parser.error(f"port {options.port}: {problem}")
    with api, suppress(KeyboardInterrupt):
        print("Practice API: a script answers, there is no intelligence in it. Set", end=" ")
        print(f"ANTHROPIC_BASE_URL={api.url} ANTHROPIC_API_KEY=practice", flush=True)
        threading.Event().wait()


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
    ("Read agents/s06_context_compact.py", {}, "so that there is something to remember"),
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
    root, messages = Path(__file__).resolve().parent.parent, []
    before, environment = dict(vars(agent)), dict(os.environ)
    try:
        with PracticeAPI() as api:
            go_offline(agent, api)
            vars(agent).update(WORKDIR=root, TRANSCRIPT_DIR=root / ".transcripts")
            for prompt, knobs, why in ACTS:
                turned = ", ".join(f"{name} = {value}" for name, value in knobs.items())
                print(f"\n--- {turned or 'knobs as they are'}: {why}\ns06 >> {prompt}")
                vars(agent).update(knobs)
                agent.add(messages, "user", prompt)
                if agent.agent_loop(messages) is False:
                    return 1
                for _, _, block in rendered({"messages": messages}):
                    if block["type"] == "tool_result" and "KEEP_RECENT" in knobs:
                        print(f"  result: {str(block['content'])[:60]!r}")
        sizes, marks = measured(api.requests)
        print(f"\n{sawtooth(sizes, agent.THRESHOLD, marks)}")
        print(f"Every message is on disk, in {agent.TRANSCRIPT_DIR}")
        return 0
    finally:
        vars(agent).update(before)
        os.environ.clear()
        os.environ.update(environment)


def measured(requests):
    """(context sizes, {index: layer}) of the answered requests with tools."""
    sizes, marks, start, cleared = [], {}, "", 0
    for record in requests:
        if not record["usage"] or not record["body"].get("tools"):
            continue
        messages, before = record["body"]["messages"], (start, cleared)
        start = as_blocks(messages[0]["content"])[0].get("text", "").partition("\n")[0]
        cleared = json.dumps(messages).count('"[Previous: used ')
        if start.startswith("[Conversation compressed") and start != before[0]:
            marks[len(sizes)] = "3" if '"compact"' in json.dumps(messages[1:2]) else "2"
        elif cleared > before[1]:
            marks[len(sizes)] = "1"
        sizes.append(sum(n for name, n in record["usage"].items() if name.endswith("input_tokens")))
    return sizes, marks


def sawtooth(sizes, threshold, marks, width=52, height=10):
    """A text chart of context sizes; marks: {index of a request: layer that fired before it}."""
    per = max(1, -(-len(sizes) // width))  # requests in one column
    groups = [range(at, min(at + per, len(sizes))) for at in range(0, len(sizes), per)]
    tall = [max(sizes[at] for at in group) for group in groups]
    fired = [max(marks.get(at, " ") for at in group) for group in groups]
    wide = max(1, min(3, width // max(1, len(groups))))  # characters of one column
    top = max([threshold, 1, *tall])
    line = round(threshold / top * height)
    labels = {height: f"{top:,}", line: f"threshold {threshold:,}"}
    rows = []
    for row in range(height, 0, -1):
        blank = "-" if row == line else " "
        bars = "".join(("#" if n >= top * (row - 0.5) / height else blank) * wide for n in tall)
        rows.append(f"{labels.get(row, ''):>18} |{bars}")
    rows.append(f"{'0':>18} +" + "-" * wide * len(groups))
    rows.append(f"{'layer':>18}  " + "".join(mark.ljust(wide) for mark in fired))
    return "\n".join(row.rstrip() for row in rows)


if __name__ == "__main__":
    main()
