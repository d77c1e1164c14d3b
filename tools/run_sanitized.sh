#!/bin/sh
# Builds the preset asan or tsan and runs tests under it. A finding in C++ ends the run with a report and a status that is
# not 0.
#
#   tools/run_sanitized.sh asan|tsan [pytest arguments]
#
# asan: AddressSanitizer and UndefinedBehaviorSanitizer over everything that runs in the tests' own process.
# tsan: ThreadSanitizer over what runs several threads. Hypothesis makes fewer examples (EXPERTREE_EXAMPLES).
# Needs gcc's sanitizer libraries. The interpreter is not instrumented: they are preloaded.
set -eu
cd "$(dirname "$0")/.."

kind=${1:-}
case $kind in
  asan | tsan) shift ;;
  *) echo "run_sanitized: say asan or tsan" >&2; exit 2 ;;
esac
python=${PYTHON:-python}
build=build/$kind

cmake --preset "$kind" -DPython_EXECUTABLE="$(command -v "$python")" >/dev/null
cmake --build "$build" --target _core

. tools/sanitizer_library.sh

# libstdc++ comes before Python loads it, so that the sanitizer finds the functions that throw exceptions.
export EXPERTREE_EXAMPLES=${EXPERTREE_EXAMPLES:-15}
if [ "$kind" = asan ]; then
  export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1:handle_segv=1
  export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
  preload="$(library libasan.so) $(library libstdc++.so)"
  # The tests that run C++ in their own process; text, command line and tools are Python.
  if [ $# -eq 0 ]; then
    set -- -q tests/isa tests/equivalence tests/golden/test_conformance.py
    for name in async_reader bad_models cache_policies canonical_math dequantize fuzz_corpus_gguf gguf_cases \
      gguf_reader inspect moe_cases pager random sampler sampler_exactness session thread_pool; do
      set -- "$@" "tests/unit/test_$name.py"
    done
  fi
  LD_PRELOAD=$preload exec "$python" tools/test_build.py "$build" -p no:cacheprovider --capture=sys "$@"
fi

export TSAN_OPTIONS=halt_on_error=1:exitcode=66
export OPENBLAS_NUM_THREADS=1  # numpy's own threads are not instrumented, and would be taken for racing
[ $# -gt 0 ] || set -- -q tests/unit/test_thread_pool.py tests/unit/test_session.py tests/unit/test_moe_cases.py \
  tests/unit/test_async_reader.py tests/unit/test_pager.py tests/equivalence
# Without random addresses: GCC 12's ThreadSanitizer knows few memory layouts.
LD_PRELOAD="$(library libtsan.so) $(library libstdc++.so)" exec setarch "$(uname -m)" -R \
  "$python" tools/test_build.py "$build" -p no:cacheprovider --capture=sys "$@"
