"""What the checks share: files to read, and the practice model without a network between.

A check gets the `agent` module with your knobs and your code. It plays a session and looks at what
was sent. Knobs that are not the subject are set, so that only your change makes a difference.
"""

import json
from types import SimpleNamespace

from fakes import SHIPPED, ApiFault
from practice_api import PracticeAPI

PROMPT = """Summarise the conversation below, so that another agent can go on from your words alone.
1. What was accomplished. 2. Current state. 3. Key decisions made."""


class Direct:
    """A client whose requests go straight into a PracticeAPI; the replies come from its script."""

    def __init__(self, **options):
        self.api, self.messages = PracticeAPI(**options), self
        self.api.server.server_close()  # nothing listens, nothing is sent

    def create(self, **request):
        headers = {"x-api-key": "practice", "anthropic-version": "2026-10-21"}
        data = json.dumps(request, ensure_ascii=False).encode()
        status, data, *_ = self.api.answer("/v1/messages", headers, data)
        reply = json.loads(data)
        if status != 200:
            raise ApiFault(status, reply["error"]["message"])
        usage = SimpleNamespace(**reply["usage"])
        return SimpleNamespace(
            content=reply["content"], stop_reason=reply["stop_reason"], usage=usage
        )

    @property
    def refusals(self):
        """What the API refused, in its own words."""
        return [r["error"] for r in self.api.requests if r["status"] != 200]

    @property
    def bill(self):
        """Input of all requests in token equivalents: read from the cache 0.1, written 1.25."""
        used = [r["usage"] for r in self.api.requests if r["usage"]]
        prices = {"input_tokens": 1, "cache_read_input_tokens": 0.1}
        prices["cache_creation_input_tokens"] = 1.25
        return round(sum(usage[kind] * price for usage in used for kind, price in prices.items()))

    def reads(self):
        """The path of every read_file call."""
        calls = [block for r in self.api.requests for block in r["content"] or []]
        return [call["input"]["path"] for call in calls if call.get("name") == "read_file"]


def start(agent, mine="", **options):
    """Plug the practice model in and set all knobs but those named in `mine`; the client."""
    knobs = {name: value for name, value in SHIPPED.items() if name not in mine.split()}
    if "SUMMARY_PROMPT" not in mine:
        knobs["SUMMARY_PROMPT"] = PROMPT
    vars(agent).update(knobs, client=Direct(**options), MODEL="claude-haiku-5-5")
    return agent.client


def files(agent, count, lines=30):
    """`count` Python files in lib/, each with a mark of its own."""
    folder = agent.WORKDIR / "lib"
    folder.mkdir(exist_ok=True)
    for number in range(count):
        body = "".join(f"value_{number}_{line} = {line * number}\n" for line in range(lines))
        (folder / f"m{number:02}.py").write_text(f"MARK_{number:02} = {number * 37}\n{body}")


def ask(agent, messages, prompt):
    """Type a prompt; the last text of the answer."""
    print(f"s06 >> {prompt}")
    agent.add(messages, "user", prompt)
    agent.agent_loop(messages)
    return messages[-1]["content"][-1].get("text", "")


def results(messages):
    """The content of every tool_result, in order."""
    blocks = [b for m in messages if isinstance(m["content"], list) for b in m["content"]]
    return [block["content"] for block in blocks if block["type"] == "tool_result"]


def cleared(messages):
    """Which results are placeholders: [False, True, ...]."""
    return [str(text).startswith("[Previous: used ") for text in results(messages)]
