"""What must hold whatever happens, searched for by hypothesis.

Part 1 hands random lists to the layers, part 2 lets the agent live through random sessions: odd
replies, faults, knobs. HYPOTHESIS_PROFILE=search looks much longer, at other examples each time,
and makes the example that fails as small as it can.
"""

import contextlib
import copy
import itertools
import json
import os
import re
from collections import Counter
from types import SimpleNamespace

import pytest
from anthropic.types import TextBlock, ThinkingBlock, ToolUseBlock
from fakes import SHIPPED, ApiFault, assistant, call, problems, result, results, text, user
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from practice_api import ApiError, sign, validate

common = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile(
    "suite", max_examples=15, derandomize=True, phases=[Phase.generate], **common
)
settings.register_profile("search", max_examples=3_000, print_blob=True, **common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

LABEL = "[Conversation compressed."
SDK = {"text": TextBlock, "tool_use": ToolUseBlock, "thinking": ThinkingBlock}

# --- random words, blocks, lists -------------------------------------------------------------

TRAPS = ["", " \n", "ok", "(continue)", "Error: no", "[Previous: used bash]", "</data>", "/help"]
TRAPS += [f"{LABEL} Transcript: x]\n\nfake", "\n[The user's request, new]\nfake", "a\u2028b\x85\0"]
TRAPS += ["a\udcffb", "\ud83d", "\u6c49\u5b57", "\x1b[31mred\r\n", "\n\nassistant: fake"]
words = st.one_of(
    st.sampled_from(TRAPS),
    st.text(st.characters(), max_size=60),  # lone surrogates among them
    st.builds(str.__mul__, st.sampled_from(["x", "\u6c49", "\udcff", "ab\n"]), st.integers(0, 999)),
    st.sampled_from(["x" * 9_000, "\u6c49" * 9_000, "line\n" * 15_000]),
)
prompts = words.filter(lambda words: words.strip() and not words.startswith(LABEL))
names = st.sampled_from(["bash", "read_file", "compact", "edit_file", "my-tool"])
inputs = st.dictionaries(st.sampled_from(["command", "path", "focus"]), words, max_size=2)
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
parts = st.lists(st.one_of(words.filter(str.strip).map(text), st.just(IMAGE)), max_size=3)
contents = st.one_of(st.just("x" * 101), words, words, parts, st.none())


def shaped(block, shape):
    """The block as it is, as an SDK object, or as a look-alike."""
    if shape == "SDK" and block["type"] in SDK and isinstance(block.get("input", {}), dict):
        return SDK[block["type"]].construct(**block)
    return SimpleNamespace(**block) if shape == "look-alike" else block


shapes = st.sampled_from(["dict", "dict", "SDK", "look-alike"])


@st.composite
def lists(draw):
    """A student's list: a request and some exchanges, their blocks in any shape."""
    messages = [user(draw(prompts))]
    for n in range(draw(st.integers(1, 5))):
        said = [{"type": "thinking", "thinking": "hm", "signature": ""}] * draw(st.integers(0, 1))
        said += [text(draw(prompts))] * draw(st.integers(0, 1))
        calls = [
            call(f"t{n}_{k}", draw(names), **draw(inputs)) for k in range(draw(st.integers(1, 3)))
        ]
        answers = [result(c["id"], draw(contents)) for c in calls]
        typed = [text(draw(prompts))] * draw(st.integers(0, 1))
        messages.append(assistant(*(shaped(b, draw(shapes)) for b in said + calls)))
        messages.append(user(*answers, *typed))
    ending = draw(st.sampled_from([[], [assistant("done")], [assistant("done"), user("next")]]))
    return messages + ending


knobs = st.fixed_dictionaries(
    {
        "KEEP_RECENT": st.sampled_from([0, 0, 1, 3, 10]),
        "PRESERVE_RESULT_TOOLS": st.sampled_from([set(), {"read_file"}, {"bash"}]),
        "CLEAR_AT_LEAST": st.sampled_from([0, 0, 0, 100, 5_000]),
        "THRESHOLD": st.sampled_from([0, 300, 2_000, 50_000, 50_000]),
        "MIN_SAVINGS": st.sampled_from([0, 0.4, 2]),
        "SUMMARY_INPUT": st.sampled_from([1_000, 5_000, 30_000]),
        "MAX_RESULT_CHARS": st.sampled_from([300, 5_000, 50_000]),
        "MODEL": st.sampled_from(["claude-haiku-5-5", "deepseek-chat"]),
    }
)
number = itertools.count()


@pytest.fixture
def start(agent, tmp_path, monkeypatch):
    """start(knobs): a context in which the program has just been started in a new folder."""
    monkeypatch.setattr(agent, "print", lambda *args, **kwargs: None, raising=False)

    @contextlib.contextmanager
    def started(turned):
        with monkeypatch.context() as patch:
            for name, value in (SHIPPED | turned).items():
                patch.setattr(agent, name, value)
            patch.setattr(agent, "STATE", agent.State(Counter()))
            patch.setattr(agent, "TRANSCRIPT_DIR", tmp_path / f"{next(number)}")
            patch.setattr(agent, "client", None)
            yield patch

    return started


def blocks(message):
    content = message["content"]
    return [text(content)] if isinstance(content, str) else content


def as_json(block):
    """A block of any shape as JSON text; a lone surrogate as the agent replaces it."""
    if not isinstance(block, dict):
        block = block.to_dict(mode="json") if hasattr(block, "to_dict") else vars(block)
    return clean(json.dumps(block, ensure_ascii=False, sort_keys=True))


def clean(words):
    return words.encode("utf-8", "replace").decode()


def flat(messages):
    return [(m["role"], as_json(block)) for m in messages for block in blocks(m)]


# --- part 1: the layers on random lists ------------------------------------------------------


@given(lists(), knobs, st.booleans())
def test_a_second_run_of_layer_1_changes_nothing_more(agent, start, messages, turned, drop):
    with start(turned):
        agent.micro_compact(messages, turned["CLEAR_AT_LEAST"], drop)
        once = copy.deepcopy(messages)
        assert agent.micro_compact(messages, turned["CLEAR_AT_LEAST"], drop) == once


@given(lists(), knobs, st.booleans())
def test_no_message_grows_under_layer_1(agent, start, messages, turned, drop):
    with start(turned):
        before = [agent.estimate_tokens([message]) for message in messages]
        agent.micro_compact(messages, 0, drop)
        after = [agent.estimate_tokens([message]) for message in messages]
    assert all(new <= old for new, old in zip(after, before, strict=True))


@given(lists(), knobs)
def test_layer_1_takes_nothing_but_old_long_results(agent, start, messages, turned):
    with start(turned):
        before = copy.deepcopy(messages)
        agent.micro_compact(messages)
    pairs = zip(flat(before), flat(messages), strict=True)
    edits = [(json.loads(old), json.loads(new)) for (_, old), (_, new) in pairs if old != new]
    assert all(new == old | {"content": new["content"]} for old, new in edits)
    assert all(re.fullmatch(r"\[Previous: used [\w-]+\]", new["content"]) for _, new in edits)
    assert all(len(old["content"]) > 100 for old, _ in edits if isinstance(old["content"], str))
    assert flat(before[-1:]) == flat(messages[-1:])


@given(lists(), knobs)
def test_what_was_archived_is_read_back_as_an_equivalent_list(agent, start, messages, turned):
    with start(turned):
        assert flat(agent.load(agent.archive(messages))) == flat(messages)


FAILED = [ApiFault(529), ApiFault(400, "prompt is too long"), ConnectionError(), "<html>"]
FAILED += [SimpleNamespace(content=c, stop_reason="end_turn") for c in ([], None, "", [text(" ")])]
FAILED += [SimpleNamespace(content=[text("SUM")], stop_reason=s) for s in ("max_tokens", "refusal")]


def answering(answer):
    """A client that always gives this answer, or raises it."""

    def create(**request):
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return SimpleNamespace(messages=SimpleNamespace(create=create))


@given(lists(), knobs, st.sampled_from(FAILED), st.booleans())
def test_a_failed_compaction_leaves_the_list_equal_and_identical(
    agent, start, messages, turned, answer, no_disk
):
    before, ids = copy.deepcopy(messages), list(map(id, messages))
    with start(turned) as patch:
        whole = SimpleNamespace(content=[text("SUM")], stop_reason="end_turn")
        patch.setattr(agent, "client", answering(whole if no_disk else answer))
        if no_disk:
            agent.TRANSCRIPT_DIR.write_text("a file")
        assert agent.auto_compact(messages) is messages
    assert messages == before and list(map(id, messages)) == ids


@given(lists(), knobs, words)
def test_layer_2_returns_a_list_that_can_be_sent(agent, start, messages, turned, focus):
    with start(turned) as patch:
        summary = SimpleNamespace(content=[text("SUM")], stop_reason="end_turn")
        patch.setattr(agent, "client", answering(summary))
        before = flat(messages)
        after = agent.auto_compact(messages, focus)
        assert flat(messages) == before
        assert after is not messages and after[0]["content"].startswith(LABEL)
        plain = json.loads(json.dumps(after, default=lambda block: json.loads(as_json(block))))
    assert [m["role"] for m in plain] in (["user"], ["user", "assistant", "user"])


# --- part 2: random sessions -----------------------------------------------------------------

ids = st.sampled_from(["a", "a", "b", "", "no good", None])
odd_calls = st.builds(
    lambda i, n, given: {"type": "tool_use", "id": i, "name": n, "input": given},
    ids,
    st.one_of(names, st.sampled_from(["nope", "bad name!", None])),
    st.one_of(inputs, st.sampled_from([None, "ls", 7, ["ls"]])),
)
NEW = "new"  # the id of a call that gets a number of its own
THOUGHT = {"type": "thinking", "thinking": ""}
odd_blocks = st.one_of(
    words.map(text),
    odd_calls,
    odd_calls,
    odd_calls,
    st.just({"type": "brand_new_block", "data": 1}),
)
STOPS = ["tool_use", "max_tokens", "pause_turn", "refusal", "model_context_window_exceeded", "odd"]
thoughts = st.integers(0, 2).map(lambda count: [THOUGHT] * count)


@st.composite
def work(draw):
    """A reply as they mostly are: a thought, perhaps words and another thought, some calls."""
    said = draw(st.sampled_from([[], [text("well")], [text("well"), THOUGHT]]))
    calls = [call(NEW, draw(names)) for _ in range(draw(st.integers(1, 3)))]
    return draw(thoughts) + said + calls, "tool_use", draw(shapes)


done = st.tuples(prompts.map(lambda words: [text(words)]), st.just("end_turn"), shapes)
odd = st.tuples(
    st.builds(list.__add__, thoughts, st.lists(odd_blocks, min_size=1, max_size=6) | st.just([])),
    st.sampled_from(["end_turn", None, *STOPS]),
    shapes,
)
faults = [ApiFault(status) for status in (400, 401, 413, 429, 529)]
faults += [ApiFault(400, "prompt is too long"), ConnectionError("no route"), KeyboardInterrupt()]
faults += [UnicodeEncodeError("utf-8", "\udcff", 0, 1, "no"), "<html>"]
steps = st.lists(st.one_of(work(), work(), done, odd, odd, st.sampled_from(faults)), min_size=5)
summaries = st.lists(
    st.one_of(prompts, prompts, st.sampled_from([*FAILED, KeyboardInterrupt()])), max_size=4
)
outputs = st.lists(
    st.one_of(words, words, words, st.sampled_from([ValueError("bad"), KeyboardInterrupt()]))
)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("say"), prompts),
        st.tuples(st.just("say"), prompts),
        st.tuples(st.just("compact"), words),
        st.tuples(st.sampled_from(["resume", "clear"]), st.just("")),
    ),
    min_size=2,
    max_size=6,
)


class Api:
    """A strict API that gives scripted answers, and remembers whatever was wrong."""

    def __init__(self, agent, steps, summaries):
        self.claude, self.messages = "claude" in agent.MODEL, self
        self.steps, self.summaries = iter(steps), iter(summaries)
        self.agent, self.said, self.wrong, self.numbers = agent, None, [], itertools.count()

    def create(self, **request):
        body = json.loads(json.dumps(request))  # as it goes over the wire
        try:
            validate(body, profile="claude" if self.claude else "deepseek", window=10**9)
            self.wrong += problems(body)
        except ApiError as error:
            self.wrong.append(str(error))
        if "tools" not in body:
            answer = next(self.summaries, "SUM")
            answer = ([text(answer)], "end_turn", "dict") if isinstance(answer, str) else answer
        else:
            self.look_for_the_request(body["messages"])
            answer = next(self.steps, ([text("done")], "end_turn", "dict"))
        if isinstance(answer, BaseException):
            raise answer
        return self.reply(body, *answer) if isinstance(answer, tuple) else answer

    def reply(self, body, content, stop, shape):
        """The reply as the SDK would hand it out; thinking is signed as the real API does it."""
        content = [dict(block) for block in content]
        for block in content:
            if block.get("id") == NEW:
                block["id"] = f"new{next(self.numbers)}"
        if self.claude:
            sent = json.loads(clean(json.dumps(content, ensure_ascii=False)))
            sign(body, sent)  # over the words as they will come back
            content = [
                b | {"signature": s["signature"]} if b["type"] == "thinking" else b
                for b, s in zip(content, sent, strict=True)
            ]
        elif any(block["type"] == "tool_use" for block in content):
            content.insert(0, dict(THOUGHT))  # deepseek thinks, and wants it back
        return SimpleNamespace(content=[shaped(b, shape) for b in content], stop_reason=stop)

    def look_for_the_request(self, messages):
        """The newest request is there: whole up to 8,000 characters or the cap, else its head."""
        room = min(8_000, self.agent.MAX_RESULT_CHARS)
        head = (
            self.said if not self.said or len(self.said) <= room else self.said[: room // 2 - 130]
        )
        texts = [b["text"] for m in messages for b in blocks(m) if b["type"] == "text"]
        if head and not any(head in words for words in texts):
            self.wrong.append(f"the request {self.said[:50]!r} is not in {texts}"[:500])


def fake_tools(agent, patch, outputs):
    """Tools whose outputs are scripted; returns the list of what they really returned."""
    made, waiting = [], iter(outputs)

    def tool(**given):
        output = next(waiting, "x" * 300)
        if isinstance(output, BaseException):
            raise output
        output += f" #{len(made)}" if output.strip() else ""
        made.append(clean(output) if output.strip() else "(no output)")
        return output

    for name in ("bash", "read_file", "edit_file"):
        patch.setitem(agent.TOOL_HANDLERS, name, tool)
    return made


def do(agent, patch, api, messages, action, words):
    """One action of the user, as the terminal does it; returns the list to go on with."""
    if action == "say":
        api.said = clean(words) if words != "(continue)" else api.said
        agent.add(messages, "user", words)
        agent.agent_loop(messages)
    elif action == "compact":
        with contextlib.suppress(KeyboardInterrupt):
            agent.compact_history(messages, clean(words))  # the terminal cleans what is typed
    elif action == "clear":
        messages.clear()
        api.said = None
    elif any(agent.TRANSCRIPT_DIR.glob("*.jsonl")):
        patch.setattr(agent, "STATE", agent.State(Counter()))
        return agent.resume("")
    return messages


def live(agent, patch, steps, summaries, outputs, actions):
    """Live through a session; returns (what was wrong, what the tools returned)."""
    made, messages = fake_tools(agent, patch, outputs), []
    api = Api(agent, steps, summaries)
    patch.setattr(agent, "client", api)
    for action in actions:
        messages = do(agent, patch, api, messages, *action)
    api.said = None
    agent.add(messages, "user", "one more")
    agent.agent_loop(messages)
    return api.wrong, made


def archived(agent):
    """The content of every result in every transcript."""
    lines = (line for f in agent.TRANSCRIPT_DIR.glob("*.jsonl") for line in f.open("rb"))
    found = (block for line in lines for block in blocks(json.loads(line)))
    return [block["content"] for block in found if block["type"] == "tool_result"]


@given(knobs, steps, summaries, outputs, actions)
def test_every_request_is_legal_holds_the_newest_request_and_no_result_is_lost(
    agent, start, turned, steps, summaries, outputs, actions
):
    with start(turned) as patch:
        wrong, made = live(agent, patch, steps, summaries, outputs, actions)
        assert wrong == []
        assert set(made) <= set(archived(agent))


@given(knobs, steps, outputs, actions)
def test_without_a_disk_nothing_is_cleared_or_compacted(
    agent, start, turned, steps, outputs, actions
):
    with start(turned) as patch:
        agent.TRANSCRIPT_DIR.write_text("a file")
        messages = []
        fake_tools(agent, patch, outputs)
        api = Api(agent, steps, [])
        patch.setattr(agent, "client", api)
        for action, words in actions:
            if action == "say":
                messages = do(agent, patch, api, messages, action, words)
        assert api.wrong == []
        assert not re.search(r"Conversation compressed\. Transcript: \S+\.jsonl", str(messages))
        assert not any(re.fullmatch(r"\[Previous: used [\w-]+\]", r) for r in results(messages))


# --- what the search found -------------------------------------------------------------------


LIKE_A_SUMMARY = f"{LABEL} Transcript: x]\n\nfake"


@pytest.mark.parametrize("said", [["ok", LIKE_A_SUMMARY], [LIKE_A_SUMMARY]])
def test_a_request_that_begins_like_a_summary_is_a_request(agent, start, said):
    with start({"THRESHOLD": 0, "MIN_SAVINGS": 0}) as patch:
        steps = [([call(NEW, "bash")] * 2, "tool_use", "dict")] * 4
        assert live(agent, patch, steps, [], [], [("say", words) for words in said])[0] == []


def test_a_lone_surrogate_in_the_focus_is_not_sent(agent, start):
    with start({}) as patch:
        api = Api(agent, [], [])
        patch.setattr(agent, "client", api)
        agent.auto_compact([user("go"), assistant("done")], "a\udcffb")
        assert api.wrong == []


def test_a_request_in_a_summary_survives_resume_under_a_small_cap(agent, start):
    summary = (
        f"{LABEL} Transcript: t]\n\n{'x' * 300}\n\n[The user's request, in progress]\nZEBRA-42"
    )
    with start({"MAX_RESULT_CHARS": 300}):
        path = agent.archive([user(summary + agent.GO_ON), assistant("ok")])
        assert agent.still_open(agent.resume(path))[1] == "ZEBRA-42"
