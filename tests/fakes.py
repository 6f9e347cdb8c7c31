"""Small literals for fake message lists, and a model that says what it was told to say."""

import copy
import json
import re
from types import SimpleNamespace

import pytest

SHIPPED = {  # the fixture `agent` sets these: tests stay green when a student turns a knob
    "KEEP_RECENT": 3,
    "PRESERVE_RESULT_TOOLS": {"read_file"},
    "CLEAR_AT_LEAST": 0,
    "THRESHOLD": 50000,
    "MIN_SAVINGS": 0.4,
    "SUMMARY_INPUT": 30000,
    "MAX_RESULT_CHARS": 50000,
    "MAX_TOKENS": 8000,
    "MAX_FAILURES": 3,
    "TRAIL_CALLS": 40,
    "TRAIL_CHARS": 2000,
    "REQUEST_CHARS": 8000,
    "BASH_SECONDS": 120,
    "TOOL_BYTES": 10_000_000,
}


def user(*content):
    """user("hi") or user(result("t1", "a.py"), text("and now?"))"""
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else [*content]}


def assistant(*content):
    return {**user(*content), "role": "assistant"}


def text(words):
    return {"type": "text", "text": words}


def call(call_id, name, **given):
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def result(call_id, content):
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def thinking(words="hm", signature="signed"):
    return {"type": "thinking", "thinking": words, "signature": signature}


def big(size, name="BIG"):
    """`size` characters of filler with a unique mark at each end."""
    head, tail = f"{name}-HEAD ", f" {name}-TAIL"
    return head + "x" * (size - len(head) - len(tail)) + tail


def turn(number, tool="bash", output=None):
    """One exchange: a call, and its result of some 500 characters."""
    output = big(500, f"R{number}") if output is None else output
    given = {"command": f"cmd {number}"} if tool == "bash" else {"path": f"f{number}.py"}
    return [assistant(call(f"t{number}", tool, **given)), user(result(f"t{number}", output))]


def session(turns, tool="bash"):
    """A request and `turns` exchanges."""
    return [user("go"), *(message for number in range(turns) for message in turn(number, tool))]


def lines_of(path):
    """The messages in a transcript, one for each line."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def results(messages):
    """The content of every tool_result in `messages`, in order."""
    blocks = [b for m in messages if isinstance(m["content"], list) for b in m["content"]]
    return [b.get("content") for b in blocks if b.get("type") == "tool_result"]


def reply(*content, stop=None):
    """A reply of the model as the SDK hands it out, as far as the agent looks at it.

    reply("done") ends the turn; reply(call("t1", "bash", command="ls")) asks for a tool.
    """
    blocks = [text(block) if isinstance(block, str) else block for block in content]
    calls = any(block["type"] == "tool_use" for block in blocks)
    return SimpleNamespace(
        content=blocks, stop_reason=stop or ("tool_use" if calls else "end_turn")
    )


class ApiFault(Exception):
    """An error with a status, as the SDK raises it."""

    def __init__(self, status, message="refused"):
        super().__init__(f"Error code: {status} - {message}")
        self.status_code, self.api_message = status, message


def problems(request):
    """What the API would refuse in a request, in words; [] for a request that it accepts."""
    found, ids, calls = [], [], []
    marks = json.dumps(request, ensure_ascii=False).encode().count(b'"cache_control"')
    roles = [message["role"] for message in request["messages"]]
    if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
        found.append(f"roles: {roles}")
    for i, message in enumerate(request["messages"]):
        blocks = message["content"]
        blocks = [text(blocks)] if isinstance(blocks, str) else blocks
        kinds = [block["type"] for block in blocks]
        answers = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(map(str, answers)) != sorted(map(str, calls)):
            found.append(f"message {i}: results for {answers}, calls were {calls}")
        if "tool_result" in kinds[len(answers) :]:
            found.append(f"message {i}: {kinds}, results do not come first")
        if not blocks or any(not b["text"].strip() for b in blocks if b["type"] == "text"):
            found.append(f"message {i}: empty, or an empty text")
        if any("thinking" in b["type"] and "cache_control" in b for b in blocks):
            found.append(f"message {i}: a cache mark on thinking")
        if set(message) != {"role", "content"}:
            found.append(f"message {i}: fields {sorted(message)}")
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        ids += calls
    legal = all(
        re.fullmatch("[a-zA-Z0-9_-]+", str(call_id)) and str(call_id) == call_id for call_id in ids
    )
    if not legal or len(ids) != len(set(ids)) or marks > 4 or (ids and "tools" not in request):
        found.append(f"ids {ids}, {marks} cache marks, tools: {'tools' in request}")
    return found


class ScriptedClient:
    """Stands for the SDK's client: hands out `replies` in order, records every request.

    It is as strict as the API, and fails the test in a way that no agent can catch.
    """

    def __init__(self, replies):
        self.replies, self.requests, self.messages = list(replies), [], self

    def create(self, **request):
        self.requests.append(copy.deepcopy(request))
        if problems(request):
            pytest.fail(f"the API would refuse this request: {problems(request)}")
        if not self.replies:
            pytest.fail("the agent asked the model once more than the script knows")
        answer = self.replies.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @property
    def steps(self):
        """The requests for a next step; the others ask for a summary."""
        return [request for request in self.requests if "tools" in request]

    @property
    def summaries(self):
        """The text of each request for a summary."""
        return [
            json.dumps(r["messages"], ensure_ascii=False) for r in self.requests if "tools" not in r
        ]
