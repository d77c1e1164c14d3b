"""The emulation's fragment layouts are those that CuTe's traits state. Needs nvidia-cutlass and the CUDA toolkit."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def cutlass_headers() -> Path:
    found = importlib.util.find_spec("cutlass_library")
    places = found.submodule_search_locations if found else None
    if not places:
        pytest.skip("no nvidia-cutlass to compare fragment layouts with (pip install nvidia-cutlass)")
    return Path(places[0]) / "source/include"


def toolkit_headers() -> Path:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no CUDA toolkit, whose headers CuTe includes")
    said = subprocess.run([nvcc, "-dryrun", "-x", "cu", "-c", "/dev/null"], capture_output=True, text=True, check=True)
    root = next(line.partition("TOP=")[2] for line in said.stderr.splitlines() if "TOP=" in line)
    return Path(root) / "include"


def test_fragment_layouts(tmp_path: Path) -> None:
    cutlass, toolkit = cutlass_headers(), toolkit_headers()
    program = tmp_path / "layouts"
    sources = [str(ROOT / "tests/cuda/cute_layouts_main.cpp"), str(ROOT / "cuda/emulation/finishers.cpp")]
    includes = ["-I", str(ROOT), "-isystem", str(cutlass), "-isystem", str(toolkit), "-isystem", str(toolkit / "cccl")]
    subprocess.run(["g++", "-std=c++20", "-O0", "-w", *includes, *sources, "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.stdout == "mma 0 ldmatrix 0\n"
