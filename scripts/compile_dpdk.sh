#!/bin/sh
# compile_dpdk.sh FOLDER_OR_DEB [CC] - does the dpdk plugin compile against the headers of another DPDK?
#
# FOLDER has them somewhere below it (an unpacked package, an install prefix); DEB is a libdpdk-dev package, which is unpacked for
# the while, not installed. Nothing is linked or run: every file is looked through as strictly as when it is built. Exits 1 if one
# does not compile, 2 if there are no headers. By hand; docs/dpdk.md says when.
set -eu
[ $# -ge 1 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
from=$1 compiler=${2:-${CC:-cc}}
command -v "$compiler" >/dev/null || { echo "compile_dpdk: there is no compiler $compiler here" >&2; exit 2; }
root=$(CDPATH= cd "$(dirname "$0")/.." && pwd)
unpacked=
trap '[ -z "$unpacked" ] || rm -rf "$unpacked"' EXIT
trap 'exit 1' HUP INT TERM

if [ -f "$from" ]; then
  unpacked=$(mktemp -d)
  dpkg-deb -x "$from" "$unpacked" || exit 2
  from=$unpacked
fi
[ -d "$from" ] || { echo "compile_dpdk: $from is neither a folder nor a package" >&2; exit 2; }

# Where rte_ethdev.h lies, and where what was chosen for this machine does: two folders with Debian.
include=
for name in rte_ethdev.h rte_build_config.h; do
  found=$(find "$from" -name "$name" -print | head -n 1)
  [ -n "$found" ] || { echo "compile_dpdk: no $name below $1: that is not libdpdk-dev" >&2; exit 2; }
  include="$include -isystem $(dirname "$found")"
done
config=$found
version() { sed -n "s/^#define RTE_VER_$1 \([0-9]*\).*/\1/p" "$config"; }
version="$(version YEAR).$(printf %02d "$(version MONTH)").$(version MINOR)"

# The processor that its inline functions need, as it says itself.
pc=$(find "$from" -name libdpdk.pc -print | head -n 1)
flags="-include rte_config.h -march=native"
if [ -n "$pc" ]; then
  flags=
  for word in $(sed -n 's/^Cflags: *//p' "$pc"); do
    case $word in -I*) ;; *) flags="$flags $word" ;; esac
  done
fi

cd "$root"
count=0 failed=0
for file in native/plugins/dpdk/*.c native/plugins/common/*.c native/ether/*.c; do
  count=$((count + 1))
  # shellcheck disable=SC2086 # lists of words
  "$compiler" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -fsyntax-only -Inative -Inative/include $include $flags "$file" ||
    { failed=$((failed + 1)); echo "compile_dpdk: $file does not compile against DPDK $version" >&2; }
done
echo "DPDK $version, $("$compiler" --version | head -n 1): $((count - failed)) of $count files compile"
[ "$failed" = 0 ]
