#!/bin/sh
# Runs tests of CUDA kernels on the emulated device under a sanitizer. A finding ends the run with a report and a status
# that is not 0.
#
#   tools/run_emulated.sh asan|tsan [pytest arguments]      default: the tests of kernels (those that take `order`)
#
# asan: out-of-bounds and misaligned accesses, in shared memory too. tsan: races, between threads of a block, blocks,
# streams and the host. Takes a development build (make test) and gcc's sanitizer libraries. The interpreter is not
# instrumented: they are preloaded.
set -eu
cd "$(dirname "$0")/.."

kind=${1:-}
case $kind in
  asan | tsan) shift ;;
  *) echo "run_emulated: say asan or tsan" >&2; exit 2 ;;
esac
python=${PYTHON:-python}
PATH=$(dirname "$(command -v "$python")"):$PATH
build=$(echo build/"$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')"-*)
[ -e "$build/CMakeCache.txt" ] || { echo "run_emulated: no development build; make test makes one" >&2; exit 2; }

. tools/sanitizer_library.sh
preload="$(library lib$kind.so) $(library libstdc++.so)"
cmake --build "$build" --target "expertree_cuda_tests_$kind" >&2
export EXPERTREE_CUDA_TESTS="$PWD/$build/cuda/libexpertree_cuda_tests_$kind.so"
export EXPERTREE_EXAMPLES=${EXPERTREE_EXAMPLES:-5}
[ $# -gt 0 ] || set -- -q tests/cuda/test_products.py tests/cuda/test_rows.py tests/cuda/test_experts.py \
  tests/cuda/test_attention.py tests/cuda/test_top_k.py tests/cuda/test_emulation.py

export OPENBLAS_NUM_THREADS=1  # numpy's own threads are not instrumented, and would be taken for racing
if [ "$kind" = asan ]; then
  export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
  LD_PRELOAD=$preload exec "$python" -m pytest -p no:cacheprovider --capture=sys "$@"
fi
export TSAN_OPTIONS=halt_on_error=1:exitcode=66
# Without random addresses: GCC 12's ThreadSanitizer knows few memory layouts.
LD_PRELOAD=$preload exec setarch "$(uname -m)" -R "$python" -m pytest -p no:cacheprovider --capture=sys "$@"
