#!/usr/bin/env python3
"""Compiles the CUDA backend for every target and checks what came out. No GPU is needed.

    python tools/check_cuda_build.py [--build FOLDER] [--targets LIST] [--jobs N]

Builds libexpertree_cuda.so, the tests' library for a device and the program of all calls (in build/cuda), and then:
  - no kernel spills more than SPILL_GATE bytes on any target (ptxas);
  - product kernels hold the instructions that they are for (SASS): IDP in the dp4a path, IMMA in the mma path, and
    16-byte loads of weights in both;
  - without a driver, every call of the CUDA runtime gives error 35 and nothing ends the process; the library loads.
Says why, and ends with status 0, where there is no nvcc.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from kernel_reports import cuobjdump, instructions_of, ptxas_reports

ROOT = Path(__file__).resolve().parent.parent
SPILL_GATE = 64  # bytes; more would be seen in the kernel's speed
SASS_TARGETS = (75, 86, 120)
NO_DRIVER = 35
# Kernel, what one of its instructions must be, on targets from .. to.
EXPECTED = [
    ("product_dp4a", r"IDP\.4A", 75, 999),
    ("product_dp4a", r"LDG\S*\.128", 75, 999),
    ("product_mma", r"IMMA\.8816", 75, 75),
    ("product_mma", r"IMMA\.168(16|32)", 80, 999),
    ("product_mma", r"LDG(STS)?\S*\.128", 75, 999),
]


def build(folder: Path, targets: str, jobs: int) -> None:
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]
    configure += ["-DEXPERTREE_PYTHON=OFF", "-DEXPERTREE_CUDA=ON", f"-DEXPERTREE_CUDA_TARGETS={targets}"]
    names = ["expertree_cuda", "expertree_cuda_tests_gpu", "expertree_cuda_smoke"]
    for command in (configure, ["cmake", "--build", str(folder), "-j", str(jobs), "--target", *names]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{done.stdout[-4000:]}{done.stderr[-4000:]}\ncheck_cuda_build: {' '.join(command)} failed")


def spill_faults(folder: Path) -> Iterator[str]:
    reports = ptxas_reports(folder)
    if not reports:
        yield f"no ptxas reports in {folder}"
    for report in reports:
        if report.spilled_bytes > SPILL_GATE:
            yield f"{report.name} on sm_{report.target} spills {report.spilled_bytes} bytes; the gate is {SPILL_GATE}"


def sass_faults(folder: Path, targets: set[int]) -> Iterator[str]:
    tool = cuobjdump()
    if tool is None:
        print("skipped: instructions, for there is no cuobjdump (pip install 'expertree[cuda]')")
        return
    for object_file in sorted(folder.glob("cuda_kernels_product_*.o")):
        for target in sorted(targets & set(SASS_TARGETS)):
            for symbol, instructions in instructions_of(tool, object_file, target).items():
                for kernel, pattern, first, last in EXPECTED:
                    if f"{len(kernel)}{kernel}" not in symbol or not first <= target <= last:
                        continue
                    if not any(re.match(pattern, name) for name in instructions):
                        yield f"{object_file.stem} on sm_{target}: {kernel} has no {pattern} ({symbol})"


def smoke_faults(folder: Path) -> Iterator[str]:
    done = subprocess.run([str(folder / "expertree_cuda_smoke")], capture_output=True, text=True, check=False)
    errors = re.findall(r"^\w+ +(\d+)$", done.stdout, re.MULTILINE)
    if errors and errors[0] == "0":
        print("skipped: calls without a driver, for there is one")
        return
    if done.returncode or set(errors) != {str(NO_DRIVER)}:
        yield f"calls without a driver give other errors than {NO_DRIVER} (status {done.returncode}):\n{done.stdout}"
    found = ctypes.c_ulonglong()
    tests = ctypes.CDLL(str(folder / "libexpertree_cuda_tests_gpu.so"))
    if tests.expertree_cuda_conformance(ctypes.byref(found)) != NO_DRIVER:
        yield "a kernel's launch without a driver gives another error"
    ctypes.CDLL(str(folder / "libexpertree_cuda.so"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build/cuda")
    parser.add_argument("--targets", default="all", help="compute capabilities, as 75;86 (default: all)")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if shutil.which("nvcc") is None:
        print("skipped: the CUDA build, for there is no nvcc")
        return 0
    build(options.build, options.targets, options.jobs)
    folder = options.build / "cuda"
    targets = {report.target for report in ptxas_reports(folder / "nvcc")}
    faults = [*spill_faults(folder / "nvcc"), *sass_faults(folder / "nvcc", targets), *smoke_faults(folder)]
    for fault in faults:
        print(fault, file=sys.stderr)
    if not faults:
        built = ", ".join(map(str, sorted(targets)))
        print(f"CUDA build for {built}: spills within {SPILL_GATE} bytes, the instructions expected, no driver needed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
