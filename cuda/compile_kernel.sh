#!/bin/sh
# compile_kernel.sh REPORT COMMAND..: runs nvcc, keeps what it says in REPORT, and shows it if it fails or warns.
report=$1
shift
if ! "$@" >"$report" 2>&1; then
  cat "$report" >&2
  exit 1
fi
grep -E 'warning' "$report" >&2
exit 0
