"""Only what pyproject.toml cannot say: the extension module comes from a cffi script, and the sources of plugins travel
in the package, for `tailbound build-plugin`.

TAILBOUND_BUILD_EXT=0 leaves the extension out; the Makefile uses that, because it links it from its own objects.
"""

import os
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PLUGIN_SOURCES = (
    "plugins/*/*.[ch]", "ether/*.[ch]", "links/link.h", "links/plugin.h", "links/peer_table.h", "links/peer_addr.h",
    "links/regions.[ch]", "links/events.[ch]"
)


class BuildWithPluginSources(build_py):
    """Copies native/ as far as plugins are made of it into tailbound/native."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # they are found in the source tree
        native, to = Path("native"), Path(self.build_lib, "tailbound", "native")
        for pattern in PLUGIN_SOURCES:
            for source in sorted(native.glob(pattern)):
                target = to / source.relative_to(native)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)


setup(
    cffi_modules=[] if os.environ.get("TAILBOUND_BUILD_EXT") == "0" else ["pybind/build.py:ffibuilder"],
    cmdclass={"build_py": BuildWithPluginSources},
)
