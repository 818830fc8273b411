"""Fixtures of the tests in a guest: one stated reason where there can be none."""
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import guestlab


@pytest.fixture
def guest():
    reason = guestlab.unavailable()
    if reason:
        pytest.skip(reason)
    return guestlab
