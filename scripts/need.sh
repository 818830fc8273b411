#!/bin/sh
# need.sh WHAT... - makes sure that what a make target needs is on this machine.
#
# WHAT is any of: build test fuzz dpdk verbs rdma pyverbs guest testpmd. Each need is tested by what it does (a header that compiles, a module that
# imports), not by the name of a package, so that compilers and Pythons from elsewhere count too. What is missing is installed with
# apt when we may (root, or sudo without a password); else the one line to run is printed and we exit 1.
set -eu
python=${PYTHON:-python3}
missing=""
add() { case " $missing " in *" $1 "*) ;; *) missing="$missing $1" ;; esac; }

compiles() { # compiles COMPILER FLAGS... < source
  compiler=$1; shift
  command -v "$compiler" >/dev/null 2>&1 && "$compiler" -x c - -o /dev/null "$@" >/dev/null 2>&1
}

need_build() {
  echo 'int main(void) { return 0; }' | compiles "${CC:-cc}" || add build-essential
  if ! command -v "$python" >/dev/null 2>&1; then
    add python3; add python3-venv; add python3-dev
    return
  fi
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "tailbound needs Python 3.10 or newer, and $python is $("$python" -V 2>&1)." >&2
    echo "Run: make PYTHON=/path/to/a/newer/python3" >&2
    exit 1
  fi
  "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 || add python3-venv
  "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || add python3-dev
}

need_test() {
  printf '%s\n' '#include <stdarg.h>' '#include <stddef.h>' '#include <stdint.h>' '#include <setjmp.h>' '#include <cmocka.h>' \
    'int main(void) { return 0; }' | compiles "${CC:-cc}" -lcmocka || add libcmocka-dev
}

need_dpdk() { # any version that pkg-config finds
  command -v pkg-config >/dev/null 2>&1 || add pkg-config
  # shellcheck disable=SC2046 # words
  { command -v pkg-config >/dev/null 2>&1 && printf '%s\n' '#include <rte_ethdev.h>' 'int main(void) { return 0; }' |
    compiles "${CC:-cc}" $(pkg-config --cflags --libs libdpdk 2>/dev/null); } || add libdpdk-dev
}

need_verbs() {
  command -v pkg-config >/dev/null 2>&1 || add pkg-config
  printf '%s\n' '#include <infiniband/verbs.h>' 'int main(void) { return !ibv_get_device_list(0); }' |
    compiles "${CC:-cc}" -libverbs || add libibverbs-dev
}

need_rdma() { # what tests in a guest with RDMA devices run: the providers, and the tool that makes soft-RoCE devices
  ls /usr/lib/*/libibverbs/librxe-*.so >/dev/null 2>&1 || add ibverbs-providers
  PATH=$PATH:/usr/sbin:/sbin
  command -v rdma >/dev/null 2>&1 || add iproute2
}

need_pyverbs() { # Debian's: another implementation of what our link speaks
  ls /usr/lib/python3/dist-packages/pyverbs/device.*.so >/dev/null 2>&1 || add python3-pyverbs
}

need_fuzz() {
  printf '%s\n' '#include <stddef.h>' '#include <stdint.h>' \
    'int LLVMFuzzerTestOneInput(const uint8_t *d, size_t n) { (void)d; (void)n; return 0; }' |
    compiles "${CLANG:-clang}" -fsanitize=fuzzer,address || { add clang; add "$(fuzzer_runtime)"; }
}

fuzzer_runtime() { # Debian keeps libFuzzer beside clang, in a package that carries the version
  version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\).*/\1/p' | head -n 1)
  echo "libclang-rt-${version:-14}-dev"
}

need_guest() { # tests/guest: a machine by emulation, and what its kernel is unpacked with
  PATH=$PATH:/usr/sbin:/sbin
  command -v qemu-system-x86_64 >/dev/null 2>&1 || add qemu-system-x86
  command -v modprobe >/dev/null 2>&1 || add kmod
  command -v xz >/dev/null 2>&1 || add xz-utils
  # an initramfs holds no libraries, and one of Debian's two needs some
  { command -v busybox && ! ldd "$(command -v busybox)"; } >/dev/null 2>&1 || add busybox-static
  { command -v ip && command -v tc; } >/dev/null 2>&1 || add iproute2
}

need_testpmd() { # DPDK's own forwarder: what shows that a device works without us
  command -v dpdk-testpmd >/dev/null 2>&1 || add dpdk-dev
}

check() { missing=""; for what in "$@"; do "need_$what"; done; }

check "$@"
[ -z "$missing" ] && exit 0

if ! command -v apt-get >/dev/null 2>&1; then
  echo "missing on this machine (Debian's names):$missing" >&2
  echo "There is no apt-get here: install them with the system's own package manager, then run make again." >&2
  exit 1
fi
sudo=""
if [ "$(id -u)" != 0 ]; then
  sudo="sudo"
  if ! sudo -n true >/dev/null 2>&1; then
    echo "missing on this machine:$missing" >&2
    echo "Run: sudo apt-get update && sudo apt-get install -y$missing" >&2
    exit 1
  fi
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # both are lists of words
{ $sudo apt-get update -qq && $sudo apt-get install -y -qq --no-install-recommends $missing; } >/dev/null || {
  echo "apt could not install them. Run: ${sudo:+sudo }apt-get update && ${sudo:+sudo }apt-get install -y$missing" >&2
  exit 1
}
installed=$missing
check "$@"
if [ -n "$missing" ]; then
  echo "installed$installed, yet still missing:$missing (PYTHON=$python CC=${CC:-cc})" >&2
  exit 1
fi
