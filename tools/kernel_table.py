#!/usr/bin/env python3
"""Writes docs/gpu/kernels.md: registers, shared memory, spills and theoretical occupancy of every kernel.

    python tools/kernel_table.py [--build FOLDER] [--output FILE] [--check]

Reads what a build for all targets left (tools/check_cuda_build.py). --check only says whether the file is current.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from kernel_reports import KernelReport, cuobjdump, ptxas_reports, threads_of

ROOT = Path(__file__).resolve().parent.parent
# Per multiprocessor: warps, blocks, bytes of shared memory (CUDA C++ programming guide, compute capabilities).
LIMITS = {
    75: (32, 16, 64 << 10),
    80: (64, 32, 164 << 10),
    86: (48, 16, 100 << 10),
    89: (48, 24, 100 << 10),
    90: (64, 32, 228 << 10),
    100: (64, 32, 228 << 10),
    120: (48, 24, 100 << 10),
}
REGISTERS = 65536
REGISTER_UNIT = 256  # per warp
SHARED_UNIT, SHARED_SYSTEM = (
    128,
    1 << 10,
)  # a block's shared memory is rounded up; 1 KiB of it is the system's from 8.0 on

HEAD = """# CUDA kernels: registers, shared memory, occupancy

Written by `tools/kernel_table.py` from a build for compute capabilities {targets}; theoretical figures of the
compiler, not measurements. A cell is registers per thread / warps that fit on a multiprocessor, in percent of its most.
Dynamic shared memory is not counted: the launch chooses it. Spills are printed where there are any (bytes).
"""


def occupancy(report: KernelReport, threads: int) -> float:
    """Fraction of a multiprocessor's warps that blocks of the kernel can fill."""
    max_warps, max_blocks, shared = LIMITS[report.target]
    warps = math.ceil(threads / 32)
    registers = math.ceil(report.registers * 32 / REGISTER_UNIT) * REGISTER_UNIT * warps
    system = SHARED_SYSTEM if report.target >= 80 else 0
    shared_of_block = math.ceil((report.shared_bytes + system) / SHARED_UNIT) * SHARED_UNIT
    blocks = min(max_blocks, max_warps // warps, REGISTERS // max(registers, 1), shared // max(shared_of_block, 1))
    return blocks * warps / max_warps


def table(folder: Path) -> str:
    reports = ptxas_reports(folder)
    tool = cuobjdump()
    threads: dict[tuple[str, str], int] = {}
    if tool is not None:
        for name in sorted({report.object for report in reports}):
            found = threads_of(tool, folder / f"cuda_kernels_{name}.cu.o")
            threads |= {(name, symbol): n for symbol, n in found.items()}
    targets = sorted({report.target for report in reports})
    lines = [HEAD.format(targets=", ".join(map(str, targets)))]
    lines += ["| file | kernel | threads | shared | " + " | ".join(f"sm_{target}" for target in targets) + " |"]
    lines += ["| --- | --- | ---: | ---: |" + " ---: |" * len(targets)]
    rows: dict[tuple[str, str], dict[int, KernelReport]] = {}
    for report in reports:
        rows.setdefault((report.object, report.symbol), {})[report.target] = report
    for (name, symbol), by_target in sorted(
        rows.items(), key=lambda row: (row[0][0], next(iter(row[1].values())).name)
    ):
        first = next(iter(by_target.values()))
        n = threads.get((name, symbol))
        cells = []
        for target in targets:
            report = by_target[target]
            share = f" / {100 * occupancy(report, n):.0f}%" if n else ""
            spills = f", spills {report.spilled_bytes}" if report.spilled_bytes else ""
            cells.append(f"{report.registers}{share}{spills}")
        shown = first.name.replace("|", "\\|")
        lines.append(f"| {name} | `{shown}` | {n or '-'} | {first.shared_bytes} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build/cuda")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/gpu/kernels.md")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = table(options.build / "cuda/nvcc")
    if options.check:
        current = options.output.exists() and options.output.read_text() == text
        if not current:
            print(f"{options.output} is not what tools/kernel_table.py writes now", file=sys.stderr)
        return 0 if current else 1
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
