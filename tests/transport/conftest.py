"""Simulated worlds for tests that need a clean network."""

import logging

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


@pytest.fixture(scope="module")
def quiet():
    """The ranks warn of what a test's networks do to them, thousands of times."""
    logger = logging.getLogger("tailbound")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)
