"""Only what pyproject.toml cannot say: the extension module comes from a cffi script.

TAILBOUND_BUILD_EXT=0 leaves it out; the Makefile uses that, because it links the extension from its own objects.
"""

import os

from setuptools import setup

setup(cffi_modules=[] if os.environ.get("TAILBOUND_BUILD_EXT") == "0" else ["pybind/build.py:ffibuilder"])
