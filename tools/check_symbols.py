#!/usr/bin/env python3
"""Checks what the object files of cpp/kernels/ISA export. No output and exit status 0 when all is well.

    python tools/check_symbols.py BUILD_DIR

An object built with -mavx512f must not export a weak symbol, such as an inline function or a template of a shared
header: the linker keeps one copy of it for the whole program, perhaps this one, and older CPUs then crash in code that
has nothing to do with kernels. So a weak or unique symbol is an error, and so is any other symbol that is neither in
the namespace of its instruction set nor its table (`avx2_kernels()`). scalar is built with the flags of everything
else: its weak symbols, which a build without optimisation has, do no harm and are let through.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ISAS = ("scalar", "avx2", "avx512", "neon")
WEAK = {"W": "weak", "V": "weak", "u": "unique"}
PLAIN_ISAS = {"scalar"}  # built without flags of their own


def object_files(build_dir):
    """(isa, file) for the objects of cpp/kernels/ISA, wherever the generator puts them."""
    for file in sorted(Path(build_dir).rglob("*.o")):
        folder = file.parent.parts[-3:]
        if folder[:2] == ("cpp", "kernels") and folder[2:] and folder[2] in ISAS:
            yield folder[2], file


def exported(file):
    """(name, type letter) of every defined external symbol, mangled."""
    nm = os.environ.get("NM", "nm")
    run = subprocess.run([nm, "-g", "--defined-only", "-P", str(file)], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"{nm} failed: {run.stderr.strip()}")
    for line in run.stdout.splitlines():
        fields = line.split()
        if len(fields) >= 2:
            yield fields[0], fields[1]


def fault_of(isa, name, letter):
    """What is wrong with one exported symbol, or None."""
    if letter in WEAK:
        return None if isa in PLAIN_ISAS else f"{WEAK[letter]} symbol {name}: make it static, or do not use it here"
    table = f"{isa}_kernels"
    in_namespace = re.match(rf"_ZN[VKRO]*9expertree{len(isa)}{isa}\d", name)
    is_table = name == f"_ZN9expertree{len(table)}{table}Ev"
    if in_namespace or is_table:
        return None
    return f"symbol {name} is outside expertree::{isa}: make it static, or put it into the namespace"


def check(build_dir):
    """Yields "file: message" for every broken rule, and for a build with nothing to check."""
    seen = set()
    for isa, file in object_files(build_dir):
        seen.add(isa)
        for name, letter in exported(file):
            fault = fault_of(isa, name, letter)
            if fault:
                yield f"{file}: {fault}"
    for isa in ISAS:
        if isa not in seen:
            yield f"{build_dir}: no object files of cpp/kernels/{isa}; is this a CMake build folder that was built?"


def main(arguments):
    if len(arguments) != 1:
        print("usage: check_symbols.py BUILD_DIR", file=sys.stderr)
        return 2
    try:
        faults = list(check(arguments[0]))
    except (OSError, RuntimeError) as error:
        faults = [str(error)]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
