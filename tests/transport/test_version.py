"""One version, in three places: the package's, the core's, and what is installed."""

import re
from importlib.metadata import version
from pathlib import Path

import tailbound as tb

ROOT = Path(__file__).resolve().parent.parent.parent


def test_version__of_package_and_core_agree():
    declared = re.search(r'^version = "([^"]+)"$', (ROOT / "pyproject.toml").read_text(), re.M).group(1)
    compiled = re.search(r'tb_version\(void\) \{ return "([^"]+)";', (ROOT / "native/engine/comm.c").read_text()).group(
        1
    )
    assert compiled == declared
    assert tb.__version__ == declared, "build again: the compiled core is of another version"
    assert version("tailbound") == declared, "install again"
