#!/bin/sh
# Shows that kernels give the same bits on every CPU and that older CPUs meet no instruction they lack: runs
# kernel_selftest here, then on an emulated Nehalem (SSE4.2: only the scalar kernels) and Haswell (AVX2, no AVX-512).
#
#   tools/check_old_cpu.sh [BUILD_DIR]        a build with -DEXPERTREE_TOOLS=ON; default build/dev
#
# Exit status 0 when all agree or when qemu-user is not installed (says so), 1 on a difference, 2 without the program.
set -u

build_dir=${1:-build/dev}
selftest=$build_dir/kernel_selftest
[ -x "$selftest" ] || {
  echo "check_old_cpu: no $selftest; build it: cmake --preset dev && cmake --build build/dev --target kernel_selftest" >&2
  exit 2
}
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

fail() {
  echo "check_old_cpu: FAILED: $1" >&2
  cat "$errors" >&2
  exit 1
}

case $(uname -m) in
  x86_64 | amd64) ;;
  *) echo "check_old_cpu: SKIPPED: this check is for x86-64, and this machine is $(uname -m)"; exit 0 ;;
esac

native=$("$selftest" 2>"$errors") || fail "instruction sets differ on this CPU: $native"
scalar=$(echo "$native" | grep '^scalar ') || fail "no hash of the scalar kernels: $native"
hash=${scalar#scalar }
echo "this CPU: $(echo "$native" | cut -d ' ' -f 1 | paste -s -d ' ' -) $hash"

command -v qemu-x86_64 >/dev/null 2>&1 || {
  echo "check_old_cpu: SKIPPED on emulated CPUs: qemu-x86_64 is not installed (Debian, Ubuntu: apt install qemu-user)"
  exit 0
}

# emulated CPU EXPECTED_TABLES
emulated() {
  found=$(qemu-x86_64 -cpu "$1" "$selftest" 2>"$errors")
  status=$?
  # A shell reports a program ended by signal N as 128 + N; 4 is an illegal instruction.
  [ $status -ne 132 ] || fail "illegal instruction on $1 after: $found"
  [ $status -eq 0 ] || fail "exit status $status on $1: $found"
  expected=$(for table in $2; do echo "$table $hash"; done)
  [ "$found" = "$expected" ] || fail "on $1 expected
$expected
and found
$found"
  echo "$1: $2 $hash"
}

emulated Nehalem "scalar"
emulated Haswell "scalar avx2"
