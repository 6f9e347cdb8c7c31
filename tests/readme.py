"""The outputs that both READMEs show: made by the program itself, and compared by a test.

    python tests/readme.py --write

fills what stands between `<!-- generated: NAME -->` and `<!-- end -->` in README.md and
README.zh-CN.md. Every scene sets all knobs that it depends on, so a student who turns a knob in
the lesson changes nothing here.
"""

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for folder in ("agents", "tests", "tests/bench"):
    sys.path.insert(0, str(ROOT / folder))

import compare  # noqa: E402
import practice_api  # noqa: E402
import replay  # noqa: E402
import s06_context_compact as s06  # noqa: E402
import sawtooth  # noqa: E402

READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
BLOCK = re.compile(r"(?s)(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)")
TRANSCRIPT = re.compile(r"transcript_\d{8}T\d{6}Z_[0-9a-f]{8}\.jsonl")
KNOBS = re.compile(r"(?m)^([A-Z][A-Z_, ]+) = (.+?)  # (.+)$")
PROMPT = "Summarise. Write: What was accomplished. Current state. Key decisions."
COST = {  # row of compare.py -> how the table on cost calls it
    "Layer 2 alone": "Layer 2 alone",
    "both, no marks": "both layers, no cache marks",
    "both, mark on the tail only": "both, a mark on the last block only",
    "both layers, as shipped": "both, frontier marks: as shipped",
    "CLEAR_AT_LEAST = 2500": "`CLEAR_AT_LEAST = 2500`",
    "CLEAR_AT_LEAST = 5000": "`CLEAR_AT_LEAST = 5000`",
    "CLEAR_AT_LEAST = 10000": "`CLEAR_AT_LEAST = 10000`",
    "PRESERVE = set()": "`PRESERVE_RESULT_TOOLS = set()`",
    "PRESERVE = set(), 5000": "the same and `CLEAR_AT_LEAST = 5000`",
}
COMPARED = [
    "no compaction",
    "Layer 1 alone",
    "Layer 2 alone",
    "both layers, as shipped",
    "CLEAR_AT_LEAST = 5000",
    "PRESERVE = set(), 5000",
    "well-known version",
    "well-known, tail mark",
]

# --- scenes ----------------------------------------------------------------------------------


def files(folder: Path, names: str, parts: int) -> None:
    """Small Python files, each with a constant and functions of its own."""
    folder.mkdir()
    for number, name in enumerate(names.split(), 1):
        lines = [f'"""{name.title()} of the shop."""', "", f"{name.upper()}_LIMIT = {number * 111}"]
        for part in range(1, parts + 1):
            lines += ["", "", f"def {name}_step_{part}(order, amount):"]
            lines += [f'    """Step {part} of {part * 7}: check the {name} of an order."""']
            lines += [f"    if amount > {name.upper()}_LIMIT + {part}:"]
            lines += [f'        raise ValueError("{name}: too much in step {part}")']
            lines += [f"    return order.{name}[{part}] * amount"]
        (folder / f"{name}.py").write_text("\n".join(lines) + "\n", encoding="utf-8")


@contextlib.contextmanager
def scene():
    """(agent, API): the agent in a folder of its own, its wire plugged into the practice API."""
    before, environment, here = dict(vars(s06)), dict(os.environ), os.getcwd()
    with tempfile.TemporaryDirectory() as name, practice_api.PracticeAPI() as api:
        try:
            folder = Path(name).resolve()
            os.chdir(folder)
            files(folder / "shop", "orders prices stock returns", 3)
            files(folder / "parts", "bolts nuts gears wires lamps fuses", 9)
            vars(s06).update(replay.SHIPPED, SUMMARY_PROMPT=PROMPT, STATE=s06.State(s06.Counter()))
            vars(s06).update(WORKDIR=folder, TRANSCRIPT_DIR=folder / ".transcripts")
            practice_api.go_offline(s06, api)
            yield s06, api
        finally:
            os.chdir(here)
            vars(s06).update(before)
            os.environ.clear()
            os.environ.update(environment)


def typed(agent, messages: list, prompts: dict) -> None:
    """Type {prompt: knobs turned before it} into the agent's terminal and show both."""
    lines = iter(prompts.items())

    def answer(prompt):
        line, knobs = next(lines, ("exit", {}))
        for name, value in knobs.items():
            print(f"# {name} = {value}")
        vars(agent).update(knobs)
        print(prompt + line)
        return line

    agent.input = answer  # found before the builtin
    try:
        agent.chat(messages)
    finally:
        del agent.input


def results(messages: list) -> list:
    """The content of every tool_result, in order."""
    blocks = [block for message in messages for block in replay.as_blocks(message)]
    return [block["content"] for block in blocks if block["type"] == "tool_result"]


def first_scene() -> dict:
    """Layer 1: the session, and the results as the model sees them at the end of it."""
    prompt = "Read every Python file in the shop/ directory one by one"
    messages, screen = [], io.StringIO()
    with scene() as (agent, _), contextlib.redirect_stdout(screen):
        typed(agent, messages, {prompt: {"PRESERVE_RESULT_TOOLS": set(), "THRESHOLD": 3000}})
    seen = [repr(text if len(text) < 60 else text[:44] + "...") for text in results(messages)]
    return {"layer1": screen.getvalue(), "results": "\n".join(seen)}


def second_scene() -> dict:
    """Layers 2 and 3, the compressed message, and the saw-tooth of the session."""
    messages, screen, compressed = [], io.StringIO(), []
    prompts = {
        "Read every Python file in the parts/ directory one by one": {"THRESHOLD": 3000},
        "Use the compact tool to manually compress the conversation, focus on NUTS_LIMIT": {},
        "What is NUTS_LIMIT?": {},
    }
    with scene() as (agent, api), contextlib.redirect_stdout(screen):
        typed(agent, messages, prompts)
    for record in api.requests:
        first = replay.as_blocks(record["body"]["messages"][0])[0]["text"]
        if first.startswith("[Conversation compressed"):
            compressed.append(first)
    sizes = [int(n.replace(",", "")) for n in re.findall(r"\[ctx ([\d,]+)", screen.getvalue())]
    _, marks = practice_api.measured(api.requests)
    return {
        "session": screen.getvalue(),
        "message": compressed[0],
        "sawtooth": practice_api.sawtooth(sizes, marks, 3000),
    }


# --- other outputs ---------------------------------------------------------------------------


def help_text() -> dict:
    """What --help prints on a terminal of 80 columns."""
    screen, columns, name = io.StringIO(), os.environ.get("COLUMNS"), sys.argv[0]
    os.environ["COLUMNS"], sys.argv[0] = "80", "s06_context_compact.py"
    try:
        with contextlib.redirect_stdout(screen), contextlib.suppress(SystemExit):
            s06.parse_arguments(["--help"])
    finally:
        sys.argv[0] = name
        os.environ.pop("COLUMNS")
        os.environ.update({"COLUMNS": columns} if columns else {})
    return {"help": screen.getvalue()}


def knobs() -> list:
    """[(name, value, comment), ...] of the knobs at the top of the lesson."""
    source = Path(s06.__file__).read_text(encoding="utf-8")
    block = source.partition("# --- knobs")[2].partition("\nMODEL = ")[0]
    return KNOBS.findall(block)


def knob_table() -> dict:
    """The knobs as a table."""
    lines = ["| knob | as shipped | unit, effect, special value |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | `{value}` | {comment} |" for name, value, comment in knobs()]
    return {"knobs": "\n".join(lines)}


def picture() -> dict:
    """The last panel of the picture as plain text."""
    before = {name: getattr(s06, name) for name in (*replay.SHIPPED, *STATEFUL)}
    try:
        title = "both layers"
        return {"picture": sawtooth.text(title, sawtooth.series()[title])}
    finally:
        vars(s06).update(before)


STATEFUL = ("WORKDIR", "TRANSCRIPT_DIR", "MODEL", "client", "STATE")  # what a replay sets, too


def measured(names: list, jobs: int = 1) -> dict:
    """{row: sums} of compare.py on the generated session, tokens = characters / 3.44."""
    replay.use_wheel("")
    prices = replay.PRICES
    if jobs > 1:
        return compare.measure([""], names, prices, jobs)
    before = {name: getattr(s06, name) for name in (*replay.SHIPPED, *STATEFUL)}
    try:
        return {name: compare.task(("", name, prices))[1] for name in names}
    finally:
        vars(s06).update(before)


def cost_line(name: str, sums: dict) -> str:
    """One line of the table on cost."""
    cells = dict(zip(compare.HEADER, compare.cells(name, sums), strict=True))
    shown = [cells[key] for key in ("mean", "plain", "cached", "needed")]
    return f"| {COST[name]} | {' | '.join(shown)} |"


def tables() -> dict:
    """The two tables of measurements; some minutes of work, so --write does it, the test not."""
    totals = measured(list(dict.fromkeys([*COST, *COMPARED])), os.cpu_count() or 1)
    head = "| 285 requests | mean context | without a cache | with the cache | needed |"
    cost = [head, "| --- | ---: | ---: | ---: | ---: |"]
    cost += [cost_line(name, totals[name]) for name in COST]
    return {
        "cost": "\n".join(cost),
        "compare": compare.table({name: totals[name] for name in COMPARED}),
    }


# --- into the READMEs ------------------------------------------------------------------------


def masked(text: str) -> str:
    """The text without what differs from run to run: names of transcripts, blanks at line ends."""
    text = TRANSCRIPT.sub("transcript_TIME_ID.jsonl", text.strip("\n"))
    return re.sub(r"(?m)[ \t]+$", "", text)


def fast_blocks() -> dict:
    """{name: text as it stands in the READMEs} of all blocks but those of tables()."""
    texts = help_text() | first_scene() | second_scene() | picture()
    blocks = {name: f"```text\n{masked(text)}\n```" for name, text in texts.items()}
    return blocks | knob_table()


def shown(path: Path) -> dict:
    """{name: text} of the generated blocks that a README has."""
    text = path.read_text(encoding="utf-8")
    return {m[2]: m[0].removeprefix(m[1]).removesuffix(m[3]).rstrip() for m in BLOCK.finditer(text)}


def main() -> None:
    """Fill the blocks, or say which are stale."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="fill the blocks in both READMEs")
    parser.add_argument("--fast", action="store_true", help="all but the measured tables")
    args = parser.parse_args()
    blocks = fast_blocks() | ({} if args.fast else tables())
    for path in READMES:
        text = path.read_text(encoding="utf-8")
        new = BLOCK.sub(lambda m: f"{m[1]}{blocks[m[2]]}\n{m[3]}" if m[2] in blocks else m[0], text)
        print(f"{path.name}: {'up to date' if new == text else 'changed'}")
        if args.write:
            path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
