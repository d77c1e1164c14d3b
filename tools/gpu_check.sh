#!/bin/sh
# Checks and measures expertree on this machine's GPU, unattended, in less than 12 minutes, and writes
# docs/gpu/<GPU's name>.json and .md.
#
#   tools/gpu_check.sh [--emulated] [--output PATH] [further options of tools/gpu_check/run.py]
#
# Builds for the GPU here, then: conformance hash of the emulation, tests of all kernels, models on the device (matrices,
# attention, experts) against the CPU bit by bit, compute-sanitizer's checkers where it is installed, times of copies and kernels,
# decoding and C(n) of a synthetic model with shares of its experts on the device, the selectors. Needs a Python
# environment with expertree's development tools (make test makes .venv), nvcc and a GPU.
# --emulated: the same steps with tiny sizes on the emulated device; needs a development build only.
set -eu
began=$(date +%s)
cd "$(dirname "$0")/.."
[ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ] && PYTHON=.venv/bin/python
python=${PYTHON:-python3}
PATH=$(cd "$(dirname "$(command -v "$python")")" && pwd):$PATH
export PATH

emulated=
output=
if [ "${1:-}" = --emulated ]; then emulated=yes; shift; fi
if [ "${1:-}" = --output ]; then output=$2; shift 2; fi
# Where the development build of this Python lies; pip makes it.
find_build() {
  build=$(echo build/"$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')"-*)
  [ -d "$build" ] || { echo "gpu_check: $build is not one folder; $1" >&2; exit 2; }
}

if [ -n "$emulated" ]; then
  find_build 'make test makes it'
  export EXPERTREE_DEVICE=emulated EXPERTREE_CUDA_TESTS="$PWD/$build/cuda/libexpertree_cuda_tests.so"
  [ -e "$EXPERTREE_CUDA_TESTS" ] || { echo "gpu_check: no development build; make test makes one" >&2; exit 2; }
  exec "$python" tools/gpu_check/run.py --tiny --output "${output:-build/gpu_check}" "$@"
fi

nvidia-smi -L 2>/dev/null | grep -q 'GPU 0' || { echo 'gpu_check: no NVIDIA GPU here (--emulated runs without)' >&2; exit 2; }
command -v nvcc >/dev/null || { echo 'gpu_check: no nvcc; install the CUDA toolkit (13.0 was tried)' >&2; exit 2; }
"$python" -c 'import nanobind, pytest, scikit_build_core' && command -v cmake >/dev/null && command -v ninja >/dev/null ||
  { echo "gpu_check: $python lacks development tools, or cmake and ninja are missing; make test makes .venv with them" >&2; exit 2; }
name=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 | tr ' /' '--' | tr 'A-Z' 'a-z')
echo "gpu_check: building for $name"
jobs=$(getconf _NPROCESSORS_ONLN)
export CMAKE_BUILD_PARALLEL_LEVEL=$jobs
"$python" -m pip install --quiet --no-build-isolation --editable '.[dev]' \
  --config-settings=cmake.define.EXPERTREE_CUDA=ON --config-settings=cmake.define.EXPERTREE_CUDA_TARGETS=native
find_build 'remove build/ and try again'
cmake --build "$build" --target expertree_cuda_tests_gpu >/dev/null
export EXPERTREE_CUDA_TESTS="$PWD/$build/cuda/libexpertree_cuda_tests_gpu.so"
# What is left of 12 minutes, less half a minute for the files.
exec "$python" tools/gpu_check/run.py --output "${output:-docs/gpu/$name}" \
  --seconds $((690 - $(date +%s) + began)) "$@"
