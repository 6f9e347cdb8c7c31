"""The exercises can be solved: each check fails before, and passes with the solution pasted in.

The working tree is not touched: a fresh copy of the lesson is loaded and the solution run in it.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from fakes import SHIPPED

FOLDER = Path(__file__).with_name("exercises")
sys.path.insert(0, str(FOLDER))
CHECKS = sorted(FOLDER.glob("check_*.py"))
KNOBS_ONLY = ("1", "2", "3", "6")  # the exercises that ask for a knob, not for code


def module(path, name):
    """A file as a new module."""
    spec = importlib.util.spec_from_file_location(name, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def lesson(agent, solution=None):
    """A fresh copy of the lesson with the shipped knobs, in the folder of this test."""
    import exercise

    copy = module(agent.__file__, "lesson_copy")
    vars(copy).update(SHIPPED, SUMMARY_PROMPT=exercise.PROMPT, STATE=copy.State(Counter()))
    vars(copy).update(WORKDIR=agent.WORKDIR, TRANSCRIPT_DIR=agent.TRANSCRIPT_DIR)
    if solution:
        exec(compile(solution.read_text(encoding="utf-8"), str(solution), "exec"), vars(copy))
    return copy


def run(check, agent):
    """Run all tests of a check; the first failure as text, or ""."""
    checks = module(check, check.stem)
    for name in [name for name in vars(checks) if name.startswith("test_")]:
        try:
            getattr(checks, name)(agent)
        except (AssertionError, pytest.fail.Exception) as failure:
            return str(failure) or "failed"
    return ""


@pytest.mark.parametrize("check", CHECKS, ids=lambda path: path.stem)
def test_the_check_fails_before_the_solution_and_passes_with_it(agent, check):
    if not run(check, lesson(agent)):
        assert check.stem.split("_")[1] not in KNOBS_ONLY
        pytest.skip("solved in this working copy")
    solution = FOLDER / "solutions" / f"{check.stem.replace('check', 'solution')}.py"
    assert run(check, lesson(agent, solution)) == ""


@pytest.mark.parametrize(
    "dropped, goes_wrong",
    [("What was accomplished.", True), ("Current state.", True), ("Key decisions made.", False)],
)
def test_which_dimension_the_practice_model_misses(agent, dropped, goes_wrong):
    """Exercise 3, all three of them: it makes no decision whose loss would show."""
    poorer = lesson(agent)
    poorer.SUMMARY_PROMPT = poorer.SUMMARY_PROMPT.replace(dropped, "")
    assert (run(FOLDER / "check_3_dimensions.py", poorer) == "") == goes_wrong


def test_a_knob_turned_in_the_file_reaches_its_check(tmp_path):
    """As a student does it: edit the lesson, run the check."""
    for name in ("agents", "tests/exercises", "tests/conftest.py", "tests/fakes.py"):
        source, target = FOLDER.parent.parent / name, tmp_path / name
        target.parent.mkdir(exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = agents tests\n")
    file = tmp_path / "agents" / "s06_context_compact.py"
    file.write_text(re.sub("(?m)^KEEP_RECENT = .*", "KEEP_RECENT = 0", file.read_text()))
    check = [sys.executable, "-m", "pytest", "-q", "tests/exercises/check_1_keep_recent.py"]
    env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    child = subprocess.run(check, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert child.returncode == 0, child.stdout


def test_the_checks_are_not_collected_with_the_suite():
    assert not any(path.name.startswith("test_") for path in FOLDER.rglob("*.py"))
