"""The program where the locale is C, readline is missing, or the system knows no process groups."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("starts children in a POSIX way", allow_module_level=True)

from fakes import SHIPPED, call, lines_of, results, text
from practice_api import PracticeAPI, as_blocks
from terminal import Terminal, run

C_LOCALE = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
CHINESE = "\u6c49\u5b57"


@pytest.fixture
def api():
    with PracticeAPI(model=lambda body: ([text("done")], "end_turn"), retry=False) as practice:
        yield practice


def plan(api, *calls):
    api.replies += [([one], "tool_use") for one in calls]


def last_texts(api, record=-1):
    """The texts and results in the newest message of a request."""
    blocks = as_blocks(api.requests[record]["body"]["messages"][-1]["content"])
    return [block.get("content", block.get("text")) for block in blocks]


# --- the C locale ----------------------------------------------------------------------------


def test_a_chinese_conversation_is_archived_as_utf_8_and_resumed(api, tmp_path):
    api.replies.append(([text(f"{CHINESE}!")], "end_turn"))
    child = run(tmp_path, api=api, typed=f"{CHINESE}?\n", **C_LOCALE)
    assert (child.returncode, child.stderr) == (0, b"")
    assert last_texts(api) == [f"{CHINESE}?"] and f"{CHINESE}!".encode() in child.stdout
    [path] = (tmp_path / ".transcripts").glob("*.jsonl")
    assert f'"{CHINESE}?"'.encode() in path.read_bytes()
    run(tmp_path, "--resume", "next", api=api, **C_LOCALE)
    assert api.requests[-1]["body"]["messages"][0]["content"] == f"{CHINESE}?"


FILE = f"{CHINESE}.txt"
STEPS = [  # call -> its result
    (call("t1", "read_file", path="old"), f"{CHINESE}\r\n"),
    (call("t2", "bash", command="cat old; cat old >&2"), f"{CHINESE}\r\n" * 2),
    (call("t3", "bash", command=f"echo {CHINESE}"), f"{CHINESE}\n"),
    (call("t4", "write_file", path=FILE, content=f"{CHINESE} = 1\n"), f"Wrote 11 bytes to {FILE}"),
    (call("t5", "edit_file", path=FILE, old_text=f"{CHINESE} = 1", new_text="\u597d"),
     f"Edited {FILE}"),
    (call("t6", "read_file", path=FILE), "\u597d\n"),
]  # fmt: skip


def test_chinese_passes_through_the_command_line_and_every_tool(api, tmp_path):
    (tmp_path / "old").write_bytes(f"{CHINESE}\r\n".encode())
    plan(api, *[step for step, _ in STEPS])
    run(tmp_path, CHINESE.encode(), api=api, **C_LOCALE)
    assert last_texts(api, 0) == [CHINESE]
    assert results(api.requests[-1]["body"]["messages"]) == [shown for _, shown in STEPS]
    with open(os.path.join(os.fsencode(tmp_path), FILE.encode()), "rb") as file:
        assert file.read() == "\u597d\n".encode()


@pytest.mark.parametrize("name, locale", [(CHINESE.encode(), C_LOCALE), (b"a\xffb", {})])
def test_in_a_folder_with_an_odd_name_the_program_works(api, tmp_path, name, locale):
    """The second is no UTF-8: a disk from another system, an unpacked archive."""
    folder = os.path.join(os.fsencode(tmp_path), name)
    os.mkdir(folder)
    plan(api, call("t1", "write_file", path="f.txt", content="hello"))
    child = run(folder, "go", api=api, **locale)
    assert (child.returncode, child.stderr) == (0, b"")
    assert b"f.txt" in os.listdir(folder)


def test_a_chinese_env_file_is_read(api, tmp_path):
    lines = f"# {CHINESE}\nANTHROPIC_BASE_URL={api.url}\nMY_NAME={CHINESE}\n"
    (tmp_path / ".env").write_bytes(lines.encode())
    assert run(tmp_path, "go", **C_LOCALE).returncode == 0


@pytest.mark.parametrize("argv", [["--help"], ["--offline", "What can you do?"]])
def test_help_and_the_practice_model_run(tmp_path, argv):
    child = run(tmp_path, *argv, **C_LOCALE)
    assert (child.returncode, child.stderr) == (0, b"")


# --- without readline ------------------------------------------------------------------------


@pytest.fixture
def no_readline(tmp_path_factory):
    """An environment in which `import readline` fails, as it does on Windows."""
    folder = tmp_path_factory.mktemp("stubs")
    (folder / "readline.py").write_text("raise ImportError('no readline here')")
    code = f"sys.path.insert(0, {str(folder)!r})\nsys.modules.pop('readline', None)"
    return {"code": code}


def test_without_readline_a_pipe_works(api, tmp_path, no_readline):
    child = run(tmp_path, api=api, typed=f"{CHINESE}\n/help\nq\n", **no_readline)
    assert (child.returncode, child.stderr) == (0, b"")
    assert last_texts(api) == [CHINESE] and b"/compact" in child.stdout


def test_without_readline_a_terminal_works(api, tmp_path, no_readline):
    with Terminal(tmp_path, api=api, **no_readline) as person:
        person.wait("s06 >> ")
        person.type(f"{CHINESE}\n")
        person.wait("done")
        person.wait("s06 >> ")
        assert person.leave() == 0
    assert last_texts(api) == [CHINESE]


# --- without process groups ------------------------------------------------------------------


@pytest.fixture
def like_windows(agent, monkeypatch):
    """No os.killpg and no os.fork; what is started can be asked for."""
    for name, value in SHIPPED.items():
        monkeypatch.setattr(agent, name, value)
    started, real = [], subprocess.Popen
    monkeypatch.delattr(os, "killpg")
    monkeypatch.delattr(os, "fork")
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda *args, **given: started.append(real(*args, **given)) or started[-1],
    )
    return started


def test_without_killpg_a_command_runs(agent, like_windows):
    assert agent.run_bash("echo hi; exit 3") == "hi\n\n[exit code 3]"


@pytest.mark.parametrize("knob, value", [("BASH_SECONDS", 0.2), ("TOOL_BYTES", 1000)])
def test_without_killpg_the_child_is_killed(agent, monkeypatch, like_windows, knob, value):
    monkeypatch.setattr(agent, knob, value)
    assert agent.run_bash("exec yes").startswith("Error: stopped")
    assert like_windows[0].returncode == -9


def test_nothing_in_the_program_names_fork_or_needs_readline():
    source = Path(__file__).parents[1] / "agents" / "s06_context_compact.py"
    lines = source.read_text(encoding="ascii").splitlines()
    assert [line for line in lines if "fork(" in line or "import pty" in line] == []


@pytest.mark.parametrize("missing", ["O_NOFOLLOW", "O_NONBLOCK"])
def test_files_work_without_flags_that_windows_lacks(agent, monkeypatch, tmp_path, missing):
    monkeypatch.delattr(os, missing)
    agent.run_write("f.txt", "hello")
    agent.run_edit("f.txt", "hello", "bye")
    assert agent.run_read("f.txt") == "bye"


def test_transcripts_have_the_same_line_ends_everywhere(agent):
    messages = []
    agent.add(messages, "user", "a\r\nb")
    [path] = agent.TRANSCRIPT_DIR.glob("*.jsonl")
    assert b"\r" not in path.read_bytes() and lines_of(path)[0]["content"] == "a\r\nb"
    assert json.loads(path.read_bytes()) == {"role": "user", "content": "a\r\nb"}
