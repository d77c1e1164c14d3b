"""What ptxas and cuobjdump say of compiled kernels: registers, shared memory, spills, threads, instructions.

`cuda/nvcc.cmake` leaves ptxas' report of each object beside it, as NAME.o.ptxas. cuobjdump comes with the toolkit or
from the package index (nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm: the extra `cuda`), and needs no GPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import gguf

ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


@dataclass
class KernelReport:
    object: str  # "product_q4_k"
    symbol: str
    name: str  # demangled, without namespaces and arguments
    target: int  # compute capability, 86
    registers: int = 0
    shared_bytes: int = 0
    spilled_bytes: int = 0  # the larger one of stores and loads


def demangled(symbols: list[str]) -> list[str]:
    """Names with their template arguments; as they are where there is no c++filt."""
    if shutil.which("c++filt") is None:
        return symbols
    done = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True)
    names = []
    for full in done.stdout.splitlines():
        name = re.sub(r"\(anonymous namespace\)::|expertree::(?:cuda::)?|^void ", "", full)
        name = re.sub(r"\(DType\)(\d+)", lambda match: gguf.GGMLQuantizationType(int(match[1])).name, name)
        name = re.sub(r"\([A-Za-z]\w*\)", "", name)  # casts of other template arguments
        depth, end = 0, len(name)
        for i, character in enumerate(name):
            depth += {"<": 1, ">": -1}.get(character, 0)
            if character == "(" and depth == 0:
                end = i
                break
        names.append(name[:end])
    return names


def ptxas_reports(folder: Path) -> list[KernelReport]:
    """Every kernel and target of the objects in the folder (<build>/cuda/nvcc); those of tests left out."""
    found: list[KernelReport] = []
    for file in sorted(folder.glob("cuda_kernels_*.ptxas")):
        name = file.name.removeprefix("cuda_kernels_").removesuffix(".cu.o.ptxas")
        for line in file.read_text().splitlines():
            if entry := ENTRY.search(line):
                found.append(KernelReport(name, entry[1], entry[1], int(entry[2])))
            elif found and (spills := SPILLS.search(line)):
                found[-1].spilled_bytes = max(int(spills[2]), int(spills[3]))
            elif found and (used := USED.search(line)):
                found[-1].registers = int(used[1])
                shared = SHARED.search(line)
                found[-1].shared_bytes = int(shared[1]) if shared else 0
    for report, name in zip(found, demangled([report.symbol for report in found]), strict=True):
        report.name = name
    return found


def cuobjdump() -> Path | None:
    beside = [Path(path) / "nvidia/cu13/bin/cuobjdump" for path in sys.path]
    for path in beside:
        if path.exists():
            return path
    found = shutil.which("cuobjdump")
    return Path(found) if found else None


def dump(tool: Path, *arguments: str) -> str:
    environment = {"PATH": f"{tool.parent}:/usr/bin:/bin"}  # it runs nvdisasm, which lies beside it
    done = subprocess.run([str(tool), *arguments], capture_output=True, text=True, check=True, env=environment)
    return done.stdout


def threads_of(tool: Path, object_file: Path) -> dict[str, int]:
    """Symbol to the most threads of a block (__launch_bounds__)."""
    ptx = dump(tool, "-ptx", str(object_file))
    found = re.findall(r"\.entry (\w+)\s*\([^)]*\)\s*\.maxntid (\d+)", ptx)
    return {symbol: int(n) for symbol, n in found}


def instructions_of(tool: Path, object_file: Path, target: int) -> dict[str, list[str]]:
    """Symbol to its instructions' names, such as IMMA.16832.S8.S8."""
    found: dict[str, list[str]] = {}
    symbol = ""
    for line in dump(tool, "-sass", "-arch", f"sm_{target}", str(object_file)).splitlines():
        if function := re.search(r"Function : (\w+)", line):
            symbol = function[1]
            found[symbol] = []
        elif symbol and (instruction := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", line)):
            found[symbol].append(instruction[1])
    return found
