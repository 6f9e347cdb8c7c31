"""The checks turn knobs; each gets the lesson as it stands in the file."""

import pytest


@pytest.fixture
def agent(agent):
    before = dict(vars(agent))
    yield agent
    vars(agent).update(before)
