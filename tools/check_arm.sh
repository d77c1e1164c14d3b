#!/bin/sh
# Shows on another machine that Arm kernels give the same bits: compiles the engine for 64-bit Arm, looks at what the
# kernel objects export, and runs kernel_selftest on an emulated Cortex-A53 (NEON) and Neoverse N1 (dot products, too).
#
#   tools/check_arm.sh [BUILD_DIR [NATIVE_BUILD_DIR]]    defaults: build/arm, where it compiles, and build/dev
#
# ARM_CXX names the cross compiler; default aarch64-linux-gnu-g++. If NATIVE_BUILD_DIR has a kernel_selftest, the scalar
# kernels of both machines must give the same hash. Exit status 0 when all agree or when the compiler or qemu-user is not
# installed (says so), 1 otherwise.
set -u
cd "$(dirname "$0")/.."

build_dir=${1:-build/arm}
compiler=${ARM_CXX:-aarch64-linux-gnu-g++}
native=${2:-build/dev}/kernel_selftest
log=$(mktemp)
trap 'rm -f "$log"' EXIT

skip() {
  echo "check_arm: SKIPPED: $1"
  exit 0
}

fail() {
  echo "check_arm: FAILED: $1" >&2
  cat "$log" >&2
  exit 1
}

command -v "$compiler" >/dev/null 2>&1 || skip "no $compiler (Debian, Ubuntu: apt install g++-aarch64-linux-gnu)"
command -v qemu-aarch64 >/dev/null 2>&1 || skip "qemu-aarch64 is not installed (Debian, Ubuntu: apt install qemu-user)"
command -v cmake >/dev/null 2>&1 || skip "cmake is not installed (it is in .venv/bin after make)"

# Static: the emulator then needs no Arm libraries.
cmake -S . -B "$build_dir" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER="$compiler" \
  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_EXE_LINKER_FLAGS=-static -DEXPERTREE_PYTHON=OFF -DEXPERTREE_CUDA=OFF \
  -DEXPERTREE_TOOLS=ON >"$log" 2>&1 || fail "cmake cannot configure a build for Arm"
cmake --build "$build_dir" --target kernel_selftest --parallel >"$log" 2>&1 || fail "it does not compile for Arm"
: >"$log"
NM=$(echo "$compiler" | sed 's/[^-]*$/nm/') python3 tools/check_symbols.py "$build_dir" 2>"$log" ||
  fail "kernel objects export what they should not"

hash=
[ ! -x "$native" ] || hash=$("$native" 2>"$log" | sed -n 's/^scalar //p')
[ -n "$hash" ] && echo "this machine: scalar $hash" || echo "this machine: not compared, for there is no $native"

# emulated CPU TABLES: the tables that must be found, and no others, all with one hash
emulated() {
  found=$(qemu-aarch64 -cpu "$1" "$build_dir/kernel_selftest" 2>"$log")
  status=$?
  # A shell reports a program ended by signal N as 128 + N; 4 is an illegal instruction.
  [ $status -ne 132 ] || fail "illegal instruction on $1 after: $found"
  [ $status -eq 0 ] || fail "exit status $status on $1: $found"
  hash=${hash:-$(echo "$found" | sed -n 's/^scalar //p')}
  expected=$(for table in $2; do echo "$table $hash"; done)
  [ "$found" = "$expected" ] || fail "on $1 expected
$expected
and found
$found"
  echo "$1: $2 $hash"
}

emulated cortex-a53 "scalar neon"
emulated neoverse-n1 "scalar neon dotprod"
