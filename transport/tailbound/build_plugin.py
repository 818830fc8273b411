"""`tailbound build-plugin NAME`: compiles a link that needs a library the core does not depend on.

One plugin for each version of that library's binary interface (libtailbound_dpdk-23.so), from the sources that came
with this package, so that wheels hold none and need none of those libraries.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError

STRICT = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")


@dataclass(frozen=True)
class Recipe:
    """How a plugin is built: what pkg-config calls its library, and what Debian does."""

    module: str
    package: str
    soname: str
    """A library of it whose soname has the number of the binary interface."""
    shared: tuple[str, ...]
    """Sources of the core that it compiles for itself, below native/."""
    programs: tuple[str, ...]
    """Sources in its folder that are programs of their own, placed beside it as tailbound_NAME-ABI_PROGRAM."""


PARTS = ("links/regions.c", "links/events.c", "plugins/common/*.c")

RECIPES = {
    "dpdk": Recipe("libdpdk", "libdpdk-dev", "librte_eal.so", ("ether/*.c", *PARTS), ("rehearse",)),
    "verbs": Recipe("libibverbs", "libibverbs-dev", "libibverbs.so", PARTS, ()),
}


def sources() -> Path:
    """The folder `native`: inside an installed package, or of the source tree this package runs from."""
    here = Path(__file__).resolve().parent
    for folder in (here / "native", here.parent.parent / "native"):
        if (folder / "plugins").is_dir():
            return folder
    raise ConfigError("this installation has no plugin sources: install tailbound from its source tree (pip install .)")


def places() -> list[Path]:
    """Where the core looks, best first: beside itself, then in the user's own folder."""
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return [Path(__file__).resolve().parent / "plugins", Path(data) / "tailbound" / "plugins"]


def _run(command: list[str], what: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise ConfigError(f"{what}: cannot run {command[0]}: {error.strerror}") from error
    if done.returncode:
        raise ConfigError(f"{what} failed: {shlex.join(command)}\n{done.stderr.strip()}")
    return done.stdout.strip()


def _flags(recipe: Recipe) -> tuple[list[str], list[str], str]:
    """Compiler's and linker's words for the library, and the number of its binary interface."""
    remedy = f"install it: apt-get install {recipe.package} pkg-config"
    if not shutil.which("pkg-config"):
        raise ConfigError(f"there is no pkg-config here, which says where {recipe.module} is; {remedy}")
    try:
        compile_words = shlex.split(_run(["pkg-config", "--cflags", recipe.module], "looking for the library"))
    except ConfigError as error:
        raise ConfigError(f"{recipe.module} is not here; {remedy}") from error
    link_words = shlex.split(_run(["pkg-config", "--libs", recipe.module], "looking for the library"))
    folder = Path(_run(["pkg-config", "--variable=libdir", recipe.module], "looking for the library"))
    number = re.search(r"\.so\.(\d+)", (folder / recipe.soname).resolve().name)
    if not number:
        raise ConfigError(f"{folder / recipe.soname} has no version in its name: is it complete? {remedy}")
    # its headers are not held to our warnings
    quiet = [word if not word.startswith("-I") else "-isystem" + word[2:] for word in compile_words]
    return quiet, link_words, number.group(1)


def _destination(asked: str | None) -> Path:
    for place in [Path(asked)] if asked else places():
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if asked:
                raise ConfigError(f"cannot make {place}: {error.strerror}; name another folder with --to") from error
            continue
        if os.access(place, os.W_OK):
            return place
    raise ConfigError(f"cannot write to {asked or ' or '.join(map(str, places()))}: name a folder with --to")


def build(name: str, to: str | None = None, compiler: str | None = None) -> Path:
    """Compiles the plugin of that name and returns its path. ConfigError names what is missing and how to get it."""
    if name not in RECIPES:
        raise ConfigError(f"there is no plugin {name!r}: {', '.join(RECIPES)}")
    recipe, native = RECIPES[name], sources()
    compile_words, link_words, abi = _flags(recipe)
    folder = native / "plugins" / name
    programs = [folder / f"{program}.c" for program in recipe.programs]
    files = [path for path in sorted(folder.glob("*.c")) if path not in programs]
    files += [path for pattern in recipe.shared for path in sorted(native.glob(pattern))]
    place = _destination(to)
    cc = [*shlex.split(compiler or os.environ.get("CC") or "cc"), *STRICT, f"-I{native}", *compile_words]
    end = ["-Wl,--as-needed", *link_words, "-lpthread"]
    target = place / f"libtailbound_{name}-{abi}.so"
    _compile([*cc, "-shared", *map(str, files)], end, target)
    for program in programs:
        _compile([*cc, str(program)], end, place / f"tailbound_{name}-{abi}_{program.stem}")
    return target


def _compile(begin: list[str], end: list[str], target: Path) -> None:
    """To a name of its own first: a running process may have the old file mapped."""
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        _run([*begin, "-o", str(fresh), *end], f"building {target.name}")
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def main(name: str, to: str | None) -> int:
    """Builds it, says where it is, and whether the core now finds it."""
    print(build(name, to))
    if to is None:
        from .config import Config
        from .links_cmd import about

        there, sentence = about(Config(), name)
        print(f"link {name}: {sentence}", file=sys.stdout if there else sys.stderr)
        return 0 if there else 1
    return 0
