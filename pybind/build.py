"""This is cffi, not pybind11: the whole binding is generated from native/include/tailbound.h, in API (compiled) mode.

The declarations are the text between the [cdef] and [/cdef] marks of the public header, so they cannot drift from it,
and the C compiler checks them once more. All logic lives in transport/tailbound; here is only how the two are joined.

Two callers: setuptools (setup.py names `ffibuilder`; every native source is compiled into the extension), and the
Makefile (`python pybind/build.py OUT.c` writes the generated source, which is then linked with the core's own objects).
"""

import sys
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "native" / "include" / "tailbound.h"


def declarations(header: str) -> str:
    """The part of the public header that the binding sees."""
    begin, end = header.index("/* [cdef]"), header.index("/* [/cdef] */")
    return header[begin:end]


def sources() -> list[str]:
    """Every source of the core, relative to the root as setuptools wants them."""
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("native/*/*.c"))


ffibuilder = FFI()
ffibuilder.cdef(
    declarations(HEADER.read_text())
    + """
    extern "Python" int tailbound_exchange(void *ctx, const char *tag, const void *mine, uint32_t len, void *all,
                                           uint32_t stride);
    """
)
ffibuilder.set_source(
    "tailbound._tailbound",
    '#include "tailbound.h"\n',
    sources=sources(),
    include_dirs=["native", "native/include"],
    libraries=["m", "pthread"],
    extra_compile_args=["-std=c11", "-D_GNU_SOURCE", "-O2", "-fvisibility=hidden"],
)

if __name__ == "__main__":
    ffibuilder.emit_c_code(sys.argv[1])
