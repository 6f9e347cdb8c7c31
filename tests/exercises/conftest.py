"""The checks turn knobs; each gets the lesson as it stands in the file."""

import pytest
import s06_context_compact as s06
from fakes import SHIPPED

FILE = {name: getattr(s06, name) for name in [*SHIPPED, "SUMMARY_PROMPT"]}  # before any test


@pytest.fixture
def agent(agent):
    before = dict(vars(agent))
    vars(agent).update(FILE)
    yield agent
    vars(agent).update(before)
