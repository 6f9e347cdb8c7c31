"""A session to measure on: an agent mends a made-up shop in seven user turns and some 300 calls.

All of it follows from a seed, by random.Random.random() alone (the one method whose numbers no
Python version changes), and from nothing else in this repository. The agent behaves as recorded
ones do: it lists, greps, reads what grep named, edits lines that it has read, runs tests, follows
the names in their tracebacks, and looks at logs and JSON. Sizes are as recorded: most results are
short, some are long, 2,200 characters on average.

    python tests/bench/generate.py [--calls N] [--seed N] > session.json
"""

import argparse
import json
import random

VERBS, NOUNS, FORMS, FOLDERS = map(
    str.split,
    (
        "load save check merge split price ship cancel refund notify parse format index",
        "order basket invoice customer parcel voucher stock address payment supplier",
        "by_id in_batches for_today with_tax from_csv as_json once safely again later",
        "core api db web jobs reports",
    ),
)
WISHES = (
    "Orders with a voucher are charged the full price. Find out why and mend it.",
    "The nightly job crashes on empty baskets. Make it survive, with a test.",
    "Reports are slow. Look where the time goes and make the worst part faster.",
    "Please rename the address helpers so that their names say what they return.",
    "Two suppliers send dates as text. Accept both forms everywhere.",
    "The web page shows the wrong stock after a refund. Reproduce it first, then mend it.",
    "Go through the error handling of the payment code and report what is missing.",
)


class Shop:
    """The made-up repository: {path: [lines]}, and the dice."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.files, self.printed = {}, []  # printed: names that logs, tests and dumps showed
        for folder in FOLDERS:
            for noun in NOUNS:
                self.files[f"src/shop/{folder}/{noun}_{self.pick(VERBS)}.py"] = self.module(noun)

    def number(self, low: int, high: int) -> int:
        """A whole number from low to high."""
        return low + int(self.random.random() * (high - low + 1))

    def pick(self, items):
        """One of the items."""
        return items[int(self.random.random() * len(items))]

    def name(self, noun: str = "") -> str:
        """A function's name, such as load_order_by_id_17."""
        parts = self.pick(VERBS), noun or self.pick(NOUNS), self.pick(FORMS)
        return "_".join(parts) + f"_{self.number(1, 99)}"

    def show(self) -> str:
        """A function's name that turns up in some output; the agent may look for it later."""
        self.printed.append(self.pick(definitions(self.pick(list(self.files.values()))))[1])
        return self.printed[-1]

    def module(self, noun: str) -> list:
        """The lines of a module with some functions."""
        lines = [f'"""{noun.title()}s of the shop."""', "", "import logging", ""]
        for _ in range(self.number(2, 9) if self.random.random() < 0.85 else self.number(12, 30)):
            name, field = self.name(noun), f"{self.pick(NOUNS)}_{self.pick(FORMS)}"
            lines += ["", f"def {name}({noun}, {field}=None, limit={self.number(5, 500)}):"]
            lines += [f'    """{self.pick(VERBS).title()} the {noun}, {self.pick(FORMS)}."""']
            for _ in range(self.number(1, 6)):
                lines += [f"    {field} = {self.name()}({noun}.{self.pick(NOUNS)}, {field})"]
            lines += [f"    if {field} is None or {field}.total > limit:"]
            lines += [f'        logging.warning("{name}: %s", {field})', f"    return {field}", ""]
        return lines


def definitions(lines: list) -> list:
    """[(line number, function name), ...] of a module."""
    names = [(n, line[4 : line.index("(")]) for n, line in enumerate(lines) if line[:4] == "def "]
    return names


# --- the tools: each returns (name, input, output) -------------------------------------------


def bash(command: str, output: str) -> tuple:
    """A command and what it printed."""
    return "bash", {"command": command}, output


def listing(shop: Shop, folder: str) -> tuple:
    """ls -l of a folder."""
    paths = [path for path in shop.files if path.startswith(folder)]
    rows = [
        f"-rw-r--r-- 1 dev dev {sum(map(len, shop.files[path])):>6} Mar {shop.number(1, 28):>2} "
        f"{shop.number(0, 23):02}:{shop.number(0, 59):02} {path.rpartition('/')[2]}"
        for path in paths
    ]
    return bash(f"ls -l {folder}", f"total {4 * len(rows)}\n" + "\n".join(rows))


def grep(shop: Shop, word: str, at_most: int = 60) -> tuple:
    """grep -rn of a word over the sources."""
    lines = ((path, n, line) for path, ls in shop.files.items() for n, line in enumerate(ls, 1))
    hits = [f"{path}:{n}:{line}" for path, n, line in lines if word in line]
    return bash(
        f"grep -rn {word} src | head -{at_most}", "\n".join(hits[:at_most]) or "(no output)"
    )


def read(shop: Shop, path: str) -> tuple:
    """read_file of a whole file."""
    return "read_file", {"path": path}, "\n".join(shop.files[path])


def edit(shop: Shop, path: str, at: int) -> tuple:
    """edit_file of two lines; the file changes."""
    old = shop.files[path][at : at + 2]
    new = [line.replace("is None", "is not True").replace("limit", "upper_limit") for line in old]
    new.insert(1, f"    {shop.name()}({shop.pick(NOUNS)!r})")
    shop.files[path][at : at + 2] = new
    given = {"path": path, "old_text": "\n".join(old), "new_text": "\n".join(new)}
    return "edit_file", given, f"Edited {path}"


def write_test(shop: Shop, path: str, name: str) -> tuple:
    """write_file of a test for a function."""
    target = f"tests/test_{path.rpartition('/')[2]}"
    body = [f"from shop import {name}", ""]
    for case in range(shop.number(2, 8)):
        body += ["", f"def test_{name}_{case}():", f"    assert {name}({case}) is not None", ""]
    text = "\n".join(body)
    return "write_file", {"path": target, "content": text}, f"Wrote {len(text):,} bytes to {target}"


def run_tests(shop: Shop, path: str) -> tuple:
    """pytest with some failures, whose tracebacks name functions and files."""
    out = [f"collected {shop.number(40, 400)} items", ""]
    for _ in range(shop.number(0, 5)):
        where = shop.pick(list(shop.files)) if shop.random.random() < 0.4 else path
        at, name = shop.pick(definitions(shop.files[where]))
        out += [f"____ test_{name} ____", "", f"    def test_{name}(shop):"]
        for depth in range(shop.number(2, 8)):
            out += [f">       {line.strip()}" for line in shop.files[where][at + 1 : at + 5]]
            out += [f"{where}:{at + depth}: in {name}"]
        out += [f"E       ValueError: {shop.show()} returned {shop.number(0, 999)}", ""]
    out += [f"{shop.number(30, 300)} passed in {shop.number(1, 90)}.{shop.number(10, 99)}s"]
    return bash(f"python -m pytest -q -k {path.rpartition('/')[2][:-3]}", "\n".join(out))


def log(shop: Shop) -> tuple:
    """The end of a log file."""
    rows = [
        f"2026-03-{shop.number(1, 28):02} {shop.number(0, 23):02}:{shop.number(0, 59):02} "
        f"{shop.pick(('INFO', 'INFO', 'WARNING', 'ERROR'))} shop.{shop.pick(FOLDERS)} "
        f"{shop.show()} id={shop.number(1000, 9999)} took={shop.number(1, 900)}ms"
        for _ in range(shop.number(40, 260))
    ]
    return bash(f"tail -n {len(rows)} var/shop_{shop.pick(FOLDERS)}.log", "\n".join(rows))


def dump(shop: Shop) -> tuple:
    """A reply of the shop's API."""
    rows = [
        {"id": shop.number(1000, 9999), "state": shop.pick(FORMS), shop.pick(NOUNS): shop.show()}
        for _ in range(shop.number(3, 60))
    ]
    return bash(f"curl -s localhost/api/{shop.pick(NOUNS)}", json.dumps(rows, indent=1))


def small(shop: Shop, path: str) -> tuple:
    """A command that prints next to nothing."""
    kinds = ("git add", "python -m ruff check", "wc -l", "git log --oneline -3 --")
    return bash(
        f"{shop.pick(kinds)} {path}", shop.pick(("(no output)", "All checks passed!", "ok"))
    )


# --- the session -----------------------------------------------------------------------------


def work(shop: Shop):
    """Yield the calls of one user turn, without end: each follows from what was seen before."""
    yield listing(shop, f"src/shop/{shop.pick(FOLDERS)}")
    seen = []
    while True:
        name = shop.pick(shop.printed) if shop.printed and shop.random.random() < 0.6 else ""
        path = next((p for p, lines in shop.files.items() if name and name in str(lines)), "")
        path = path or shop.pick(list(shop.files))
        if name:
            yield grep(shop, name)
        yield read(shop, path)
        seen.append(path)
        for _ in range(shop.number(1, 4)):
            path = seen[-1] if shop.random.random() < 0.7 else shop.pick(seen)
            at, name = shop.pick(definitions(shop.files[path]))
            if shop.random.random() < 0.4:
                yield grep(shop, name.rpartition("_")[0])
            yield edit(shop, path, at + 1)
            yield run_tests(shop, path)
            if shop.random.random() < 0.5:
                yield small(shop, path)
        if shop.random.random() < 0.3:
            yield write_test(shop, path, name)
        if shop.random.random() < 0.4:
            yield log(shop) if shop.random.random() < 0.6 else dump(shop)
        if shop.random.random() < 0.25:
            yield listing(shop, f"src/shop/{shop.pick(FOLDERS)}")


def generate(calls: int = 300, seed: int = 6) -> dict:
    """A recording as replay.analyse takes it, with at least this many calls."""
    shop, messages, made = Shop(seed), [], 0
    for number, wish in enumerate(WISHES):
        messages.append({"role": "user", "content": wish})
        steps = work(shop)
        while made < calls * (number + 1) // len(WISHES):
            batch = [next(steps) for _ in range(2 if shop.random.random() < 0.06 else 1)]
            messages += exchange(shop, batch, made)
            made += len(batch)
        words = f"Done: {wish.split('.')[0].lower()} is settled; {shop.number(2, 9)} files changed."
        messages.append({"role": "assistant", "content": [{"type": "text", "text": words}]})
    return {"meta": {"name": f"generated, seed {seed}"}, "messages": messages}


def exchange(shop: Shop, batch: list, made: int) -> list:
    """An assistant message with these calls, and the user message with their results."""
    calls, results = [], []
    if shop.random.random() < 0.5:
        words = f"Next I look at the {shop.pick(NOUNS)} part, then at what depends on it."
        calls.append({"type": "text", "text": words})
    for number, (name, given, output) in enumerate(batch, made):
        call_id = f"toolu_{number:05}"
        calls.append({"type": "tool_use", "id": call_id, "name": name, "input": given})
        results.append({"type": "tool_result", "tool_use_id": call_id, "content": output})
    return [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]


def main() -> None:
    """Print a session as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--seed", type=int, default=6)
    args = parser.parse_args()
    print(json.dumps(generate(args.calls, args.seed), indent=1))


if __name__ == "__main__":
    main()
