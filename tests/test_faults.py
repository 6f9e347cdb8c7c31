"""Whatever the API does over HTTP, the session goes on: the real SDK against the practice API.

Each fault strikes in three places: in a normal turn, in the summary call, and in the first step
after a compaction. Then the user says something more, and all is well.
"""

import json

import practice_api
import pytest
from fakes import SHIPPED, problems, session, user
from practice_api import PracticeAPI, validate

anthropic = pytest.importorskip("anthropic")

# --- the faults ------------------------------------------------------------------------------

ERRORS = {  # no reply at all -> a word of the line that the user sees
    (400, "messages.0: odd"): "odd",
    (400, "Your credit balance is too low to access the Anthropic API."): "credit balance",
    (400, "max_tokens: 9000 > 8192, which is the maximum for this model"): "max_tokens",
    401: "check the key",
    403: "check the key",
    404: "MODEL_ID",
    429: "wait",  # with the header retry-after
    500: "wait",
    503: "wait",
    529: "wait",
    "timeout": "network",
    "cut": "network",  # before the first byte
    "cut body": "network",  # in the middle of it
    "html": "ANTHROPIC_BASE_URL",
    "no body": "ANTHROPIC_BASE_URL",  # the status is 200, and nothing follows
}
TOO_LONG = [
    413,
    (400, "prompt is too long: 210118 tokens > 200000 maximum"),
    (400, "Input is too long for requested model."),
    (400, "the request exceeds the available context size, try increasing it"),
    (400, "This model's maximum context length is 65536 tokens. However, you requested 70000"),
]
THINKING = (400, "messages.1.content.0: Invalid `signature` in `thinking` block")
ODD = ["empty", "unknown block", "no usage", "stop:end_turn", "stop:stop_sequence"]
ODD += ["stop:tool_use", "stop:something_new"]  # replies that end a turn like any other
CUT = ["stop:max_tokens", "stop:pause_turn", "stop:model_context_window_exceeded", "cut reply"]
NO_SUMMARY = [*CUT, "empty", "refusal", "stop:tool_use", "stop:something_new"]
REFUSALS = ["refusal", "stop:refusal"]


def message(**changes):
    """The bytes of a reply that lacks, or has otherwise, what `changes` names."""
    whole = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "ok"}]}
    whole |= {"id": "msg_1", "model": "m", "stop_reason": "end_turn", "usage": {}} | changes
    return json.dumps({name: value for name, value in whole.items() if value != GONE}).encode()


GONE = "GONE"
RAW = {  # bodies that other vendors send, and what the agent stores
    "no usage at all": (message(usage=GONE), "ok"),
    "usage without counts": (message(usage={"input_tokens": None}), "ok"),
    "no stop reason": (message(stop_reason=GONE), "ok"),
    "no content": (message(content=GONE), "(no reply)"),
    "content is null": (message(content=None), "(no reply)"),
    "content is a string": (message(content="ok"), "ok"),
    "text is null": (message(content=[{"type": "text", "text": None}]), "(no reply)"),
    "a lone surrogate": (message(content=[{"type": "text", "text": "a\udcffb"}]), "a?b"),
}

# --- fixtures --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    with PracticeAPI(retry=False) as api:
        api.server.RequestHandlerClass.disable_nagle_algorithm = True
        yield api


@pytest.fixture(scope="module")
def clients(server):
    """clients(fault): the SDK's client, for a fault that never answers one that soon gives up."""
    options = {"api_key": "test", "base_url": server.url, "max_retries": 0}
    http = anthropic.DefaultHttpxClient(trust_env=False)
    patient = anthropic.Anthropic(http_client=http, **options)
    hasty = patient.with_options(timeout=0.2)
    return lambda fault: hasty if fault == "timeout" else patient


@pytest.fixture
def api(server, agent, monkeypatch, clients):
    """The practice API says "ok" to everything, until something is put into its faults."""
    for name, value in SHIPPED.items():
        monkeypatch.setattr(agent, name, value)
    monkeypatch.setattr(agent, "client", clients(None))
    monkeypatch.setattr(
        server, "model", lambda body: ([{"type": "text", "text": "ok"}], "end_turn")
    )
    for record in (server.requests, server.faults, server.replies):
        record.clear()
    return server


@pytest.fixture
def strike(api, agent, monkeypatch, clients, capsys):
    """strike(fault, messages) lets it hit the next request; returns (loop's answer, lines)."""

    def start(fault, messages, work=agent.agent_loop):
        with monkeypatch.context() as patch:
            patch.setattr(agent, "client", clients(fault))
            api.faults.append(fault)
            capsys.readouterr()
            answer = work(messages)
        return answer, capsys.readouterr().out.splitlines()

    return start


def joined(agent, *messages):
    """A list whose messages came through add."""
    whole = []
    for message in messages:
        agent.add(whole, message["role"], message["content"])
    return whole


def past(agent):
    """A history that gains something from a compaction."""
    return joined(agent, *session(8), user("ALPHA-1"))


def compacted(agent, api):
    """A list right after a compaction, with the request ALPHA-1 in progress."""
    messages = joined(agent, user("ALPHA-1"), *session(8)[1:])
    assert agent.compact_history(messages) == ""
    api.requests.clear()
    return messages


PLACES = {"normal turn": lambda agent, api: joined(agent, user("ALPHA-1")), "compacted": compacted}


def goes_on(agent, api, messages):
    """A clean prompt works; every request was legal; nothing that was said is in it twice."""
    agent.add(messages, "user", "BETA-2")
    assert agent.agent_loop(messages)
    body = api.requests[-1]["body"]
    validate(body)
    assert not any(problems(record["body"]) for record in api.requests)
    assert str(body["messages"]).count("ALPHA-1") == str(body["messages"]).count("BETA-2") == 1
    assert messages[-1]["content"][-1]["text"] == "ok"


names = pytest.mark.parametrize("place", PLACES)

# --- a turn, with and without a compaction before it -----------------------------------------


@names
@pytest.mark.parametrize("fault", ERRORS, ids=str)
def test_an_error_is_one_line_and_the_next_prompt_works(agent, api, strike, place, fault):
    messages = PLACES[place](agent, api)
    before = [*messages]
    answer, (line,) = strike(fault, messages)
    assert answer is False and messages == before
    assert ERRORS[fault] in line and len(line) < 300
    assert not any(words in line for words in ("object has no", "char 0", "Traceback", "Error("))
    assert len(api.requests) == 1
    goes_on(agent, api, messages)
    assert len(api.requests) == 2


@names
@pytest.mark.parametrize("fault", ODD)
def test_an_odd_reply_is_taken_as_it_is(agent, api, strike, place, fault):
    messages = PLACES[place](agent, api)
    answer, lines = strike(fault, messages)
    assert answer is True and len(api.requests) == 1
    assert messages[-1]["content"][-1]["text"] == ("(no reply)" if fault == "empty" else "ok")
    goes_on(agent, api, messages)


@pytest.mark.parametrize("body", RAW)
def test_a_reply_with_something_missing_is_taken_as_it_is(agent, api, strike, monkeypatch, body):
    data, stored = RAW[body]
    monkeypatch.setitem(practice_api.BROKEN, body, (data, "application/json", 0))
    messages = joined(agent, user("ALPHA-1"))
    answer, _ = strike(body, messages)
    assert answer is True and len(api.requests) == 1
    assert messages[-1]["content"][-1]["text"] == stored
    goes_on(agent, api, messages)


@names
@pytest.mark.parametrize("fault", CUT[:2] + CUT[3:])
def test_a_cut_reply_is_gone_on_with(agent, api, strike, place, fault):
    messages = PLACES[place](agent, api)
    answer, _ = strike(fault, messages)
    assert answer is True and len(api.requests) == 2
    assert api.requests[1]["body"]["messages"][-1]["content"][0]["text"] == "(continue)"
    goes_on(agent, api, messages)


@names
def test_a_full_window_is_compacted_then_gone_on_with(agent, api, strike, place):
    messages = PLACES[place](agent, api)
    answer, _ = strike("stop:model_context_window_exceeded", messages)
    assert answer is True
    assert ["tools" in record["body"] for record in api.requests] == [True, False, True]
    goes_on(agent, api, messages)


@names
@pytest.mark.parametrize("fault", REFUSALS)
def test_a_refusal_brings_the_prompt_back(agent, api, strike, place, fault):
    messages = PLACES[place](agent, api)
    answer, lines = strike(fault, messages)
    assert answer is False and len(api.requests) == 1
    goes_on(agent, api, messages)


@names
@pytest.mark.parametrize("fault", TOO_LONG, ids=str)
def test_a_request_that_is_too_long_is_compacted_and_sent_once_more(
    agent, api, strike, place, fault
):
    messages = PLACES[place](agent, api)
    messages[:0] = joined(agent, *session(6)) + joined(agent, {"role": "assistant", "content": "x"})
    answer, _ = strike(fault, messages)
    assert answer is True
    assert ["tools" in record["body"] for record in api.requests] == [True, False, True]
    goes_on(agent, api, messages)


@names
def test_refused_thinking_is_dropped_and_the_request_sent_once_more(agent, api, strike, place):
    messages = PLACES[place](agent, api)
    answer, lines = strike(THINKING, messages)
    assert answer is True and len(api.requests) == 2
    goes_on(agent, api, messages)


@names
@pytest.mark.parametrize("fault", [THINKING, TOO_LONG[1]], ids=str)
def test_refused_for_ever_it_comes_to_an_end(agent, api, strike, place, fault):
    messages = PLACES[place](agent, api)
    answer, lines = strike(lambda body: fault if "tools" in body else None, messages)
    assert answer is False and len(api.requests) <= 4
    api.faults.clear()
    goes_on(agent, api, messages)


# --- the summary call ------------------------------------------------------------------------


def in_summary(fault):
    """`fault`, for the next request for a summary only."""
    waiting = [fault]
    return lambda body: waiting.pop() if waiting and "tools" not in body else None


def compact(agent):
    return lambda messages: agent.compact_history(messages)


@pytest.mark.parametrize("fault", [*ERRORS, TOO_LONG[1], THINKING, *NO_SUMMARY], ids=str)
def test_without_a_summary_the_history_stays_and_one_line_says_why(agent, api, strike, fault):
    messages = past(agent)
    before, ids = [*messages], list(map(id, messages))
    answer, lines = strike(fault, messages, compact(agent))
    assert messages == before and list(map(id, messages)) == ids
    assert len(lines) == 1 and "history kept" in lines[0] and answer == lines[0]
    assert len(api.requests) == 1
    goes_on(agent, api, messages)


@pytest.mark.parametrize("fault", [529, "cut", TOO_LONG[1], THINKING, "html", "cut reply", "empty"])
def test_when_that_happens_in_the_loop_the_step_is_taken_all_the_same(
    agent, api, monkeypatch, fault
):
    monkeypatch.setattr(agent, "THRESHOLD", 500)
    messages = past(agent)
    api.faults.append(in_summary(fault))
    assert agent.agent_loop(messages)
    assert ["tools" in record["body"] for record in api.requests] == [False, True]
    monkeypatch.setattr(agent, "THRESHOLD", 50_000)
    goes_on(agent, api, messages)


@pytest.mark.parametrize(
    "fault", ["unknown block", "no usage", "stop:end_turn", "stop:stop_sequence"]
)
def test_a_whole_summary_in_an_odd_reply_is_accepted(agent, api, strike, fault):
    messages = past(agent)
    answer, lines = strike(fault, messages, compact(agent))
    assert answer == "" and "ok" in messages[0]["content"]
    assert len(api.requests) == 1
    goes_on(agent, api, messages)
