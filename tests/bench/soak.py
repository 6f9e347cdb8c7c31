"""Thousands of turns of one session with the shipped knobs: memory, time per turn, disk.

    python tests/bench/soak.py [--turns 10000] [--every 1000]

The agent runs here, in this process, with the real SDK, over HTTP, against a PracticeAPI in a
thread that forgets its requests. Its model makes small calls (a command, reads, a write, an edit,
two at once) and answers every 50th turn; then the user says the next thing. One line a thousand
turns: resident memory now and at most, milliseconds a turn (by the clock, and of processor time,
the API's included), and what the transcripts weigh beside
what was said: the lines of all messages that joined, each counted once, and each compaction's.
"""

import argparse
import contextlib
import io
import json
import os
import resource
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "agents"))

import practice_api  # noqa: E402
import s06_context_compact as s06  # noqa: E402

PER_PROMPT = 50  # turns that one prompt of the user takes
CALLS = [
    [("bash", {"command": "seq {n} 1500 | head -c 4000; echo {n}"})],
    [("read_file", {"path": "lib/m{m}.py"})],
    [("write_file", {"path": "out/f{m}.txt", "content": "value = {n}\n"})],
    [("read_file", {"path": "lib/m{m}.py", "limit": 20}), ("bash", {"command": "ls lib | wc -l"})],
    [("edit_file", {"path": "out/f{m}.txt", "old_text": "value", "new_text": "value"})],
]


class Soak:
    """The session and its figures."""

    def __init__(self):
        self.turns, self.said, self.compactions = 0, 0, 0
        self.add = s06.add

    def model(self, body):
        """A summary, an answer at every 50th turn, else the next calls of the rotation."""
        if "tools" not in body:
            self.compactions += 1
            return [{"type": "text", "text": f"Summary at turn {self.turns}. " * 20}], "end_turn"
        self.turns += 1
        text = {"type": "text", "text": f"Turn {self.turns}."}
        if self.turns % PER_PROMPT == 0:
            return [text], "end_turn"
        calls = []
        for tool, given in CALLS[self.turns % len(CALLS)]:
            filled = {
                key: value.format(n=self.turns, m=self.turns // 5 % 40) if key != "limit" else value
                for key, value in given.items()
            }
            name = f"t{self.turns}_{len(calls)}"
            calls.append({"type": "tool_use", "id": name, "name": tool, "input": filled})
        return [text, *calls], "tool_use"

    def counted_add(self, messages, role, content):
        """The door of the agent, with a scale at it."""
        line = json.dumps({"role": role, "content": s06.plain(content)}, ensure_ascii=False)
        self.said += len(line.encode()) + 1
        self.add(messages, role, content)

    def run(self, api, turns, every):
        """Work until `turns`; yield after each `every`."""
        messages, reported, began = [], 0, (time.perf_counter(), time.process_time())
        while self.turns < turns:
            with contextlib.redirect_stdout(io.StringIO()):
                s06.add(messages, "user", f"Go on with part {self.turns // PER_PROMPT}.")
                if not s06.agent_loop(messages):
                    raise SystemExit(f"turn {self.turns}: {s06.STATE.why}")
            if self.turns - reported >= every:
                now = time.perf_counter(), time.process_time()
                per = 1000 / (self.turns - reported)
                yield self.turns, (now[0] - began[0]) * per, (now[1] - began[1]) * per, messages
                reported, began = self.turns, (time.perf_counter(), time.process_time())


def resident():
    """Megabytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def disk():
    """Bytes of all transcripts."""
    return sum(path.stat().st_size for path in s06.TRANSCRIPT_DIR.glob("*.jsonl"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=1_000, help="turns between two lines")
    options = parser.parse_args()
    soak = Soak()
    with tempfile.TemporaryDirectory() as folder, practice_api.PracticeAPI(model=soak.model) as api:
        os.chdir(folder)
        vars(s06).update(WORKDIR=Path(folder), TRANSCRIPT_DIR=Path(folder, ".transcripts"))
        vars(s06).update(add=soak.counted_add)
        practice_api.go_offline(s06, api)
        api.requests = deque(maxlen=1)
        Path("lib").mkdir()
        for number in range(40):
            body = "".join(f"value_{number}_{line} = {line}\n" for line in range(100))
            Path(f"lib/m{number}.py").write_text(body)
        print(f"{'turns':>6}{'MB now':>8}{'MB most':>9}{'ms/turn':>9}{'cpu ms':>8}", end="")
        print(
            f"{'disk MB':>9}{'said MB':>9}{'ratio':>7}{'context':>9}{'compactions':>13}", flush=True
        )
        for turns, clock, cpu, messages in soak.run(api, options.turns, options.every):
            api.cache.entries.clear()
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
            print(f"{turns:>6}{resident():>8.1f}{most:>9.1f}{clock:>9.1f}{cpu:>8.1f}", end="")
            print(f"{disk() / 1e6:>9.2f}{soak.said / 1e6:>9.2f}{disk() / soak.said:>7.3f}", end="")
            print(f"{s06.estimate_tokens(messages):>9,}{soak.compactions:>13}", flush=True)
        os.chdir("/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
