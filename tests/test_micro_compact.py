"""Layer 1: old, long tool results become placeholders. A list goes in, a list comes out."""

import copy
import inspect
from types import SimpleNamespace

import pytest
from fakes import (
    assistant,
    big,
    call,
    result,
    results,
    session,
    text,
    thinking,
    turn,
    user,
)

BASH = "[Previous: used bash]"
READ = [assistant("done"), user("next")]  # after these two the model has read every result


@pytest.fixture
def clear_all(agent, monkeypatch):
    """The simplest setting: every long result that the model has read is cleared."""
    monkeypatch.setattr(agent, "KEEP_RECENT", 0)
    monkeypatch.setattr(agent, "PRESERVE_RESULT_TOOLS", set())
    return agent.micro_compact


def old(content, name="bash"):
    """A conversation whose one result the model has read."""
    return [user("go"), assistant(call("t1", name)), user(result("t1", content)), *READ]


# --- which results go ------------------------------------------------------------------------


@pytest.mark.parametrize("keep, cleared", [(0, 5), (1, 4), (3, 2), (5, 0), (99, 0)])
def test_the_newest_results_stay_whole(agent, monkeypatch, keep, cleared):
    monkeypatch.setattr(agent, "KEEP_RECENT", keep)
    messages = [*session(5), *READ]
    before = results(messages)
    agent.micro_compact(messages)
    assert results(messages) == [BASH] * cleared + before[cleared:]


@pytest.mark.parametrize("keep", [0, 1, 3, 99])
def test_what_the_model_has_not_read_yet_is_never_cleared(agent, monkeypatch, keep):
    monkeypatch.setattr(agent, "KEEP_RECENT", keep)
    batch = [call(f"t{n}", "bash") for n in range(5)]
    messages = [user("go"), assistant(*batch), user(*[result(b["id"], big(500)) for b in batch])]
    agent.micro_compact(messages)
    assert results(messages) == [big(500)] * 5


def test_the_unread_message_stays_whole_when_the_user_has_added_text_to_it(clear_all):
    messages = session(1)
    messages[-1]["content"].append(text("and hurry"))
    assert results(clear_all(messages)) == [big(500, "R0")]


@pytest.mark.parametrize("keep, cleared", [(0, 2), (1, 2), (3, 2), (4, 1), (99, 0)])
def test_unread_results_count_among_the_newest(agent, monkeypatch, keep, cleared):
    monkeypatch.setattr(agent, "KEEP_RECENT", keep)
    batch = [call(f"u{n}", "bash") for n in range(3)]
    unread = [assistant(*batch), user(*[result(b["id"], big(500)) for b in batch])]
    messages = agent.micro_compact([*session(2), *unread])
    assert results(messages).count(BASH) == cleared


@pytest.mark.parametrize("tool, output", [("read_file", None), ("bash", "ok"), ("bash", BASH)])
def test_preserved_short_and_cleared_results_count_among_the_newest(agent, tool, output):
    newest = [message for n in (7, 8, 9) for message in turn(n, tool, output)]
    assert results(agent.micro_compact([*session(1), *newest, *READ]))[0] == BASH
    assert results(agent.micro_compact([*session(1), *newest[2:], *READ]))[0] != BASH


@pytest.mark.parametrize("size, goes", [(1, False), (100, False), (101, True), (50_000, True)])
@pytest.mark.parametrize("letter", ["x", "\u6c49"])
def test_a_result_of_up_to_100_characters_stays(clear_all, size, goes, letter):
    messages = clear_all(old(letter * size))
    assert results(messages) == [BASH if goes else letter * size]


@pytest.mark.parametrize("sizes, goes", [((60, 40), False), ((60, 41), True), ((5000,), True)])
def test_a_list_of_texts_is_as_long_as_its_texts_together(clear_all, sizes, goes):
    messages = clear_all(old([text("x" * size) for size in sizes]))
    assert (results(messages) == [BASH]) == goes


@pytest.mark.parametrize("kind", ["image", "document"])
def test_an_image_or_a_document_counts_as_long(clear_all, kind):
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    assert results(clear_all(old([{"type": kind, "source": source}]))) == [BASH]


@pytest.mark.parametrize("content", ["", "ok", None, [], [text("ok")], [text("")], [text(None)]])
def test_there_is_nothing_to_gain_from_an_empty_or_short_result(clear_all, content):
    assert results(clear_all(old(content))) == [content]


def test_a_result_without_content_stays_as_it_is(clear_all):
    messages = old("")
    del messages[2]["content"][0]["content"]
    before = copy.deepcopy(messages)
    assert clear_all(messages) == before


@pytest.mark.parametrize("preserved, cleared", [({"read_file"}, 0), ({"bash"}, 3), (set(), 3)])
def test_results_of_preserved_tools_are_never_cleared(agent, monkeypatch, preserved, cleared):
    monkeypatch.setattr(agent, "KEEP_RECENT", 0)
    monkeypatch.setattr(agent, "PRESERVE_RESULT_TOOLS", preserved)
    messages = agent.micro_compact([*session(3, "read_file"), *READ])
    assert results(messages).count("[Previous: used read_file]") == cleared


# --- what a cleared result looks like --------------------------------------------------------


@pytest.mark.parametrize("name", ["bash", "edit_file", "my-tool"])
def test_the_placeholder_names_the_tool(clear_all, name):
    assert results(clear_all(old(big(500), name))) == [f"[Previous: used {name}]"]


def test_a_result_whose_call_is_gone_was_made_by_unknown(clear_all):
    messages = [user("go"), assistant("hm"), user(result("lost", big(500))), *READ]
    assert results(clear_all(messages)) == ["[Previous: used unknown]"]


def test_nothing_but_the_content_of_results_changes(clear_all):
    messages = [*session(4), *READ]
    messages[2]["content"][0]["is_error"] = True
    expected = copy.deepcopy(messages)
    for message in expected[2:-2:2]:
        message["content"][0]["content"] = BASH
    assert clear_all(messages) == expected


def test_every_result_of_an_old_batch_is_cleared_in_its_place(clear_all):
    calls = [call("a", "bash"), call("b", "grep"), call("c", "bash")]
    batch = [result("a", big(500)), result("b", big(500)), result("c", "short")]
    messages = clear_all([user("go"), assistant(*calls), user(*batch), *READ])
    assert results(messages) == [BASH, "[Previous: used grep]", "short"]
    assert [block["tool_use_id"] for block in messages[2]["content"]] == ["a", "b", "c"]


def test_the_list_is_edited_in_place_and_returned(clear_all):
    messages = [*session(4), *READ]
    assert clear_all(messages) is messages


@pytest.mark.parametrize("keep", [0, 1, 3, 99])
def test_a_second_run_changes_nothing_more(agent, monkeypatch, keep):
    monkeypatch.setattr(agent, "KEEP_RECENT", keep)
    once = agent.micro_compact([*session(6), *READ])
    assert agent.micro_compact(copy.deepcopy(once)) == once


@pytest.mark.parametrize("messages", [[], [user("hi")], [user("hi"), assistant("hello")]])
def test_a_list_without_results_stays_as_it_is(agent, messages):
    assert agent.micro_compact(copy.deepcopy(messages)) == messages


# --- other people's blocks -------------------------------------------------------------------


class ClassAttributes:
    """A look-alike as test files like to write it; it has no .input."""

    type, id, name = "tool_use", "t1", "bash"


def sdk_call():
    from anthropic.types import ToolUseBlock

    return ToolUseBlock(type="tool_use", id="t1", name="bash", input={})


def namespace_call():
    return SimpleNamespace(type="tool_use", id="t1", name="bash")


@pytest.mark.parametrize("make_block", [sdk_call, namespace_call, ClassAttributes])
def test_the_name_is_found_in_objects_as_well_as_in_dicts(clear_all, make_block):
    block = make_block()
    messages = [user("go"), assistant(block), user(result("t1", big(500))), *READ]
    assert clear_all(messages)[2] == user(result("t1", BASH))
    assert messages[1]["content"][0] is block


def test_a_result_may_be_an_object(clear_all):
    block = SimpleNamespace(type="tool_result", tool_use_id="t1", content=big(500))
    clear_all([user("go"), assistant(call("t1", "bash")), user(block), *READ])
    assert block.content == BASH


def test_the_parts_of_a_result_may_be_objects(clear_all):
    part = SimpleNamespace(type="text", text=big(500))
    assert results(clear_all(old([part]))) == [BASH]


def test_the_function_can_be_pasted_into_another_agent(agent):
    other_agent = {"KEEP_RECENT": 1, "PRESERVE_RESULT_TOOLS": set()}
    exec(inspect.getsource(agent.micro_compact), other_agent)
    messages = other_agent["micro_compact"]([*session(3, "read_file"), *READ])
    assert results(messages).count("[Previous: used read_file]") == 2


# --- waiting until it pays -------------------------------------------------------------------


@pytest.mark.parametrize("clear_at_least, cleared", [(0, 4), (400, 4), (600, 0), (10**9, 0)])
def test_layer_1_can_wait_until_enough_tokens_can_go(clear_all, clear_at_least, cleared):
    messages = [*session(4), *READ]  # four results of 500 characters: some 500 tokens
    assert results(clear_all(messages, clear_at_least=clear_at_least)).count(BASH) == cleared


# --- thinking --------------------------------------------------------------------------------


def thoughtful(*outputs):
    """One thinking block and one call before each output."""
    messages = [user("go")]
    for n, output in enumerate(outputs):
        messages += turn(n, output=output)
        messages[-2]["content"].insert(0, thinking(f"idea {n}"))
    return [*messages, assistant(thinking("last idea"), text("done")), user("next")]


def ideas(messages):
    blocks = [b for m in messages if m["role"] == "assistant" for b in m["content"]]
    return [b["thinking"] for b in blocks if b["type"] == "thinking"]


def test_thinking_behind_the_earliest_edit_goes(clear_all):
    messages = thoughtful("short", big(500), "short", big(500))
    assert ideas(clear_all(messages, drop_thinking=True)) == ["idea 0", "idea 1"]


def test_thinking_stays_unless_it_must_go(clear_all):
    messages = thoughtful(big(500), big(500))
    assert ideas(clear_all(messages)) == ["idea 0", "idea 1", "last idea"]


def test_thinking_stays_when_nothing_was_edited(clear_all):
    messages = thoughtful("short", BASH)
    assert ideas(clear_all(messages, drop_thinking=True)) == ["idea 0", "idea 1", "last idea"]


def test_only_the_edits_of_this_call_cost_thinking(clear_all):
    messages = thoughtful(BASH, "short", big(500))
    assert ideas(clear_all(messages, drop_thinking=True)) == ["idea 0", "idea 1", "idea 2"]


def test_redacted_thinking_goes_as_well(clear_all):
    messages = thoughtful(big(500))
    messages[3]["content"][0] = {"type": "redacted_thinking", "data": "x"}
    clear_all(messages, drop_thinking=True)
    assert messages[3] == assistant(text("done"))


def test_a_message_of_thinking_alone_is_not_left_empty(clear_all):
    messages = thoughtful(big(500))
    messages[3]["content"] = [thinking()]
    clear_all(messages, drop_thinking=True)
    assert [block["type"] for block in messages[3]["content"]] == ["text"]
    assert messages[3]["content"][0]["text"].strip()


def test_thinking_may_be_an_object(clear_all):
    messages = thoughtful(big(500))
    messages[3]["content"][0] = SimpleNamespace(type="thinking", thinking="hm", signature="s")
    assert clear_all(messages, drop_thinking=True)[3] == assistant(text("done"))


def test_a_message_without_thinking_stays_as_it_is(clear_all):
    messages = [*session(5), {"role": "user", "content": []}, user("next")]
    clear_all(messages, drop_thinking=True)
    assert messages[-2]["content"] == []
