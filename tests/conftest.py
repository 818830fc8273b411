"""Shared by all Python tests: a clean environment, and helpers to run code in processes of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What launchers set: a test that runs inside a job, or in CI inside one, must not see it.
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LAUNCHER_PREFIXES = ("TAILBOUND_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_", "TORCHELASTIC_")


def is_launcher_variable(name):
    return name in LAUNCHER_VARIABLES or name.startswith(LAUNCHER_PREFIXES)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """No launcher's variables; a test sets those it is about."""
    for name in list(os.environ):
        if is_launcher_variable(name):
            monkeypatch.delenv(name)


@pytest.fixture
def run_python(tmp_path):
    """run_python(code, *arguments, env={}, timeout=60): a fresh interpreter; gives the CompletedProcess with text."""

    def run(code, *arguments, env=None, timeout=60, command=None):
        script = tmp_path / "script.py"
        script.write_text(code)
        clean = {name: value for name, value in os.environ.items() if not is_launcher_variable(name)}
        return subprocess.run(
            [*(command or [sys.executable]), str(script), *arguments],
            env={**clean, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run
