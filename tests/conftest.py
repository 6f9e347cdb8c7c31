"""Every test gets the agent in a folder of its own, without keys, proxies or a network."""

import itertools
import re
import ssl

import pytest
import s06_context_compact as s06
from fakes import SHIPPED, ScriptedClient

numbers = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def no_certificates():
    """Nothing here speaks TLS, and to load them for each client takes longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)
        yield


@pytest.fixture
def tmp_path(request, tmp_path_factory):
    """A folder of its own, without the links that pytest makes for each: they cost as much."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    folder = tmp_path_factory.getbasetemp() / f"{next(numbers):04}_{name}"
    folder.mkdir()
    return folder


@pytest.fixture
def agent(monkeypatch, tmp_path):
    """The module under test, as if it had just been started in an empty folder."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "MODEL_ID"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in SHIPPED.items():  # whatever knob a student has turned
        monkeypatch.setattr(s06, name, value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(s06, "WORKDIR", tmp_path)
    monkeypatch.setattr(s06, "TRANSCRIPT_DIR", tmp_path / ".transcripts")
    monkeypatch.setattr(s06, "MODEL", "claude-haiku-5-5")
    monkeypatch.setattr(s06, "client", None)
    monkeypatch.setattr(s06, "STATE", s06.State(s06.Counter()))
    return s06


@pytest.fixture
def scripted(agent, monkeypatch):
    """scripted(reply, reply, ...) puts a ScriptedClient into the agent and returns it."""

    def install(*replies):
        monkeypatch.setattr(agent, "client", ScriptedClient(replies))
        return agent.client

    return install
