"""Simulated worlds for tests that need a clean network."""

import pytest
import tailbound as tb

CLEAN = {"delay": "20us", "rate": "10G"}


@pytest.fixture
def world():
    """world(n, **net): a simulated world, closed at the end."""
    made = []

    def make(n, **net):
        made.append(tb.simulate(n, **{**CLEAN, **net}))
        return made[-1]

    yield make
    for one in made:
        one.close()
