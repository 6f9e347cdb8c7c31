"""Time and memory of one turn as the history grows, and the time to start: medians and ratios.

    python tests/bench/speed.py [--repeat N]

A turn is what agent_loop does between two requests: Layer 1, the estimates before and after it,
the cache marks, and `add` of a call and its result. Every knob it depends on is set here; Layer 2
stays out, and then is measured by itself. Memory is the most that a turn allocates on top of the
history. A ratio near 10 from line to line means that the time grows as the history does.
"""

import argparse
import contextlib
import io
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import replay

s06 = replay.s06
SIZES = (100, 1_000, 10_000)
AGENT = Path(s06.__file__).resolve()
STARTS = {
    "python -c pass": ["-c", "pass"],
    "import s06_context_compact": ["-c", f"import sys; sys.path.insert(0, {str(AGENT.parent)!r}); "
                                   "import s06_context_compact"],
    "s06_context_compact.py --help": [str(AGENT), "--help"],
    "import anthropic": ["-c", "import anthropic"],
}  # fmt: skip


def prepare(folder: Path, size: int) -> list:
    """A fresh agent in the folder and a history of `size` messages, as add has let them join."""
    for name, value in replay.SHIPPED.items():
        setattr(s06, name, value)
    s06.WORKDIR, s06.TRANSCRIPT_DIR = folder, folder / ".transcripts"
    s06.MODEL, s06.client, s06.STATE = "claude-haiku-5-5", replay.Stub(), s06.State(Counter())
    messages = [{"role": "user", "content": "Mend the shop."}]
    for number in range((size - 1) // 2):
        messages += exchange(number)
    s06.archive(messages)
    s06.micro_compact(messages)
    return messages


def exchange(number: int) -> list:
    """A call of bash and its result of 1,000 characters."""
    given = {"command": f"grep -n order_{number} src/*.py"}
    call = {"type": "tool_use", "id": f"t{number}", "name": "bash", "input": given}
    output = f"src/orders.py:{number}: total = price * count\n".ljust(1000, ".")
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": output}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def turn(messages: list, number: int) -> None:
    """One turn; the history grows by two messages."""
    s06.archive(messages)
    s06.estimate_tokens(messages)
    s06.micro_compact(messages, s06.CLEAR_AT_LEAST, "claude" in s06.MODEL)
    s06.estimate_tokens(messages)
    s06.with_cache_marks(messages)
    for message in exchange(number):
        s06.add(messages, message["role"], message["content"])


def timed(action) -> float:
    """Milliseconds that action() takes."""
    start = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - start)


def measure(size: int, repeat: int) -> tuple:
    """(ms of a turn, KiB that a turn allocates at most, ms of a compaction) at this size."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        messages = prepare(Path(folder), size)
        turns = [timed(lambda n=n: turn(messages, 10**6 + n)) for n in range(repeat)]
        tracemalloc.start()
        peaks = []
        for number in range(3):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            turn(messages, 2 * 10**6 + number)
            peaks.append((tracemalloc.get_traced_memory()[1] - before) / 1024)
        tracemalloc.stop()
        compaction = timed(lambda: s06.auto_compact(messages))
    return statistics.median(turns), statistics.median(peaks), compaction


def start_times(repeat: int) -> dict:
    """{what: median ms of a fresh Python}; None for what fails here (no anthropic installed)."""
    found = {}
    for what, words in STARTS.items():
        command = [sys.executable, *words]
        if subprocess.run(command, capture_output=True).returncode:
            found[what] = None
            continue
        runs = [
            timed(lambda c=command: subprocess.run(c, capture_output=True)) for _ in range(repeat)
        ]
        found[what] = statistics.median(runs)
    return found


def main(argv: list | None = None) -> None:
    """Measure and print two tables."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--repeat", type=int, default=9, help="runs behind each median")
    repeat = parser.parse_args(argv).repeat
    print("| messages | turn, ms | ratio | memory, KiB | ratio | compaction, ms |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    last = None
    for size in SIZES:
        row = measure(size, repeat)
        ratios = [f"x{new / old:.1f}" for new, old in zip(row, last or row, strict=True)]
        first, second, third = row
        cells = f"{first:.2f} | {ratios[0]} | {second:,.0f} | {ratios[1]} | {third:,.0f}"
        print(f"| {size:,} | {cells} |")
        last = row
    print("\n| start | median, ms | ratio |\n| --- | ---: | ---: |")
    times = start_times(repeat)
    for what, spent in times.items():
        ratio = f"x{spent / times['python -c pass']:.1f}" if spent else ""
        print(f"| {what} | {spent or float('nan'):,.0f} | {ratio} |")


if __name__ == "__main__":
    main()
