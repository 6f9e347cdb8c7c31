"""Kill a working session with SIGKILL at random instants, and see that nothing had been lost.

    python tests/bench/kill9.py [--kills 200] [--seed 1] [--real-sdk]

A session is the real program in a scratch folder, a child process, that talks to a PracticeAPI
here. Its model never finishes: it runs commands, reads and writes files, several at once, and
compacts every few turns. Then:

    joined     every message of every request that the API saw is in the transcripts, the results
               that Layer 1 had cleared and those that had been capped as they were
    parses     every line that ends with a newline is a message
    resumes    `--resume` goes on with a request that practice_api.validate accepts
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "agents")]

import terminal  # noqa: E402
from practice_api import ApiError, PracticeAPI, as_blocks, rendered, validate  # noqa: E402

KNOBS = """
knobs = {"THRESHOLD": 1800, "KEEP_RECENT": 2, "PRESERVE_RESULT_TOOLS": set(), "MIN_SAVINGS": 0.1}
knobs |= {"SUMMARY_INPUT": 3000, "MAX_RESULT_CHARS": 4000}
vars(s06).update(knobs)

class Slow:  # a file that takes 2,000 bytes at a time, as a raw file may: lines can be torn
    def __init__(self, file): self.file = file
    def __enter__(self): return self
    def __exit__(self, *_): self.file.close()
    def tell(self): return self.file.tell()
    def write(self, data): s06.time.sleep(0.001); return self.file.write(data[:2000])

def slow(path, mode, *buffering, **opener):
    file = open(path, mode, *buffering, **opener)
    return Slow(file) if buffering else file  # else it is a tool's

s06.open = slow
"""
CALLS = [  # what the model does, over and over; {n} makes every result its own
    [("bash", {"command": "echo result {n} \u6c49; seq {n} 700"})],
    [("write_file", {"path": "f{n}.txt", "content": "step {n}\n" * 150})],
    [("bash", {"command": "seq {n} 9999"}), ("bash", {"command": "sleep 0.02; seq {n} 500"})],
    [("read_file", {"path": "big.txt"}), ("edit_file", {"path": "no", "old_text": "{n}"})],
]
COMPACT = [("compact", {"focus": "step {n}"})]
CUT = re.compile(r"(?s)(.*)\n\[\.\.\. the middle of ([\d,]+) characters is cut here.*?\]\n(.*)")


class Session:
    """One session that is killed `after` seconds behind its first request."""

    def __init__(self, folder, seed, real_sdk=False):
        self.folder, self.random, self.real_sdk = Path(folder), random.Random(seed), real_sdk
        self.step, self.doing, self.finished = 0, "starting", False
        self.begun = threading.Event()
        (self.folder / "big.txt").write_text("\u6c49\u5b57 line\n" * 2000, encoding="utf-8")

    def model(self, body):
        """What the API answers: an endless rotation of calls, or a summary."""
        self.doing = "API wait" if "tools" in body else "compaction"
        self.begun.set()
        time.sleep(self.random.uniform(0, 0.03))
        self.doing, self.step = "own work", self.step + 1
        if self.finished or "tools" not in body:
            return [{"type": "text", "text": f"Summary {self.step}."}], "end_turn"
        calls = []
        for tool, given in COMPACT if self.step % 13 == 0 else CALLS[self.step % len(CALLS)]:
            given = {key: text.format(n=self.step) for key, text in given.items()}
            calls.append({"type": "tool_use", "id": f"t{self.step}-{len(calls)}", "name": tool})
            calls[-1]["input"] = given
        return [{"type": "text", "text": f"Step {self.step}."}, *calls], "tool_use"

    def run_and_kill(self, api, after):
        """Start the program, kill it; return what it was doing."""
        env = terminal.environment(self.folder, api, self.real_sdk)
        line = terminal.command("Work on and on", code=KNOBS)
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        child = subprocess.Popen(line, cwd=self.folder, env=env, **streams)
        if after > 0:
            self.begun.wait(terminal.PATIENCE)
        threading.Event().wait(abs(after))
        child.kill()
        doing = self.doing
        assert child.wait() == -9, "the session ended by itself"
        return "archive write" if torn(self.folder) else self.tools_or(doing)

    def tools_or(self, doing):
        """`doing`, or "tools" when the last line on disk holds a call."""
        lines = complete_lines(self.folder)
        open_call = doing == "own work" and lines and b'"tool_use"' in lines[-1]
        return "tools" if open_call else doing

    def problems(self, api):
        """What does not hold after the kill: [(promise, details), ...]."""
        found = [("joined", text) for text in missing(api.requests, self.folder)]
        for line in complete_lines(self.folder):
            if not parses(line):
                found.append(("parses", line[:200].decode("utf-8", "replace")))
        self.finished, before = True, len(api.requests)
        if complete_lines(self.folder):
            argv = ("--resume", "And now?")
            env = {"api": api, "real_sdk": self.real_sdk}
            child = terminal.run(self.folder, *argv, code=KNOBS, **env)
            found += [("resumes", text) for text in refused(api.requests[before:], child)]
        return found


def transcripts(folder):
    """The transcripts that hold anything, oldest first."""
    files = [path for path in Path(folder, ".transcripts").glob("*.jsonl") if path.stat().st_size]
    return sorted(files, key=lambda path: path.stat().st_mtime_ns)


def torn(folder):
    return any(not path.read_bytes().endswith(b"\n") for path in transcripts(folder))


def complete_lines(folder):
    """Every line with a newline, of all transcripts, oldest first."""
    lines = [path.read_bytes().split(b"\n")[:-1] for path in transcripts(folder)]
    return [line for file in lines for line in file]


def parses(line):
    try:
        return set(json.loads(line)) == {"role", "content"}
    except ValueError:
        return False


def missing(requests, folder):
    """The parts of requests that the transcripts do not hold, in words, each once."""
    texts, calls, outputs = set(), {}, {}
    for message in map(json.loads, filter(parses, complete_lines(folder))):
        for block in as_blocks(message["content"]):
            if block["type"] == "tool_result":
                outputs.setdefault(block["tool_use_id"], []).append(block["content"])
            elif block["type"] == "tool_use":
                calls[block["id"]] = block["input"]
            else:
                texts.add(block.get("text", block.get("signature")))
    steps = [r["body"]["messages"] for r in requests if r["body"].get("tools")]
    lost = {}
    for _, _, block in (part for ms in steps for part in rendered({"messages": ms})):
        if block["type"] == "tool_result":
            name = block["tool_use_id"]
            there = any(stands_for(block["content"], stored) for stored in outputs.get(name, []))
        elif block["type"] == "tool_use":
            name, there = block["id"], calls.get(block["id"]) == block["input"]
        else:
            name = block.get("text", block.get("signature"))
            there = name in texts
        if not there:
            lost[f"{block['type']} {name[:60]}"] = None
    return list(lost)


def stands_for(shown, stored):
    """Whether `shown` is the whole `stored` result, or what a layer had left of it."""
    cut = CUT.fullmatch(shown)
    if cut:
        head, size, tail = cut.groups()
        whole = int(size.replace(",", "")) == len(stored)
        return whole and stored.startswith(head) and stored.endswith(tail)
    return shown == stored or (shown.startswith("[Previous: used ") and len(stored) > 100)


def refused(records, child):
    """What is wrong with the resumed session: its requests `records`, the ended `child`."""
    if child.returncode or not records:
        return [f"status {child.returncode}: {(child.stdout + child.stderr).decode()[-300:]}"]
    try:
        for record in records:
            validate(record["body"])
    except ApiError as error:
        return [str(error)]
    asked = "And now?" in json.dumps(records[0]["body"]["messages"][-1])
    return [] if asked else ["the new prompt is not in the last message"]


def kill_once(seed, span=1.2, real_sdk=False):
    """(what it was doing, its problems) for one session, killed at an instant that `seed` gives."""
    with tempfile.TemporaryDirectory(prefix="kill9-") as folder:
        session = Session(folder, seed, real_sdk)
        after = random.Random(-seed - 1).uniform(-0.05 * span, span)
        with PracticeAPI(model=session.model, retry=False) as api:
            api.server.handle_error = lambda *_: None  # whoever is killed cannot take the answer
            doing = session.run_and_kill(api, after)
            return doing, session.problems(api)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first kill")
    parser.add_argument("--span", type=float, default=1.2, help="seconds in which the kill falls")
    parser.add_argument("--real-sdk", action="store_true", help="slower by a second or two a kill")
    options = parser.parse_args()
    kills, failed, shown = Counter(), Counter(), []
    for seed in range(options.seed, options.seed + options.kills):
        doing, problems = kill_once(seed, options.span, options.real_sdk)
        kills[doing] += 1
        failed.update((doing, promise) for promise in {promise for promise, _ in problems})
        shown += [f"seed {seed}, {doing}: {promise}: {text}" for promise, text in problems]
    print(f"{'killed during':<16}{'kills':>6}{'joined':>8}{'parses':>8}{'resumes':>9}")
    for doing, number in sorted(kills.items()):
        held = [number - failed[doing, promise] for promise in ("joined", "parses", "resumes")]
        print(f"{doing:<16}{number:>6}{held[0]:>8}{held[1]:>8}{held[2]:>9}")
    print("\n".join(shown[:20]))
    return 1 if shown else 0


if __name__ == "__main__":
    sys.exit(main())
