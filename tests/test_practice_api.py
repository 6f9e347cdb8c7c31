"""The practice API: what it refuses, how it fails on demand, what its script can do.

Run: python -m pytest -q tests/test_practice_api.py
"""

import json
import re
import shutil
import types
import urllib.request

import anthropic
import practice_api
import pytest
from practice_api import ApiError, PracticeAPI, PromptCache, practice_reply, sawtooth, validate

TOOL_NAMES = ("bash", "read_file", "edit_file", "write_file", "compact")
TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in TOOL_NAMES]


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def text(words):
    return {"type": "text", "text": words}


def call(name="t1", tool="bash", **inputs):
    return {"type": "tool_use", "id": name, "name": tool, "input": inputs}


def result(name="t1", content="ok", **more):
    return {"type": "tool_result", "tool_use_id": name, "content": content, **more}


def body(*messages, **more):
    head = {"model": "claude-haiku-5-5", "max_tokens": 100, "tools": TOOLS}
    return {**head, "messages": list(messages) or [user("hi")], **more}


def marked(number, ttl="5m"):
    mark = {"type": "ephemeral", "ttl": ttl}
    return user([text(f"{k}") | {"cache_control": mark} for k in range(number)])


def without(name):
    return {key: value for key, value in body().items() if key != name}


# ------------------------------------------------------------------------------------------------
# what it refuses

PAIR = [user("go"), assistant([call()]), user([result()])]
REFUSED = {  # rule: (request, stable words of the message)
    "R4 no max_tokens": (without("max_tokens"), "max_tokens: Field required"),
    "R4 temperature": (body(temperature=1), "temperature: Extra inputs are not permitted"),
    "R5 message field": (body({**user("a"), "id": 1}), "messages.0.id: Extra inputs"),
    "R5 block field": (
        body(user([text("a") | {"tokens": 1}])),
        "messages.0.content.0.text.tokens: Extra inputs are not permitted",
    ),
    "R5 marked thinking": (
        body(
            user("a"),
            assistant([{"type": "thinking", "thinking": "", "cache_control": {}}]),
            user("b"),
        ),
        "messages.1.content.0.thinking.cache_control: Extra inputs",
    ),
    "R5 block type": (body(user([{"type": "foo"}])), "Input tag 'foo' found using 'type'"),
    "R6 role": (body({"role": "tool", "content": "a"}), "messages.0.role: Input should be 'user'"),
    "R7 nothing": (body() | {"messages": []}, "at least one message is required"),
    "R7 first": (body(assistant("a"), user("b")), 'first message must use the "user" role'),
    "R8 unanswered": (
        body(user("go"), assistant([call()]), user("what?")),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: t1",
    ),
    "R8 call last": (body(user("go"), assistant([call()])), "`tool_use` ids were found without"),
    "R9 orphan": (body(user([result("t9")])), "unexpected `tool_use_id` found in"),
    "R9 late": (body(*PAIR, assistant("a"), user([result()])), "unexpected `tool_use_id`"),
    "R10 text first": (
        body(*PAIR[:2], user([text("here"), result()])),
        "`tool_use` ids were found without `tool_result`",
    ),
    "R11 twice called": (
        body(user("go"), assistant([call(), call()]), user([result()])),
        "messages.1.content.1: `tool_use` ids must be unique",
    ),
    "R11 id again": (body(*PAIR, *PAIR[1:]), "`tool_use` ids must be unique"),
    "R11 twice answered": (
        body(*PAIR[:2], user([result(), result()])),
        "each tool_use must have a single result",
    ),
    "R12 call of user": (body(user([call()])), "can only be in `assistant` messages"),
    "R12 result of assistant": (
        body(user("a"), assistant([result()]), user("b")),
        "`tool_result` blocks can only be in `user` messages",
    ),
    "R13 empty": (body(user("")), "messages.0: all messages must have non-empty content"),
    "R13 empty text": (body(user([text("")])), "text content blocks must be non-empty"),
    "R13 blank": (body(user("  ")), "text content blocks must contain non-whitespace text"),
    "R13 blank system": (body(system=" "), "must contain non-whitespace text"),
    "R13 nested": (
        body(*PAIR[:2], user([result(content=[text("")])])),
        "text content blocks must be non-empty",
    ),
    "R14 prefill": (body(user("a"), assistant("b")), "does not support assistant message prefill"),
    "R16 system": (body(user("a"), {"role": "system", "content": "b"}), "messages.1.role: Input"),
    "R17 tool name": (body(tools=[TOOLS[0] | {"name": "a b"}]), "String should match pattern"),
    "R17 same names": (body(tools=TOOLS + TOOLS), "tools: Tool names must be unique."),
    "R17 schema": (body(tools=[{"name": "a"}]), "tools.0.custom.input_schema: Field required"),
    "R17 id": (body(user("a"), assistant([call("a b")])), "tool_use.id: String should match"),
    "R17 input": (
        body(user("a"), assistant([call() | {"input": "{}"}])),
        "tool_use.input: Input should be a valid dictionary",
    ),
    "R18 content": (
        body(*PAIR[:2], user([result(content=None)])),
        "tool_result.content: Input should be a valid string",
    ),
    "R18 empty error": (
        body(*PAIR[:2], user([result(content="", is_error=True)])),
        "content cannot be empty if `is_error` is true",
    ),
    "R19 no tools": (body(*PAIR, tools=[]), "blocks must define tools"),
    "R20 choice": (body(tools=[], tool_choice={"type": "auto"}), "tool_choice may only be"),
    "R20 forced": (
        body(model="claude-opus-5-5", tool_choice={"type": "any"}),
        "Forced tool use is not supported",
    ),
    "R21 max_tokens": (body(max_tokens=200_000), "max_tokens: 200000 > 128000, which is the"),
    "R22 window": (body(user("a" * 999_999)), "prompt is too long: 250"),
    "R26 forged": (
        body(
            user("a"),
            assistant([{"type": "thinking", "thinking": "hm", "signature": ""}]),
            user("b"),
        ),
        "messages.1.content.0: Invalid `signature` in `thinking` block",
    ),
    "R28 five marks": (body(marked(5)), "A maximum of 4 blocks with cache_control"),
    "R28 ttl order": (body(marked(1), marked(1, "1h")), "must not come after"),
    "R28 empty text": (
        body(user([text("") | {"cache_control": {"type": "ephemeral"}}])),
        "text content blocks must be non-empty",
    ),
}


@pytest.mark.parametrize(("request_body", "words"), REFUSED.values(), ids=REFUSED)
def test_a_broken_rule_is_refused(request_body, words):
    with pytest.raises(ApiError) as refused:
        validate(request_body)
    assert words in refused.value.message
    assert (refused.value.status, refused.value.type) == (400, "invalid_request_error")


ACCEPTED = {
    "text": body(),
    "neighbours of one role": body(user("a"), user("b")),
    "echoed nulls": body(
        user("a"),
        assistant([text("b") | {"citations": None}, call() | {"caller": {"type": "direct"}}]),
        user([result(content=[])]),
    ),
    "results spread over two messages": body(
        user("a"), assistant([call("t1"), call("t2")]), user([result("t1")]), user([result("t2")])
    ),
    "text behind results": body(*PAIR[:2], user([result(), text("go on")])),
    "result without content": body(*PAIR[:2], user([{"type": "tool_result", "tool_use_id": "t1"}])),
    "a tool of no type": body(tools=[TOOLS[0] | {"type": None}]),
    "four marks": body(marked(4)),
    "redacted thinking": body(
        user("a"), assistant([{"type": "redacted_thinking", "data": "x"}, text("b")]), user("c")
    ),
    "prefill where it is still taken": body(user("a"), assistant("b"), model="claude-haiku-4-5"),
    "automatic mark on a marked block": body(marked(4), cache_control={"type": "ephemeral"}),
}


@pytest.mark.parametrize("request_body", ACCEPTED.values(), ids=ACCEPTED)
def test_what_the_real_api_accepts_is_accepted(request_body):
    assert validate(request_body) is None


def test_an_unknown_model_is_not_found():
    with pytest.raises(ApiError, match="404 not_found_error: model: gpt"):
        validate(body(model="gpt"))
    assert validate(body(model="gpt"), profile="deepseek") is None


# ------------------------------------------------------------------------------------------------
# thinking


def thought_session(number=1):
    """A session of two calls whose replies begin with signed thinking blocks."""
    messages = [user("go")]
    for name in ("t1", "t2"):
        reply = [{"type": "thinking", "thinking": ""} for _ in range(number)] + [call(name)]
        practice_api.sign(body(*messages), reply)
        messages += [assistant(reply), user([result(name)])]
    return messages


def refusal(messages):
    with pytest.raises(ApiError) as refused:
        validate(body(*messages))
    return refused.value.message


def test_thinking_that_comes_back_unchanged_is_accepted():
    assert validate(body(*thought_session(2))) is None


def test_cache_marks_and_merged_neighbours_do_not_break_signatures():
    go, *rest = thought_session()
    go = user([text("go") | {"cache_control": {"type": "ephemeral"}}])
    assert validate(body(go, *rest)) is None


def test_dropping_all_thinking_from_some_point_on_is_accepted():
    messages = thought_session()
    messages[2] = user([result("t1", "cleared")])
    messages[3]["content"].pop(0)
    assert validate(body(*messages)) is None


def test_editing_before_a_thinking_block_is_refused():
    messages = thought_session()
    messages[2] = user([result("t1", "cleared")])
    assert "messages.3.content.0" in refusal(messages)
    assert "bound to a different conversation" in refusal(messages)


def test_dropping_earlier_thinking_is_refused():
    messages = thought_session()
    messages[1]["content"].pop(0)
    assert "bound to a different conversation" in refusal(messages)


@pytest.mark.parametrize("dropped", [0, 1])
def test_the_newest_reply_keeps_all_of_its_thinking_or_none(dropped):
    messages = thought_session(2)
    messages[3]["content"].pop(dropped)
    assert "in the latest assistant message cannot be modified" in refusal(messages)


def test_deepseek_wants_the_thinking_of_tool_turns_back():
    with pytest.raises(ApiError, match="must be passed back to the API"):
        validate(body(*PAIR), profile="deepseek")
    messages = thought_session()
    messages[2] = user([result("t1", "cleared")])
    assert validate(body(*messages), profile="deepseek") is None


# ------------------------------------------------------------------------------------------------
# the prompt cache


def usage(cache, *blocks):
    """(read, written, new) of a request with these texts; "a*" carries a cache mark."""
    content = []
    for words in blocks:
        mark = {"cache_control": {"type": "ephemeral"}} if words.endswith("*") else {}
        content.append(text(words.rstrip("*")) | mark)
    counts = cache.usage({"model": "m", "messages": [user(content)]})
    names = ("cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens")
    return tuple(counts[name] for name in names)


@pytest.fixture
def cache(monkeypatch):
    """A prompt cache that takes a letter for a token."""
    monkeypatch.setattr(practice_api, "block_tokens", lambda block: len(block["text"]))
    return PromptCache()


def test_without_a_mark_nothing_is_cached(cache):
    assert [usage(cache, "aaa", "bb"), usage(cache, "aaa", "bb")] == [(0, 0, 5), (0, 0, 5)]


def test_a_later_request_reads_what_stands_before_an_earlier_mark(cache):
    assert usage(cache, "aaa", "bb*", "c") == (0, 5, 1)
    assert usage(cache, "aaa", "bb", "c", "dd*") == (5, 3, 0)
    assert usage(cache, "AAA", "bb", "c", "dd*") == (0, 8, 0)


@pytest.mark.parametrize(("more", "read"), [(19, 1), (20, 0)])
def test_an_entry_is_found_at_most_twenty_blocks_back(cache, more, read):
    usage(cache, "a*")
    assert usage(cache, "a", *["b"] * (more - 1), "c*")[0] == read


def test_a_prefix_below_the_minimum_is_not_cached(cache):
    cache.minimum = 4
    assert usage(cache, "aaa*", "b") == (0, 0, 4)


def test_a_mark_of_an_hour_is_told_apart(cache):
    counts = cache.usage({"model": "m", "messages": [marked(2, "1h")]})
    creation = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 2}
    assert counts["cache_creation"] == creation


# ------------------------------------------------------------------------------------------------
# over HTTP, with the real SDK


@pytest.fixture
def api(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with PracticeAPI() as server:
        yield server


def ask(api, *messages, timeout=5, **more):
    client = anthropic.Anthropic(api_key="test", base_url=api.url, max_retries=0, timeout=timeout)
    with client:
        return client.messages.create(**body(*messages, **more))


def test_a_reply_begins_with_signed_thinking_and_can_be_echoed(api):
    reply = ask(api, user("Run `ls`"))
    assert [block.type for block in reply.content] == ["thinking", "tool_use"]
    answered = user([result(reply.content[1].id, "a.py")])
    assert ask(api, user("Run `ls`"), assistant(reply.content), answered).stop_reason == "end_turn"


def test_every_post_is_recorded(api):
    ask(api, user("hi"))
    with pytest.raises(anthropic.BadRequestError):
        ask(api, user(" "))
    assert [record["status"] for record in api.requests] == [200, 400]
    assert api.requests[0]["usage"]["input_tokens"] > 0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 429, 500, 502, 503, 529])
def test_a_status_can_be_ordered(api, status):
    api.faults = [status]
    with pytest.raises(anthropic.APIStatusError) as failed:
        ask(api)
    assert failed.value.status_code == status
    assert failed.value.type == ApiError(status).type
    assert ask(api).stop_reason == "end_turn"


@pytest.mark.parametrize("fault", ["cut", "cut body"])
def test_the_connection_can_be_cut(api, fault):
    api.faults = [fault]
    with pytest.raises(anthropic.APIConnectionError):
        ask(api)


def test_an_answer_can_stay_away(api):
    api.faults = ["timeout"]
    with pytest.raises(anthropic.APITimeoutError):
        ask(api, timeout=0.1)


def test_a_page_can_come_instead_of_json(api):
    api.faults = ["html"]
    assert "<html>" in ask(api)


STOPS = {"empty": "end_turn", "cut reply": "max_tokens", "refusal": "refusal"}
STOPS |= {"stop:pause_turn": "pause_turn", "unknown block": "end_turn", "no usage": "end_turn"}


@pytest.mark.parametrize(("fault", "stop"), STOPS.items())
def test_a_reply_can_be_spoiled(api, fault, stop):
    api.faults = [fault]
    assert ask(api).stop_reason == stop


def test_a_fault_can_choose_its_requests(api):
    api.faults = [lambda request: None if request.get("tools") else 529]
    assert ask(api).stop_reason == "end_turn"
    for _ in range(2):
        with pytest.raises(anthropic.APIStatusError, match="overloaded_error"):
            ask(api, tools=[])


def test_scripted_replies_come_before_the_model(api):
    api.replies = [([text("scripted")], "end_turn")]
    assert ask(api).content[1].text == "scripted"
    assert "without intelligence" in ask(api).content[1].text


def test_count_tokens_needs_no_max_tokens(api):
    client = anthropic.Anthropic(api_key="test", base_url=api.url)
    counted = client.messages.count_tokens(model="claude-x", messages=[user("hi")])
    assert counted.input_tokens == practice_api.count_tokens({"messages": [user("hi")]})


def post(api, path="/v1/messages", data=b"{}", **headers):
    """(status, message) of what is sent past the SDK and refused."""
    headers = {"anthropic-version": "2023-06-01"} | headers
    request = urllib.request.Request(f"{api.url}{path}", data, headers)
    with pytest.raises(urllib.error.HTTPError) as failed:
        urllib.request.urlopen(request)
    return failed.value.code, json.load(failed.value)["error"]["message"]


def test_a_key_a_known_path_and_json_are_wanted(api):
    half = json.dumps(body(user("\ud800"))).encode()
    assert post(api) == (401, "x-api-key header is required")
    assert "header is required" in post(api, authorization="t", **{"anthropic-version": ""})[1]
    assert post(api, "/v2", authorization="Bearer test") == (404, "Not found error")
    assert "valid JSON object" in post(api, data=b"[", authorization="Bearer test")[1]
    assert "valid JSON object" in post(api, data=half, authorization="Bearer test")[1]


def test_context_management_needs_a_beta_header(api):
    data = json.dumps(body(context_management={})).encode()
    assert "context_management: Extra inputs" in post(api, data=data, authorization="t")[1]
    headers = {"authorization": "t", "anthropic-beta": "context-management-2025-06-27"}
    headers["anthropic-version"] = "2026-10-21"
    request = urllib.request.Request(f"{api.url}/v1/messages", data, headers)
    assert urllib.request.urlopen(request).status == 200


# ------------------------------------------------------------------------------------------------
# the practice model


def reply(*messages, **more):
    """(text, [(tool, input)]) of the script's reply."""
    content, _ = practice_reply(body(*messages, **more))
    words = "".join(block.get("text", "") for block in content)
    return words, [(b["name"], b["input"]) for b in content if b["type"] == "tool_use"]


def play(prompt, tools, messages=()):
    """Play a session with the script; `tools(name, input)` gives the results."""
    messages = [*messages, user(prompt)]
    while True:
        content, _ = practice_reply(body(*messages))
        messages.append(assistant(content))
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            return messages
        done = [result(block["id"], tools(block["name"], block["input"])) for block in calls]
        messages.append(user(done))


FILES = {f"agents/{name}.py": f"def {name}():\n    pass\n" for name in "abcdefg"}


def folder(name, given):
    return FILES[given["path"]] if name == "read_file" else "\n".join(FILES)


def calls_of(messages):
    blocks = [
        block for message in messages[1:] for block in practice_api.as_blocks(message["content"])
    ]
    inputs = [block["input"] for block in blocks if block["type"] == "tool_use"]
    return [argument for given in inputs for argument in given.values()]


EVERY = "Read every Python file in the agents/ directory one by one"
EVERY_IN_CHINESE = (
    "\u9010\u4e2a\u8bfb\u53d6 agents/ \u76ee\u5f55\u4e0b\u7684\u6240\u6709 Python \u6587\u4ef6"
)


@pytest.mark.parametrize("prompt", [EVERY, EVERY_IN_CHINESE])
def test_every_file_is_read_once_after_a_listing(prompt):
    assert calls_of(play(prompt, folder)) == ["ls -1dp agents/*.py", *FILES]


def test_several_at_once_means_five_per_turn():
    messages = play("Read all *.py files in agents/, several at once", folder)
    assert [len(message["content"]) for message in messages[3::2]] == [6, 2, 1]


def test_the_answer_says_for_which_files_the_content_is_gone():
    messages = play(EVERY, folder)[:-1]
    messages[4] = user([result(messages[3]["content"][1]["id"], "[Previous: used read_file]")])
    words, _ = reply(*messages)
    assert "agents/a.py: read, but no longer in my context" in words
    assert "agents/b.py: 2 lines, def b" in words


def compressed(summary, request, label="The user's request, in progress"):
    trail = "Calls before this point, oldest first:\n- read_file agents/a.py"
    head = "[Conversation compressed. Transcript: .transcripts/t.jsonl]"
    end = "[Go on from here. Do not repeat what is done; answer the user if nothing remains.]"
    return f"{head}\n\n{summary}\n\n{trail}\n\n[{label}]\n{request}\n{end}"


DONE = "What was accomplished:\n- read agents/a.py: 2 lines, def a"
STATE = "Current state:\n- Plan: 2 files to read: agents/b.py, agents/c.py"


def test_after_a_compaction_it_goes_on_with_the_plan_of_the_summary():
    first = user(compressed(f"{DONE}\n\n{STATE}", EVERY))
    assert reply(first)[1] == [("read_file", {"path": "agents/b.py"})]


def test_without_the_current_state_it_lists_again_and_skips_what_was_read():
    messages = play(compressed(DONE, EVERY), folder)
    assert calls_of(messages) == ["ls -1dp agents/*.py", *list(FILES)[1:]]


def test_without_what_was_accomplished_its_answer_lacks_the_files_of_before():
    words = play(compressed(STATE, EVERY), folder)[-1]["content"][0]["text"]
    assert [name for name in FILES if name in words] == ["agents/b.py", "agents/c.py"]


def test_a_new_request_does_not_follow_the_old_plan():
    label = "The user's request, new"
    assert reply(user(compressed(STATE, "Run `ls`", label)))[1] == [("bash", {"command": "ls"})]


UNTIL = "Keep reading files until compression triggers automatically"


def test_reading_until_compaction_ends_three_files_after_it():
    plan = "- Plan: 9 files to read: " + ", ".join(f"{n}.py" for n in "bcdefghij")
    exchange = [assistant([call("r", "read_file", path="b.py")]), user([result("r")])]
    first = user(compressed(f"{DONE}\n{plan}", UNTIL))
    messages = [first, *exchange]
    read = []
    while calls := reply(*messages)[1]:
        read.append(calls[0][1]["path"])
        name = f"x{len(messages)}"
        messages += [assistant([call(name, "read_file", path=read[-1])]), user([result(name)])]
    assert read == ["c.py", "d.py", "e.py"]


def test_the_compact_tool_is_called_once_with_its_focus():
    prompt = "Use the compact tool to manually compress the conversation, focus on names"
    assert reply(user(prompt))[1] == [("compact", {"focus": "names"})]
    exchange = [assistant([call(tool="compact")]), user([result(content="Compressing...")])]
    assert "I go on from the context" in reply(user(compressed(DONE, prompt)), *exchange)[0]
    failed = [exchange[0], user([result(content="already compacted")])]
    assert "already compacted" in reply(user(prompt), *failed)[0]


def test_a_question_is_answered_from_what_the_context_shows():
    messages = play("Run `cat notes`", lambda *_: "the sky is blue\nthe port is 8082")
    assert reply(*messages, user("Which port?"))[0] == "the port is 8082"
    assert "does not hold the answer" in reply(*messages, user("Who is Ada?"))[0]


def test_a_tool_that_is_not_offered_is_not_called():
    assert reply(user("Run `ls`"), tools=TOOLS[1:]) == (
        "I need the tool bash, which this request does not offer.",
        [],
    )


THREE = "Summarise: what was accomplished, current state, key decisions."
DATA = "\n\n".join(
    [
        f"user: {EVERY}",
        'call bash {"command": "ls -1dp agents/*.py"}',
        "result of bash: agents/a.py\nagents/b.py",
        "assistant: Plan: 2 files to read: agents/a.py, agents/b.py",
        'call read_file {"path": "agents/a.py"}',
        "result of read_file: def a():\n    PORT = 1",
    ]
)


def summary(instructions, data):
    prompt = f"{instructions}\n<data-1f>\n{data}\n</data-1f>"
    return reply(user(prompt), tools=[])[0]


def test_a_summary_names_files_facts_and_what_remains():
    words = summary(THREE, DATA)
    assert "- read agents/a.py: 2 lines, def a" in words
    assert "- Plan: 1 files to read: agents/b.py" in words
    assert EVERY in words


def test_a_line_of_a_result_that_looks_like_a_call_is_none():
    data = DATA + '\n  \n  call read_file {"path": "agents/x.py"}\n  \n  result of read_file: X = 1'
    words = summary(THREE, data)
    assert "- read agents/a.py: 6 lines, def a" in words
    assert "x.py" not in words


def test_what_the_assistant_says_between_calls_takes_no_result():
    said = "assistant: read_file comes next"
    data = [said, 'call read_file {"path": "a.py"}', "result of read_file: A = 1"]
    assert "- read a.py: 1 lines, A = 1" in summary(THREE, "\n\n".join(data))


def test_behind_a_gap_no_call_gets_the_result_of_another():
    calls = [f'call read_file {{"path": "{name}.py"}}' for name in "ab"]
    data = [calls[0], "[... cut ...]", calls[1], "result of read_file: B = 1"]
    words = summary(THREE, "\n\n".join(data))
    assert "- read a.py: read, but no longer in my context\n- read b.py: 1 lines, B = 1" in words


@pytest.mark.parametrize("part", ["what was accomplished", "current state", "key decisions"])
def test_a_summary_has_only_the_parts_that_are_asked_for(part):
    words = summary(f"Summarise: {part}.", DATA)
    titles = [line for line in words.lower().splitlines() if line.endswith(":")]
    assert titles == [part + ":"]


def test_a_focus_keeps_its_lines():
    assert "- kept: PORT = 1" in summary(f"{THREE}\nFocus: PORT", DATA)


def test_a_summary_of_a_summary_does_not_grow():
    first = summary(f"{THREE}\nFocus: PORT", DATA)
    again = summary(THREE, "user: " + compressed(first, EVERY))
    assert again == first


# ------------------------------------------------------------------------------------------------
# the demo


def test_the_saw_tooth_shows_threshold_and_layers():
    chart = sawtooth([100, 200, 300, 50], {3: "2"}, 250)
    assert "threshold 250 |" in chart
    assert chart.splitlines()[-1].split() == ["layer", "2"]
    assert max(map(len, sawtooth(range(500), {}, 250).splitlines())) <= 72


def test_the_demo_plays_its_prompts_and_puts_the_knobs_back(tmp_path, capsys, monkeypatch):
    played = []
    agent = types.SimpleNamespace(
        add=lambda messages, role, content: messages.append({"role": role, "content": content}),
        agent_loop=lambda messages: played.append(messages[-1]["content"]) or messages.clear(),
        **{"PRESERVE_RESULT_TOOLS": {"x"}, "KEEP_RECENT": 3, "THRESHOLD": 1, "client": None},
        **{"WORKDIR": tmp_path, "TRANSCRIPT_DIR": tmp_path, "MODEL": "m"},
    )
    assert practice_api.demo(agent) == 0
    assert played == [prompt for prompt, _, _ in practice_api.ACTS]
    assert (agent.KEEP_RECENT, agent.THRESHOLD, agent.MODEL) == (3, 1, "m")
    assert "threshold 16,000" in capsys.readouterr().out


def test_in_the_demo_every_layer_fires_before_the_readers_eyes(agent, tmp_path, capsys):
    shutil.copytree(practice_api.ROOT / "agents", tmp_path / "agents")
    shutil.copytree(practice_api.ROOT / "tests", tmp_path / "tests")
    assert practice_api.demo(agent, tmp_path) == 0
    shown = capsys.readouterr().out
    assert "  in the context: [Previous: used read_file]\n" in shown
    assert "[auto_compact triggered]" in shown and "[manual compact]" in shown
    assert set("123") <= set(re.search(r"\n +layer (.*)", shown)[1])
