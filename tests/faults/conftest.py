"""Fixtures of the fault tests: a network laboratory per test, and one stated reason where there can be none."""
import pathlib
import sys

import pytest

_HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent.parent / "bench")]

import netlab  # noqa: E402 (the line above makes them importable)
import netlab_host  # noqa: E402


@pytest.fixture(scope="session")
def laboratory():
    reason = netlab_host.unavailable()
    if reason:
        pytest.skip(reason)
    return netlab


@pytest.fixture
def lab(laboratory):
    """lab(n, ...) builds a Lab that goes away with the test."""
    built = []

    def build(*args, **kwargs):
        built.append(laboratory.Lab(*args, **kwargs))
        return built[-1]

    yield build
    for one in built:
        one.close()
