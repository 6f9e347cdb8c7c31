"""Both READMEs show what the program prints, and name only what is there.

If a block is stale: python tests/readme.py --write
"""

import functools
import itertools
import re

import pytest
import readme

BOTH = pytest.mark.parametrize("path", readme.READMES, ids=lambda path: path.name)
MEASURED = "Layer 2 alone"  # one row is enough here; --write measures all


@functools.lru_cache
def made():
    return readme.fast_blocks()


def cells(lines):
    """The cells of a Markdown table's lines."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def knobs(path):
    """The rows of a README's table of knobs."""
    lines = path.read_text(encoding="utf-8").splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("| `KEEP_RECENT` |"))
    return cells(itertools.takewhile(lambda line: line.startswith("|"), lines[first:]))


@BOTH
@pytest.mark.parametrize("name", ["help", "layer1", "results", "session", "message", "sawtooth"])
def test_a_shown_output_is_what_the_program_prints(agent, path, name):
    assert readme.shown(path)[name] == made()[name]


@BOTH
def test_the_text_picture_is_what_the_script_prints(agent, path):
    assert readme.shown(path)["picture"] == made()["picture"]


def test_the_measured_row_is_measured_again(agent):
    sums = readme.measured([MEASURED])[MEASURED]
    line = list(readme.compare.cells(MEASURED, sums))
    for path in readme.READMES:
        blocks = readme.shown(path)
        assert line in cells(blocks["compare"].splitlines())
        assert readme.cost_line(MEASURED, sums) in blocks["cost"].splitlines()


def test_both_show_the_same_measurements():
    one, two = map(readme.shown, readme.READMES)
    assert (one["compare"], one["cost"]) == (two["compare"], two["cost"])


@BOTH
def test_the_prose_quotes_the_tables(path):
    text = path.read_text(encoding="utf-8")
    blocks = {name: cells(table.splitlines()) for name, table in readme.shown(path).items()}
    needed = {row[0]: row[-1].replace("%", " %") for row in blocks["cost"]}
    shipped, cleared = readme.COST["both layers, as shipped"], readme.COST["PRESERVE = set()"]
    assert f" {needed[shipped]} " in text
    assert f" {needed[cleared]}" in text
    none = next(row for row in blocks["compare"] if row[0] == "no compaction")
    assert [none[1], none[4], none[7]] == ["285", "34.51M", "34"]  # in "Why contexts fill"


def test_the_knobs_are_described_as_the_lesson_describes_them():
    """Names and comments; the value is the student's."""
    described = [(name.strip("`"), comment) for name, _, comment in knobs(readme.READMES[0])]
    assert described == [(name, comment) for name, _, comment in readme.knobs()]


def test_the_chinese_readme_has_the_same_knobs():
    one, two = ([row[0] for row in knobs(path)] for path in readme.READMES)
    assert one == two


@BOTH
def test_every_link_leads_somewhere(path):
    text = path.read_text(encoding="utf-8")
    links = re.findall(r'\]\(([^)\s]+)\)|src="([^"]+)"', text)
    local = [a or b for a, b in links if "://" not in (a or b)]
    anchors = {
        re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-")
        for head in re.findall(r"(?m)^#+ (.+)$", text)
    }
    assert local
    for link in local:
        if link.startswith("#"):
            assert link[1:] in anchors, link
        else:
            assert (path.parent / link).exists(), link


@BOTH
def test_its_two_commands_are_those_that_the_ci_runs(path):
    commands = re.findall(r"(?m)^ {4}(python3 -m venv .*)$", path.read_text(encoding="utf-8"))
    demo, tests = commands
    ci = (readme.ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert demo.endswith("python agents/s06_context_compact.py --demo")
    assert tests.endswith("python -m pytest -q")
    assert "-m pytest -q\n" in ci
    assert "'.[test]'" in tests
    assert "'.[test]'" in ci


@BOTH
def test_every_exercise_is_named_with_its_check_and_its_solution(path):
    text = path.read_text(encoding="utf-8")
    folder = readme.ROOT / "tests" / "exercises"
    for file in [*folder.glob("check_*.py"), *folder.glob("solutions/*.py")]:
        assert file.relative_to(readme.ROOT).as_posix() in text


@BOTH
def test_the_endpoints_are_those_of_the_example_file(path):
    text = path.read_text(encoding="utf-8")
    example = (readme.ROOT / ".env.example").read_text(encoding="utf-8")
    for name in ("ANTHROPIC_BASE_URL", "MODEL_ID"):
        for value in re.findall(rf"(?m)^# {name}=(.+)$", example):
            assert f"`{value}`" in text
