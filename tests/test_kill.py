"""SIGKILL, two programs in one folder, a disk that refuses: the transcript is there afterwards.

tests/bench/kill9.py does the same at hundreds of random instants.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("needs a POSIX system", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).with_name("bench")))

import kill9
from fakes import assistant, call, lines_of, reply, text, user
from practice_api import PracticeAPI, validate
from terminal import Terminal, command, environment, run

FROZEN = "import time; s06.time.gmtime = lambda *_: time.struct_time((2026,) + (1,) * 8)\n"


@pytest.fixture
def practice():
    """practice(*calls) starts an API whose model makes these calls, then says "done" for ever."""
    running = []

    def start(*calls):
        left = list(calls)

        def model(body):
            more = left and "tools" in body
            return ([left.pop(0)], "tool_use") if more else ([text("done")], "end_turn")

        api = PracticeAPI(model=model, retry=False)
        api.server.handle_error = lambda *_: None  # whoever is killed cannot take the answer
        running.append(api.__enter__())
        return api

    yield start
    for api in running:
        api.__exit__()


# --- SIGKILL ---------------------------------------------------------------------------------


SMALL = "vars(s06).update(THRESHOLD=800, MIN_SAVINGS=0, PRESERVE_RESULT_TOOLS={'bash'})\n"
CLEARING = "vars(s06).update(KEEP_RECENT=0, PRESERVE_RESULT_TOOLS=set())\n"
IN_A_WRITE = """
class Torn:  # of the line with this word only half reaches the disk
    def __init__(self, file): self.file = file
    def __enter__(self): return self
    def __exit__(self, *_): self.file.close()
    def tell(self): return self.file.tell()
    def write(self, data):
        if b"n399" not in data:
            return self.file.write(data)
        self.file.write(data[:len(data) // 2])
        s06.os.kill(s06.os.getpid(), 9)
s06.open = lambda path, mode, *rest, **more: Torn(open(path, mode, *rest, **more))
"""
IN_A_TOOL = "s06.TOOL_HANDLERS['read_file'] = lambda path: s06.os.kill(s06.os.getpid(), 9)\n"
KNOBS = {"archive write": IN_A_WRITE, "a tool": IN_A_TOOL}


def killer(kind, number):
    """A fault for the API: SIGKILL to `child` at its `number`-th request of this kind."""
    child, seen = [], []  # the child is not known yet, and no longer when it has ended

    def fault(body):
        seen.extend([kind] if ("tools" in body) == (kind == "step") else [])
        if child and len(seen) == number:
            os.kill(child[0].pid, signal.SIGKILL)

    return fault, child


@pytest.mark.parametrize(
    "moment, kind, number",
    [
        ("archive write", "step", 99),
        ("a tool", "step", 99),
        ("API wait", "step", 2),
        ("compaction", "summary", 1),
        ("API wait behind a compaction", "step", 3),
    ],
)
def test_what_had_joined_is_on_disk_and_resume_goes_on(
    agent, scripted, practice, tmp_path, moment, kind, number
):
    bash = [call(f"t{n}", "bash", command=f"seq {n}00") for n in (5, 4)]
    api = practice(*bash, call("t3", "read_file", path="x"))
    fault, child = killer(kind, number)
    api.faults.append(fault)
    line, env = command("Work", code=SMALL + KNOBS.get(moment, "")), environment(tmp_path, api)
    child += [subprocess.Popen(line, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)]
    assert child[0].wait(30) == -signal.SIGKILL
    child.clear()
    assert kill9.missing(api.requests, tmp_path) == []
    assert all(map(kill9.parses, kill9.complete_lines(tmp_path)))
    client, messages = scripted(reply("ok")), agent.resume("")
    agent.add(messages, "user", "And now?")
    assert agent.agent_loop(messages)
    validate(client.requests[0])
    assert "And now?" in str(client.requests[0]["messages"][-1])


def write_transcript(folder, name, data, age):
    path = Path(folder, ".transcripts", name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (1e9 - age, 1e9 - age))


def test_resume_passes_by_transcripts_without_a_message(practice, tmp_path):
    """A kill before or during the first line of a new file, after /compact or /clear."""
    api = practice()
    whole = [user("The word is ZEBRA."), assistant("ok")]
    write_transcript(tmp_path, "a.jsonl", "".join(f"{json.dumps(m)}\n" for m in whole).encode(), 9)
    write_transcript(tmp_path, "b.jsonl", b'{"role": "us', 1)
    write_transcript(tmp_path, "c.jsonl", b"", 0)
    assert run(tmp_path, "--resume", "Which word?", api=api).returncode == 0
    assert "ZEBRA" in str(api.requests[0]["body"]["messages"])


# --- two programs in one folder --------------------------------------------------------------


def texts(path):
    """What the users said, as one transcript holds it."""
    return [line["content"] for line in lines_of(path) if line["role"] == "user"]


def say(person, words):
    person.type(f"{words}\n")
    person.wait("done")
    person.wait("s06 >> ")


def test_two_programs_at_once_under_a_frozen_clock_do_not_mix(practice, tmp_path):
    api = practice()
    with (
        Terminal(tmp_path, api=api, code=FROZEN) as one,
        Terminal(tmp_path, api=api, code=FROZEN) as two,
    ):
        say(one, "one a")
        say(two, "two a")
        say(one, "one b")
        say(two, "two b")
    written = sorted(texts(path) for path in (tmp_path / ".transcripts").glob("*.jsonl"))
    assert written == [["one a", "one b"], ["two a", "two b"]]


def test_one_program_resumes_what_another_is_still_writing(practice, tmp_path):
    api = practice()
    with Terminal(tmp_path, api=api) as one:
        say(one, "one a")
        with Terminal(tmp_path, "--resume", api=api) as two:
            say(two, "two a")
            say(one, "one b")
    written = sorted(texts(path) for path in (tmp_path / ".transcripts").glob("*.jsonl"))
    assert written == [["one a", "one b"], ["one a", "two a"]]


# --- a disk that refuses ---------------------------------------------------------------------

FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"


def test_on_a_full_disk_the_session_lives_and_no_line_is_torn(practice, tmp_path):
    api = practice(*[call(f"t{n}", "bash", command="seq 300") for n in range(9)])
    child = run(tmp_path, "Work", api=api, code=CLEARING + FULL)
    assert (child.returncode, child.stderr, len(api.requests)) == (0, b"", 10)
    assert child.stdout.count(b"no transcript") == 1
    [path] = (tmp_path / ".transcripts").glob("*.jsonl")
    assert len(lines_of(path)) > 2 and path.read_bytes().endswith(b"\n")


def test_on_a_full_disk_no_layer_takes_anything_away(practice, tmp_path):
    api = practice(*[call(f"t{n}", "bash", command="seq 300") for n in range(9)])
    run(tmp_path, "Work", api=api, code=CLEARING + FULL.replace("5000", "100"))
    assert kill9.missing(api.requests, tmp_path) != []  # there really is nothing on disk
    assert "[Previous: used" not in str(api.requests[-1]["body"]["messages"])


def stand_in_the_way(folder):
    (folder / ".transcripts").write_text("a file")


def lead_nowhere(folder):
    (folder / ".transcripts").symlink_to("no/such/folder")


def lock(folder):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    folder.chmod(0o500)


@pytest.mark.parametrize("trouble", [stand_in_the_way, lead_nowhere, lock])
def test_where_no_transcript_can_be_written_the_session_lives(practice, tmp_path, trouble):
    api = practice(call("t1", "bash", command="echo hi"))
    trouble(tmp_path)
    child = run(tmp_path, "Work", api=api)
    tmp_path.chmod(0o700)
    assert (child.returncode, child.stderr) == (0, b"")
    assert child.stdout.count(b"no transcript") == 1
    assert "hi\\n" in str(api.requests[1]["body"]["messages"][2])
