#!/bin/sh
# Shows on another machine that the engine gives the same bits on 64-bit Arm: compiles it, looks at what the kernel
# objects export, and runs kernel_selftest and model_hash on an emulated Cortex-A53 (NEON) and Neoverse N1 (dot products
# as well).
#
#   tools/check_arm.sh [BUILD_DIR [NATIVE_BUILD_DIR]]    defaults: build/arm, where it compiles, and build/dev
#
# ARM_CXX names the cross compiler; default aarch64-linux-gnu-g++. The programs in NATIVE_BUILD_DIR, if they are there,
# must give the same hashes on this machine. Exit status 0 when all agree or when the compiler or qemu-user is not
# installed (says so), 1 otherwise.
set -u
cd "$(dirname "$0")/.."

build_dir=${1:-build/arm}
compiler=${ARM_CXX:-aarch64-linux-gnu-g++}
native_dir=${2:-build/dev}
models=$(for name in qwen3moe gpt-oss deepseek2 qwen3next quant-Q4_K quant-Q6_K quant-Q8_0 quant-IQ3_S; do
  echo "tests/conformance/$name.gguf"
done)
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
cmake --build "$build_dir" --target kernel_selftest model_hash --parallel >"$log" 2>&1 ||
  fail "it does not compile for Arm"
: >"$log"
NM=${NM:-aarch64-linux-gnu-nm} python3 tools/check_symbols.py "$build_dir" 2>"$log" ||
  fail "kernel objects export what they should not"

hash=
lines=
if [ -x "$native_dir/kernel_selftest" ] && [ -x "$native_dir/model_hash" ]; then
  hash=$("$native_dir/kernel_selftest" 2>"$log" | sed -n 's/^scalar //p')
  lines=$("$native_dir/model_hash" $models 2>"$log") || fail "instruction sets differ on this machine: $lines"
  echo "this machine: scalar $hash"
else
  echo "this machine: not compared, for $native_dir has no kernel_selftest and model_hash"
fi

# emulate CPU PROGRAM [ARGUMENT...]: its output in $found
emulate() {
  cpu=$1
  program=$2
  shift 2
  found=$(qemu-aarch64 -cpu "$cpu" "$build_dir/$program" "$@" 2>"$log")
  status=$?
  # A shell reports a program ended by signal N as 128 + N; 4 is an illegal instruction.
  [ $status -ne 132 ] || fail "illegal instruction on $cpu: $program, after: $found"
  [ $status -eq 0 ] || fail "exit status $status on $cpu: $program: $found"
}

# expect CPU LINES: that they were found
expect() {
  [ "$found" = "$2" ] || fail "on $1 expected
$2
and found
$found"
}

# emulated CPU TABLES: the tables that must be found, and no others, all with one hash; models as on the other CPUs
emulated() {
  emulate "$1" kernel_selftest
  hash=${hash:-$(echo "$found" | sed -n 's/^scalar //p')}
  expect "$1" "$(for table in $2; do echo "$table $hash"; done)"
  emulate "$1" model_hash $models
  lines=${lines:-$found}
  expect "$1" "$lines"
  echo "$1: $2 $hash, and the models"
}

emulated cortex-a53 "scalar neon"
emulated neoverse-n1 "scalar neon dotprod"
