"""Whole sessions: the agent, the real SDK, HTTP, and the practice API at the other end."""

import json

import pytest
from fakes import call, problems
from practice_api import PracticeAPI, go_offline, validate


@pytest.fixture
def practice(agent, monkeypatch):
    """practice(profile=..., ...) starts a PracticeAPI and turns the agent to it."""
    running = []

    def start(**options):
        for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "NO_PROXY", "no_proxy"):
            monkeypatch.setenv(name, "")
        running.append(PracticeAPI(retry=False, **options).__enter__())
        go_offline(agent, running[-1])
        return running[-1]

    yield start
    for api in running:
        api.__exit__()


def files(folder, count, lines=60):
    """`count` Python files, each with a mark of its own."""
    folder.mkdir()
    for number in range(count):
        body = "".join(f"value_{number}_{line} = {line * number}\n" for line in range(lines))
        (folder / f"m{number:03}.py").write_text(f"MARK_{number:03} = {number}\n{body}")


def ask(agent, messages, prompt):
    agent.add(messages, "user", prompt)
    assert agent.agent_loop(messages)
    return messages[-1]["content"][-1]["text"]


def reads(api):
    """The path of every read_file call the model made."""
    calls = [block for record in api.requests for block in record["content"] or []]
    return [call["input"]["path"] for call in calls if call.get("name") == "read_file"]


def on_disk(agent):
    """Everything the transcripts hold, as one text."""
    lines = [
        line for f in agent.TRANSCRIPT_DIR.glob("*.jsonl") for line in f.open(encoding="utf-8")
    ]
    blocks = [b for line in lines for b in json.loads(line)["content"] if isinstance(b, dict)]
    return "\n".join(str(block.get("content")) for block in blocks)


def test_two_hundred_files_are_read_one_by_one_in_one_session(agent, practice, tmp_path):
    """The lesson as a whole: 200 files are ten times what the context holds."""
    api = practice()
    files(tmp_path / "lib", 200, lines=480)
    ask(agent, [], "Read every Python file in the lib/ directory one by one")
    assert sorted(reads(api)) == [f"lib/m{number:03}.py" for number in range(200)]  # each once
    assert all(record["status"] == 200 for record in api.requests)
    largest = max(agent.estimate_tokens(record["body"]["messages"]) for record in api.requests)
    assert largest <= agent.THRESHOLD + 2 * agent.MAX_RESULT_CHARS // 4
    archived = on_disk(agent)
    assert all(path.read_text() in archived for path in (tmp_path / "lib").iterdir())


@pytest.mark.parametrize("profile", ["claude", "deepseek"])
@pytest.mark.parametrize("preserved", [set(), {"read_file"}])
def test_no_request_is_refused_in_either_world_of_thinking(
    agent, practice, tmp_path, monkeypatch, profile, preserved
):
    """Claude binds thinking to its prefix; others want all thinking of tool turns back."""
    api = practice(profile=profile)
    monkeypatch.setattr(agent, "MODEL", "claude-haiku-5-5" if profile == "claude" else "deepseek-x")
    monkeypatch.setattr(agent, "PRESERVE_RESULT_TOOLS", preserved)
    monkeypatch.setattr(agent, "THRESHOLD", 5000)
    files(tmp_path / "lib", 20)
    messages = []
    ask(agent, messages, "Read every Python file in lib/ one by one")
    ask(agent, messages, "Use the compact tool to manually compress the conversation")
    ask(agent, messages, "Read every Python file in lib/ several at once")
    assert [record["error"] for record in api.requests if record["status"] != 200] == []
    assert not any(problems(record["body"]) for record in api.requests)


def test_a_reply_of_several_thoughts_and_calls_is_taken_back_as_it_came(agent, practice):
    api, thought = practice(), {"type": "thinking", "thinking": ""}
    step = [call(f"t{n}", "bash", command="true") | {"caller": {"type": "direct"}} for n in (1, 2)]
    api.replies.append(([thought, step[0], thought, step[1]], "tool_use"))
    ask(agent, [], "Run `true`")
    assert [record["error"] for record in api.requests] == [None, None]


@pytest.mark.parametrize(
    "changed",
    [
        {"type": "text", "text": " \n"},
        {"type": "brand_new_block"},
        call("t 1", "bash", command="true"),
    ],
)
def test_thinking_around_what_had_to_be_tidied_is_not_sent_back(agent, practice, changed):
    api, last = practice(), call("t2", "bash", command="true")
    thoughts = [{"type": "thinking", "thinking": ""} for _ in range(2)]
    api.replies.append(([thoughts[0], changed, thoughts[1], last], "tool_use"))
    ask(agent, [], "Run `true`")
    assert [record["error"] for record in api.requests] == [None, None]


def test_a_fact_is_answered_from_the_summary_alone(agent, practice, tmp_path):
    api = practice()
    files(tmp_path / "lib", 3)
    messages = []
    ask(agent, messages, "Read every Python file in lib/ one by one")
    ask(
        agent,
        messages,
        "Use the compact tool to manually compress the conversation, focus on MARK_002",
    )
    answer = ask(agent, messages, "What is MARK_002?")
    assert "MARK_002 = 2" in answer
    assert len(reads(api)) == 3


def test_a_resumed_session_goes_on_with_a_valid_request(agent, practice, tmp_path):
    api = practice()
    files(tmp_path / "lib", 3)
    ask(agent, [], "Read every Python file in lib/ one by one")
    messages = agent.resume("")
    ask(agent, messages, "What is MARK_001?")
    validate(api.requests[-1]["body"])
    assert "MARK_001 = 1" in messages[-1]["content"][-1]["text"]


def test_the_window_may_be_smaller_than_the_threshold(agent, practice, tmp_path):
    """The API refuses what is too long; the agent compacts once and goes on."""
    api = practice(window=5000)
    files(tmp_path / "lib", 12, lines=100)
    ask(agent, [], "Read every Python file in lib/ one by one")
    assert sorted(reads(api)) == [f"lib/m{number:03}.py" for number in range(12)]
    assert any("too long" in (record["error"] or "") for record in api.requests)


def test_layer_1_keeps_the_prompt_cache_of_what_stands_before_the_frontier(
    agent, practice, tmp_path
):
    api = practice()
    files(tmp_path / "lib", 10)
    ask(agent, [], "Read every Python file in lib/ one by one")
    late = [record["usage"] for record in api.requests[-4:]]
    assert all(usage["cache_read_input_tokens"] > usage["input_tokens"] for usage in late)
