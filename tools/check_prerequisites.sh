#!/bin/sh
# Says what is missing to build expertree, and how to get it. PYTHON: the Python to use; CXX: the compiler.
set -u

python=${PYTHON:-python3}
compiler=${CXX:-c++}

fail() {
  echo "expertree cannot be built yet: $1" >&2
  echo "  $2" >&2
  exit 1
}

command -v "$python" >/dev/null 2>&1 ||
  fail "there is no $python" "Install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3 ..."

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  fail "$("$python" --version 2>&1) is too old" "Python 3.10 or newer is needed; name one: make PYTHON=python3.12 ..."

"$python" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
  fail "$python cannot make virtual environments (venv or ensurepip is missing)" \
    "On Debian and Ubuntu: sudo apt install python3-venv"

"$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
  fail "the headers of $python (Python.h) are missing" \
    "On Debian and Ubuntu: sudo apt install python3-dev; on Fedora: sudo dnf install python3-devel"

command -v "$compiler" >/dev/null 2>&1 ||
  fail "there is no C++ compiler ($compiler)" \
    "On Debian and Ubuntu: sudo apt install g++; on macOS: xcode-select --install; or name one: CXX=clang++ make ..."

printf '#include <concepts>\n#include <span>\nint main() { return std::span<int>{}.empty() ? 0 : 1; }\n' |
  "$compiler" -std=c++20 -x c++ -fsyntax-only - >/dev/null 2>&1 ||
  fail "$compiler does not compile C++20" "GCC 11, Clang 14 or newer is needed; name one: CXX=g++-12 make ..."
