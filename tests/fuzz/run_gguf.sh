#!/bin/sh
# Fuzzes the GGUF reader for SECONDS (60) on one core, from the kept corpus. Findings go to build/fuzz/ as crash-*,
# new inputs to build/fuzz/gguf/. Afterwards: tests/fuzz/run_gguf.sh --minimise writes the smallest set of inputs
# with the same coverage back to tests/fuzz/corpus/gguf/. Needs clang with libFuzzer (CLANGXX, clang++-14).
set -eu
cd "$(dirname "$0")/../.."
out=build/fuzz
corpus=tests/fuzz/corpus/gguf
mkdir -p "$out/gguf"
"${CLANGXX:-clang++-14}" -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -I. \
  tests/fuzz/fuzz_gguf.cpp cpp/io/file.cpp cpp/io/mapped_file.cpp cpp/io/printable.cpp cpp/io/gguf_*.cpp \
  cpp/base/error.cpp cpp/tensor/dtype.cpp -o "$out/fuzz_gguf"
if [ "${1:-60}" = --minimise ]; then
  rm -rf "$out/minimised"
  mkdir "$out/minimised"
  "$out/fuzz_gguf" -merge=1 -max_len=4096 "$out/minimised" "$corpus" "$out/gguf"
  find "$corpus" -type f ! -name 'seed_*' -delete
  cp "$out"/minimised/* "$corpus"
  exit 0
fi
# malloc_limit_mb: no allocation may be out of proportion to a file of 4 KiB (case G8).
nice -n 19 "$out/fuzz_gguf" -max_total_time="${1:-60}" -max_len=4096 -timeout=5 -malloc_limit_mb=8 -rss_limit_mb=1024 \
  -dict=tests/fuzz/gguf.dict -artifact_prefix="$out/" -print_final_stats=1 "$out/gguf" "$corpus"
