"""The other end of the wire: a strict Messages API on 127.0.0.1, for tests and lessons.

It refuses what the real API refuses, with the same status and the words to search for, so that a
mistake in an agent shows here and costs nothing.

    with PracticeAPI() as api:
        client = anthropic.Anthropic(base_url=api.url, api_key="test")

But: there is no intelligence in it. Its practice model is a script that decides from the request
alone. Tokens are bytes / 4, images too; cache entries never expire; nothing streams.
"""

import argparse
import hashlib
import json
import os
import re
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from heapq import nlargest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

# --- validation: the first broken rule raises ApiError ------------------------------------------

WORDS = {str: "string", dict: "dictionary", list: "list", int: "integer", bool: "boolean"}
MARK = " cache_control:mark|None?"
SHAPES = {  # object -> its fields, as name:kind; "?" = may be missing; a kind may be a shape
    "request": "model:string messages:list max_tokens:integer system:string|list? tools:list? "
    "tool_choice:choice? stop_sequences:list? stream? metadata:dictionary? thinking? "
    "output_config:dictionary? container? service_tier? speed? inference_geo? diagnostics?" + MARK,
    "choice": "type:'auto'|'any'|'tool'|'none' name:string? disable_parallel_tool_use:boolean?",
    "mark": "type:'ephemeral' ttl:'5m'|'1h'?",
    "message": "role:'user'|'assistant' content:string|list",
    "custom": "name:^[a-zA-Z0-9_-]{1,64}$ input_schema:dictionary type:'custom'|None? strict? "
    "description:string? defer_loading? input_examples? allowed_callers? "
    "eager_input_streaming?" + MARK,
    "text": "type text:string citations?" + MARK,
    "image": "type source" + MARK,
    "document": "type source citations? title? context?" + MARK,
    "search_result": "type source title content citations?" + MARK,
    "tool_use": "type id:^[a-zA-Z0-9_-]+$ name:string input:dictionary caller:dictionary? "
    "toolset_name?" + MARK,
    "tool_result": "type tool_use_id:^[a-zA-Z0-9_-]+$ content:string|list? is_error:boolean? "
    "toolset_name?" + MARK,
    "thinking": "type thinking:string signature:string|None?",
    "redacted_thinking": "type data:string",
}
PLACES = {"custom": ["tools"], "text": ["user", "assistant", "system", "result"]}
PLACES |= dict.fromkeys(["image", "document", "search_result"], ["user", "result"])
PLACES |= {"tool_result": ["user"], "tool_use": ["assistant"]}
PLACES |= {"thinking": ["assistant"], "redacted_thinking": ["assistant"]}
ERRORS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"}
ERRORS |= {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}
ERRORS |= {529: "overloaded_error"}  # all others: api_error


class ApiError(Exception):
    """An answer other than 200: its HTTP status, error type and message."""

    def __init__(self, status, message=""):
        self.status, self.type = status, ERRORS.get(status, "api_error")
        self.message = message or self.type.replace("_", " ").capitalize()
        super().__init__(f"{status} {self.type}: {self.message}")


def need(condition, message, status=400):
    """Refuse the request with `message` unless the condition holds."""
    if not condition:
        raise ApiError(status, message)


def validate(body, *, profile="claude", window=200_000):
    """Return None for a request that the API accepts, raise ApiError for the first broken rule."""
    check_shape("", body, "request")
    messages = body["messages"]
    need(messages, "messages: at least one message is required")
    for i, message in enumerate(messages):
        check_shape(f"messages.{i}", message, "message")
        need(message["content"], f"messages.{i}: all messages must have non-empty content")
    need(messages[0]["role"] == "user", 'messages: first message must use the "user" role')
    for where, role, block in rendered(body):
        check_block(where, role, block)
    check_settings(body)
    check_pairs(messages)
    if profile == "claude":
        need(body["model"].startswith(("claude-", "practice")), f"model: {body['model']}", 404)
        words = "This model does not support assistant message prefill."
        prefill = re.match(r"claude-\w+-4-5", body["model"])  # the models that still take it
        need(messages[-1]["role"] == "user" or prefill, words)
        check_signatures(body)
        cache_marks(body)
    for message in messages if profile == "deepseek" else []:
        types = {block["type"] for block in as_blocks(message["content"])}
        words = "The `content[].thinking` in the thinking mode must be passed back to the API."
        need("thinking" in types or "tool_use" not in types, words)
    tokens = count_tokens(body)
    need(tokens <= window, f"prompt is too long: {tokens} tokens > {window} maximum")


def check_shape(where, value, kind):
    """Refuse a missing, unknown or mistyped field, at any depth that SHAPES names."""
    kinds, prefix = kind.split("|"), f"{where}." if where else ""
    if WORDS.get(type(value)) in kinds:
        return
    if kinds[0] in SHAPES and (value is not None or "None" not in kinds):
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
        fits = isinstance(value, str) and re.fullmatch(kind, value)
        need(fits, f"{where}: String should match pattern '{kind}'")
    else:
        words = f"a valid {kinds[0]}" if kinds[0] in WORDS.values() else " or ".join(kinds)
        need(repr(value) in kinds, f"{where}: Input should be {words}")


def check_block(where, role, block):
    """Refuse a block in the wrong place, or with nothing to read in it."""
    tag = block.get("type") if isinstance(block, dict) else None
    tag = "custom" if role == "tools" else tag
    words = "found using 'type' does not match any of the expected tags"
    need(tag in [*PLACES], f"{where}: Input tag {tag!r} {words}")
    check_shape(f"{where}.{tag}", block, tag)
    words = f"`{tag}` blocks can only be in `{PLACES[tag][0]}` messages"
    need(role in PLACES[tag], f"{where.partition('.content')[0]}: {words}")
    if tag == "text":
        words = "contain non-whitespace text" if block["text"] else "be non-empty"
        need(block["text"].strip(), f"messages: text content blocks must {words}")
    elif tag == "tool_result":
        content = block.get("content", "")
        words = f"{where}.tool_result: content cannot be empty if `is_error` is true"
        need(content or not block.get("is_error"), words)
        for k, part in enumerate(content if isinstance(content, list) else []):
            check_block(f"{where}.tool_result.content.{k}", "result", part)


def check_settings(body):
    """Refuse max_tokens, tools or a tool_choice that cannot be."""
    limit, tools, choice = body["max_tokens"], body.get("tools", []), body.get("tool_choice")
    words = f"max_tokens: {limit} > 128000, which is the maximum allowed, or less than 0"
    need(0 <= limit <= 128_000, words)
    for tool in tools:
        words = "tools: input_schema.type: Input should be 'object'"
        need(tool["input_schema"].get("type") == "object", words)
    unique = len({tool["name"] for tool in tools}) == len(tools)
    need(unique, "tools: Tool names must be unique.")
    need(tools or not choice, "tool_choice may only be specified while providing tools.")
    strict = body["model"].startswith(("claude-opus-5-5", "claude-fable-5"))
    forced = strict and choice and choice["type"] in ("any", "tool")
    need(not forced, "tool_choice: Forced tool use is not supported for this model.")
    used = {block.get("type") for _, _, block in rendered(body)} & {"tool_use", "tool_result"}
    words = "Requests which include `tool_use` or `tool_result` blocks must define tools."
    need(tools or not used, words)


def check_pairs(messages):
    """Refuse a call without a result in the next turn, a result without a call just before it."""
    used, answered, caller, before = set(), {}, "", ""  # answered: call of the last turn -> bool
    for where, role, block in [*rendered({"messages": messages}), ("", "", {"type": "end"})]:
        name = block.get("tool_use_id") or block.get("id")
        if block["type"] == "tool_result":
            words = "unexpected `tool_use_id` found in `tool_result` blocks"
            need(name in answered, f"{where}: {words}: {name}")
            need(not answered[name], f"{where}: each tool_use must have a single result: {name}")
            answered[name] = True
        elif (before, role) != ("assistant", "assistant"):  # neighbours of one role are one turn
            missing = ", ".join(name for name in answered if not answered[name])
            words = "`tool_use` ids were found without `tool_result` blocks immediately after"
            need(not missing, f"{caller}: {words}: {missing}")
            answered = {}
        if block["type"] == "tool_use":
            need(name not in used, f"{where}: `tool_use` ids must be unique")
            used.add(name)
            answered[name], caller = False, where.partition(".content")[0]
        before = role


def check_signatures(body):
    """Thinking must be ours, whole in the newest reply, and stand where it was made."""
    parts = [part for part in traced(body) if part[2].get("type") == "thinking"]
    words = "Invalid `signature` in `thinking` block"
    for where, _, block, _ in parts:
        ours = re.fullmatch(r"\d+-\w{64}", block.get("signature") or "")
        need(ours, f"{where}: {words}")
    newest = max(i for i, m in enumerate(body["messages"]) if not i or m["role"] == "assistant")
    latest = f"messages.{newest}.content."
    totals = [b["signature"].partition("-")[0] for where, _, b, _ in parts if latest in where]
    fixed = "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be"
    need(set(totals) <= {str(len(totals))}, f"{latest}0: {fixed} modified.")
    for where, _, block, prefix in parts:
        moved = f"{where}: {words}. The block is bound to a different conversation."
        need(block["signature"].endswith(prefix), moved)


def sign(body, content):
    """Sign the thinking of this reply to `body`: how many blocks, and all up to each."""
    total = sum(block["type"] == "thinking" for block in content)
    messages = [*body["messages"], {"role": "assistant", "content": content}]
    for _, _, block, prefix in traced(body | {"messages": messages}):
        if block.get("type") == "thinking":
            block.setdefault("signature", f"{total}-{prefix}")


# --- the request as the model sees it; tokens and the prompt cache ------------------------------


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


def bare(block):
    """The block as JSON, without cache mark and signature; fields sorted: the SDK shuffles them."""
    names = sorted(block.keys() - {"cache_control", "signature"})
    return json.dumps({name: block[name] for name in names}, ensure_ascii=False)


def traced(body):
    """Yield (where, role, block, hash of all blocks up to it) for every block."""
    prefix = ""
    for where, role, block in rendered(body):
        prefix = hashlib.sha256(f"{prefix} {role} {bare(block)}".encode()).hexdigest()
        yield where, role, block, prefix


def block_tokens(block):
    """UTF-8 bytes of the block's JSON / 4, rounded up."""
    return -(-len(bare(block).encode()) // 4)


def count_tokens(body):
    """Tokens of tools, system and messages."""
    return sum(block_tokens(block) for _, _, block in rendered(body))


def cache_marks(body):
    """{number of the block, from 1: ttl} of all cache marks, that of the top level included."""
    marks, last = {}, 0
    for at, (_, _, block) in enumerate(rendered(body), 1):
        if mark := block.get("cache_control"):
            marks[at] = mark.get("ttl", "5m")
        last = last if "thinking" in str(block.get("type")) else at
    if automatic := body.get("cache_control"):
        ttl = automatic.get("ttl", "5m")
        same = marks.setdefault(last, ttl) == ttl
        need(same, "cache_control: two different ttl on the last block")
    words = f"A maximum of 4 blocks with cache_control may be provided. Found {len(marks)}."
    need(len(marks) <= 4, words)
    ttls = list(marks.values())
    need(sorted(ttls) == ttls, "cache_control: ttl='1h' must not come after ttl='5m'")
    return marks


class PromptCache:
    """The prompt cache by its published rules, without expiry: entries only where marks stand."""

    def __init__(self, minimum=0):
        self.minimum, self.entries = minimum, set()  # minimum: tokens of a prefix worth caching

    def usage(self, body, content=()):
        """The usage of the reply `content` to `body`; remembers the entries it writes."""
        hashes, sizes = [""], [0]  # by the number of blocks up to there
        for _, _, block, prefix in traced(body):
            hashes.append(f"{body['model']} {prefix}")
            sizes.append(sizes[-1] + block_tokens(block))
        marks = {at: ttl for at, ttl in cache_marks(body).items() if sizes[at] >= self.minimum}
        near = [at - back for at in reversed(marks) for back in range(min(20, at))]
        hit = next((at for at in near if hashes[at] in self.entries), 0)
        last = max(marks, default=0)
        hour = max([hit, *(at for at, ttl in marks.items() if ttl == "1h")])
        self.entries.update(hashes[at] for at in marks)
        created = {"ephemeral_5m_input_tokens": sizes[last] - sizes[hour]}
        created["ephemeral_1h_input_tokens"] = sizes[hour] - sizes[hit]
        return {
            "input_tokens": sizes[-1] - sizes[last],
            "output_tokens": sum(map(block_tokens, content)),
            "cache_read_input_tokens": sizes[hit],
            "cache_creation_input_tokens": sizes[last] - sizes[hit],
            "cache_creation": created,
        }


# --- the practice model: a script that decides from the request alone ---------------------------

HELP = """I am a script without intelligence, here to practise on. I can:
- Read every Python file in DIR/ one by one (or: several at once)
- Keep reading files until compression triggers automatically
- Use the compact tool to manually compress the conversation, focus on X
- Run `COMMAND`, or Read FILE
- answer a question from what stands in the context, and summarise it"""
COMPRESSED = re.compile(  # summary, status and text of the request
    r"(?s)\[Conversation compressed[^\n]*\n\n(.*?)(?:\n\nCalls before this point.*?)?"
    r"(?:\n\n\[The user's request, ([\w ]+)\]\n(.*?)(?:\n\[Go on from here.*)?)?$"
)
ENTRY = re.compile(r"\n\n(?=(?:user|assistant|result of [\w-]+): |call [\w-]+ \{|\[\.\.\. cut )")
CLEARED = ("[Previous: used ", "[Old tool result ", "[Content snipped ")
GONE = "read, but no longer in my context"
COMMON = set("what which who whom how many much does did the and that this are was from".split())


def practice_reply(body):
    """(content blocks, stop reason) of the script's answer to a request."""
    view = look(entries(body["messages"]))
    for pattern, act in BEHAVIOURS.items():
        if match := re.match(rf"(?is)\W*(?:please |请)?{pattern}", view.request):
            text, calls = act(view, match)
            break
    offered = [tool["name"] for tool in body.get("tools", [])]
    for tool, _ in calls:
        if tool not in offered:
            text, calls = f"I need the tool {tool}, which this request does not offer.", []
    content = [{"type": "text", "text": text}] if text else []
    for tool, given in calls:
        call = {"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", "name": tool}
        content.append(call | {"input": given, "caller": {"type": "direct"}})
    return content, "tool_use" if calls else "end_turn"


def entries(messages):
    """Yield (kind, text) for every text, call and result."""
    for _, role, block in rendered({"messages": messages}):
        if block["type"] == "text":
            yield role, block["text"]
        elif block["type"] == "tool_use":
            yield "call", f"{block['name']} {json.dumps(block['input'], ensure_ascii=False)}"
        elif block["type"] == "tool_result":
            parts = as_blocks(block.get("content", ""))
            yield "result", "\n".join(part.get("text", "") for part in parts)


def entries_of_text(data):
    """The same from the text that a summariser gets; an entry starts in column 0."""
    for entry in ENTRY.split(data):
        kind, _, text = entry.partition(" ")
        if kind == "result":
            text = text.partition(": ")[2].replace("\n  ", "\n")
        yield kind.strip(":"), text


def look(found):
    """What the entries show: the newest request, all steps, those that are new since then.

    A step is [tool, argument, result], or ["assistant" or "summary", "", text]. A summary of work
    in progress is a step that follows the request.
    """
    request, steps, start, waiting = "", [], 0, []  # waiting: calls without a result so far
    for kind, text in found:
        if kind == "user" and (compressed := COMPRESSED.match(text)):
            summary, status, request = compressed.groups("")
            steps.append(["summary", "", summary])
            start = len(steps) - (status == "in progress")
        elif kind == "user" and text != "(continue)":
            request, start = text, len(steps)
        elif kind == "assistant":
            steps.append([kind, "", text])
        elif kind == "call":
            given = re.search(r'"(?:command|path|focus)": "((?:[^"\\]|\\.)*)"', text)
            steps.append([text.partition(" ")[0], given[1] if given else "", ""])
            waiting.append(steps[-1])
        elif kind == "result" and waiting:
            waiting.pop(0)[2] = "" if text.startswith(CLEARED) else text
        elif kind == "[...":
            waiting = []  # after a gap nobody knows whose result comes
    return SimpleNamespace(request=request, steps=steps, new=steps[start:])


def facts(text):
    """What a file holds: its number of lines, first definitions and numbers, or first line."""
    cut = " and more" if "\n[... " in text else ""
    found = re.findall(r"(?m)^\s*((?:def|class) \w+)", text)[:4]
    found += re.findall(r"(?m)^([A-Z][A-Z_\d]+ = [\d_.]+)", text)[:3]
    first = text.strip().partition("\n")[0][:80]
    return f"{len(text.splitlines())} lines{cut}, {', '.join(found) or first}"


def files_read(view):
    """{path: its facts, or GONE} of every file that the context shows as read."""
    known = {}
    for kind, path, text in view.steps:
        if kind == "summary":
            known |= re.findall(r"(?m)^- read (.+?): (.*)$", text)
        elif kind == "read_file":
            known[path] = facts(text) if text else known.get(path, GONE)
    return known


def planned(view):
    """The files of the newest plan for the request, or None."""
    told = "\n".join(text for kind, _, text in view.new if kind in ("assistant", "summary"))
    plans = re.findall(r"Plan: \d+ files to read: (.+)", told)
    return plans[-1].split(", ") if plans else None


def read_on(view, match):
    """List, plan, read the files of the plan, answer."""
    until = re.search("(?i)until|直到", match[0])
    folder = re.search(r"(?a)([\w./-]+)/", f"{view.request} ./")[1]
    ending = re.search(r"(?a)\.\w+\b(?!/)|$", re.sub("(?i)python", ".py", view.request))[0]
    pattern = "*.py */*.py */*/*.py" if until else f"{folder}/*{ending}"
    command, first = f"ls -1dp {pattern}", pattern.partition(" ")[0]
    plan, known, text = planned(view), files_read(view), ""
    if plan is None:
        listed = [result for _, given, result in view.new if given == command and result]
        if not listed:
            return "", [("bash", {"command": command})]
        plan = [line for line in listed[-1].splitlines() if fnmatchcase(line, first)]
        plan = [line for line in plan if not line.endswith("/")]
        text = f"Plan: {len(plan)} files to read: {', '.join(plan)}"
    left = [path for path in plan if path not in known]
    kinds = [kind for kind, _, _ in view.new]
    enough = until and kinds[0] == "summary" and kinds.count("read_file") > 3  # since compaction
    if left and not enough:
        number = 5 if re.search("(?i)several|at once|parallel|同时", view.request) else 1
        return text, [("read_file", {"path": path}) for path in left[:number]]
    lines = [f"- {path}: {fact}" for path, fact in known.items() if fnmatchcase(path, first)]
    rest = f" {len(left)} files of the plan remain." if left else ""
    return "\n".join([f"I have read {len(lines)} files ({pattern}).{rest}", *lines]), []


def once(tool, field, words):
    """A behaviour: call the tool with what the pattern found, then say what came of it."""

    def act(view, match):
        for kind, _, text in reversed(view.new):
            if kind == tool:
                return words.format(given=match[1], result=text, facts=facts(text)), []
        return "", [(tool, {field: match[1]} if match[1] else {})]

    return act


def answer(view, _):
    """The lines of the context that share most with the question."""
    found = best_lines(view.request, view.steps, 3)
    return "\n".join(found) or "The context that I see does not hold the answer.", []


def best_lines(question, steps, limit):
    """The lines of the steps that share the longest words with the question, best first."""
    words = set(re.findall(r"\w[\w./-]+\w", question.lower())) - COMMON
    shown = "\n".join(text for _, _, text in steps)
    lines = re.findall(r"(?m)^(?:- kept: |\s*)(?!- asked: )(\S.*)$", shown)
    lines.sort(key=lambda line: line.startswith("- "))  # what stands in a file before any list
    score = {line: sum(len(word) for word in words if word in line.lower()) for line in lines}
    found = nlargest(limit, score, key=score.get)
    return [line for line in found if score[line] > score[found[0]] / 2]


def summarise(_, match):
    """A summary of the fenced data with those parts that the words before it name."""
    asked, view = match[1], look(entries_of_text(match[3]))
    known, done = files_read(view), []
    for kind, given, text in view.steps:
        if kind == "summary":
            done += re.findall(r"(?m)^- ((?:bash|edit_file|write_file|kept:) .*)$", text)
        elif kind in ("bash", "edit_file", "write_file"):
            done.append(" ".join(f"{kind} {given}: {text[:100]}".split()))
    for focus in re.findall("(?m)^Focus: (.*)$", asked):
        done += [f"kept: {line[:200]}" for line in best_lines(focus, view.steps, 6)]
    left = [path for path in planned(view) or [] if path not in known]
    todo = [f"Plan: {len(left)} files to read: {', '.join(left)}"] if left else []
    reads = [f"read {path}: {fact}" for path, fact in known.items()]
    parts = {
        "What was accomplished": reads + list(dict.fromkeys(done))[-20:],
        "Current state": [f"asked: {' '.join(view.request.split())[:300]}", *todo],
        "Key decisions": ["read in the order of the listing, no file twice"],
    }
    named = [title for title in parts if title.lower() in asked.lower()]
    texts = ["\n- ".join([f"{title}:", *(parts[title] or ["nothing"])]) for title in named]
    return "\n\n".join(texts) or "No part of a summary was asked for.", []


BEHAVIOURS = {  # pattern of the newest request -> what to do; the first that matches decides
    r"(.*?)<(data-[\w-]+)>\n(.*)\n</\2>": summarise,
    r"(?:use|使用).{0,9}compact(?:.*(?:focus\w* on|重点|聚焦|关注)\W*(.+?)\W*$)?": once(
        "compact", "focus", "The tool answered: {result} I go on from the context as it is now."
    ),
    r"(?:run|运行|执行)\b\s*`?([^`]+)": once("bash", "command", "It printed:\n{result:.500}"),
    r".*?(?:(?:read|读).*(?:until|直到)|read\s+(?:every|each|all)\b|读.*(?:所有|每))": read_on,
    r"(?:read|读取)\s+`?([\w-]*[./][\w./-]*\w)": once("read_file", "path", "{given}: {facts}"),
    r".*?(?:[?？]|what|which|how many|who|什么|多少)": answer,
    "": lambda *_: (HELP, []),
}


# --- the server ---------------------------------------------------------------------------------

SPOILED = {  # fault -> what it changes in the reply
    "empty": {"content": []},
    "refusal": {"content": [], "stop_reason": "refusal"},
    "cut reply": {"content": [{"type": "text", "text": "o"}], "stop_reason": "max_tokens"},
    "unknown block": {"content": [{"type": "brand_new_block"}, {"type": "text", "text": "ok"}]},
    "no usage": {"usage": None},
}
BROKEN = {  # fault -> (bytes sent, content type, bytes that are promised beyond them)
    "html": (b"<html><body>Welcome</body></html>", "text/html", 0),
    "no body": (b"", "application/json", 0),
    "cut body": (b'{"id": "msg_', "application/json", 100),
    "cut": (b"", "cut", 1),
    "timeout": (b"", "timeout", 1),
}


@dataclass
class PracticeAPI:
    """The server, as a context manager; it listens at `url`."""

    port: int = 0  # 0 = any free one
    profile: str = "claude"  # or "deepseek": wants all thinking back, signs nothing
    window: int = 200_000  # tokens that a request may have
    model: Callable = practice_reply  # body -> (content blocks, stop reason)
    retry: bool = True  # False tells the client not to try again after an error
    requests: list = field(default_factory=list)  # every POST: {"path", "body", "status", ...}
    replies: list = field(default_factory=list)  # (content, stop reason) before the model is asked
    # What goes wrong, one per request: a status, (status, message), a key of SPOILED or BROKEN,
    # "stop:REASON"; or a function of the body, asked each time, that returns one.
    faults: list = field(default_factory=list)

    def __post_init__(self):
        self.cache, self.lock, self.closed = PromptCache(), threading.Lock(), threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.api, self.url = self, f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path, headers, raw):
        """(status, bytes, content type, bytes promised beyond) for a POST; kept in `requests`."""
        record = dict.fromkeys(("error", "content", "stop_reason", "usage"))
        record |= {"path": path, "body": {}, "status": 200}
        with self.lock:
            self.requests.append(record)
            try:
                body = record["body"] = self.read(path, headers, raw)
                validate(body, profile=self.profile, window=self.window)
                if "/count_tokens" in path:
                    answer = {"input_tokens": count_tokens(body)}
                elif (fault := self.next_fault(body)) in BROKEN:
                    record.update(status=None, error=fault)
                    return 200, *BROKEN[fault]
                else:
                    answer = self.reply(body, fault)
                    record |= {name: answer[name] for name in ("content", "stop_reason", "usage")}
            except ApiError as problem:
                record.update(status=problem.status, error=problem.message)
                words = {"type": problem.type, "message": problem.message}
                answer = {"type": "error", "error": words, "request_id": self.request_id()}
        return record["status"], json.dumps(answer).encode(), "application/json", 0

    def request_id(self):
        """The id of the newest request, as header and error body show it."""
        return f"req_{len(self.requests):024}"

    def read(self, path, headers, raw):
        """The body of a request to a known path, with some key."""
        if not headers.get("x-api-key") and not headers.get("authorization"):
            raise ApiError(401, "x-api-key header is required")
        need(headers.get("anthropic-version"), "anthropic-version: header is required")
        if path.partition("?")[0] not in ("/v1/messages", "/v1/messages/count_tokens"):
            raise ApiError(404)
        try:
            body = json.loads(raw)
            json.dumps(body, ensure_ascii=False).encode()  # fails on half a surrogate pair
        except ValueError:
            body = None
        need(isinstance(body, dict), "The request body is not a valid JSON object")
        need(not body.get("stream"), "stream: this practice API does not stream")
        if "anthropic-beta" in headers:
            body.pop("context_management", None)  # accepted, and nothing comes of it
        return {"max_tokens": 1} | body if "/count_tokens" in path else body

    def next_fault(self, body):
        """The fault for this request: a function is asked, anything else is used up."""
        if self.faults and callable(self.faults[0]):
            return self.faults[0](body) or ""
        return self.faults.pop(0) if self.faults else ""

    def reply(self, body, fault):
        """The message that answers a valid request, as the fault leaves it."""
        if isinstance(fault, (int, tuple)):
            raise ApiError(*fault) if isinstance(fault, tuple) else ApiError(fault)
        content, stop = self.replies.pop(0) if self.replies else self.model(body)
        if body["max_tokens"] == 0:
            content, stop = [], "max_tokens"
        thought = {"type": "thinking", "thinking": ""}
        thought |= {"signature": ""} if self.profile == "deepseek" else {}
        first = [thought] if content and content[0]["type"] != "thinking" else []
        content = [dict(block) for block in [*first, *content]]
        sign(body, content)
        message = {"id": f"msg_{len(self.requests):024}", "type": "message", "role": "assistant"}
        message |= {"model": body["model"], "content": content, "stop_reason": stop}
        message |= {"stop_sequence": None, "stop_details": None}
        message |= {"usage": self.cache.usage(body, content)} | SPOILED.get(fault, {})
        return message | ({"stop_reason": fault[5:]} if fault.startswith("stop:") else {})


class Handler(BaseHTTPRequestHandler):
    """HTTP around PracticeAPI.answer."""

    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

    def handle(self):
        with suppress(ConnectionError):  # a client that leaves is no error of the server's
            super().handle()

    def do_POST(self):
        api, raw = self.server.api, self.rfile.read(int(self.headers.get("content-length") or 0))
        status, data, kind, missing = api.answer(self.path, self.headers, raw)
        self.close_connection |= missing > 0
        if kind == "timeout":
            api.closed.wait()
        if kind in ("timeout", "cut"):
            return
        headers = {"content-type": kind, "content-length": len(data) + missing}
        headers |= {"request-id": api.request_id()}
        headers |= {"retry-after": 0} if status == 429 else {}
        final = 400 <= status < 500 and status != 429 or not api.retry
        headers |= {"x-should-retry": "false"} if final else {}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
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
        api = PracticeAPI(**vars(options))
    except (OSError, OverflowError) as problem:
        parser.exit(2, f"port {options.port}: {problem}\n")
    with api, suppress(KeyboardInterrupt):
        print("Practice API: a script answers, there is no intelligence in it. Set", end=" ")
        print(f"ANTHROPIC_BASE_URL={api.url} ANTHROPIC_API_KEY=practice", flush=True)
        threading.Event().wait()


# --- the demo -----------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parent.parent
ACTS = [  # prompt, knobs, what to watch
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
        "Use the compact tool to manually compress the conversation, focus on MAX_RESULT_CHARS",
        {},
        "Layer 3: the model itself asks for the summary",
    ),
    ("What is MAX_RESULT_CHARS?", {}, "only the summary is left to answer from"),
]
NOTE = re.compile(r"(?m)^\[(?:\.\.\.|Previous:|Conversation|Content|Old|Attached) .*\].*$")


def go_offline(agent, api):
    """Make the agent module talk to a running PracticeAPI, whatever keys and proxies are set."""
    os.environ.update(ANTHROPIC_BASE_URL=api.url, ANTHROPIC_API_KEY="practice")
    os.environ.update(NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
    os.environ.pop("ANTHROPIC_AUTH_TOKEN", None)
    vars(agent).update(client=None, MODEL="claude-haiku-5-5")


def demo(agent, root=ROOT, acts=ACTS, knobs_in=None):
    """Play the acts with the agent module in the folder `root`; 0, or 1 when its loop failed.

    `knobs_in`: the variables that are the knobs; the agent's own when nothing is said.
    """
    messages, before, environment = [], dict(vars(agent)), dict(os.environ)
    try:
        with PracticeAPI() as api:
            go_offline(agent, api)
            vars(agent).update(WORKDIR=root, TRANSCRIPT_DIR=root / ".transcripts")
            for prompt, knobs, why in acts:
                turned = ", ".join(f"{name} = {value}" for name, value in knobs.items())
                print(f"\n--- {why} ({turned or 'knobs as before'})\n>> {prompt}")
                (knobs_in or vars(agent)).update(knobs)
                agent.add(messages, "user", prompt)
                if agent.agent_loop(messages) is False:
                    return 1
                for _, _, block in rendered({"messages": messages}):
                    for note in NOTE.findall(str(block.get("text") or block.get("content"))):
                        print(f"  in the context: {note}")
        if acts is ACTS:
            print(f"\n{sawtooth(*measured(api.requests), agent.THRESHOLD)}")
        print(f"\nEvery message is on disk, in {agent.TRANSCRIPT_DIR}")
        return 0
    finally:
        vars(agent).update(before)
        os.environ.clear()
        os.environ.update(environment)


def measured(requests):
    """(context sizes, {index: layer}) of the answered requests with tools."""
    sizes, marks, summary, cleared = [], {}, "", 0
    for record in requests:
        if not record["usage"] or not record["body"].get("tools"):
            continue
        before, messages = (summary, cleared), record["body"]["messages"]
        first = as_blocks(messages[0]["content"])[0].get("text", "").partition("\n")[0]
        summary = first if first.startswith("[Conversation compressed") else ""
        cleared = json.dumps(messages).count(': "[Previous: used ')
        if summary not in ("", before[0]):
            marks[len(sizes)] = "3" if '"compact"' in json.dumps(messages[1:2]) else "2"
        elif cleared > before[1]:
            marks[len(sizes)] = "1"
        sizes.append(sum(n for name, n in record["usage"].items() if name.endswith("input_tokens")))
    return sizes, marks


def sawtooth(sizes, marks, threshold, width=52, height=10):
    """A text chart of context sizes; marks: {index of a request: layer that fired before it}."""
    shown = range(len(sizes))[-width:]  # the newest, when there are more requests than columns
    wide = max(1, min(3, width // max(1, len(shown))))  # characters of one column
    top = max([threshold, 1, *sizes])
    line = round(threshold / top * height)
    labels = {height: f"{top:,}", line: f"threshold {threshold:,}"}
    rows = []
    for row in range(height, 0, -1):
        blank, low = "-" if row == line else " ", top * (row - 0.5) / height
        bars = "".join(("#" if sizes[at] >= low else blank) * wide for at in shown)
        rows.append(f"{labels.get(row, ''):>18} |{bars}")
    rows.append(f"{'0':>18} +" + "-" * wide * len(shown))
    rows.append(f"{'layer':>18}  " + "".join(marks.get(at, "").ljust(wide) for at in shown))
    return "\n".join(row.rstrip() for row in rows)


if __name__ == "__main__":
    main()
