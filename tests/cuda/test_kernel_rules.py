"""tools/check_kernels.py finds each broken rule, and nothing in what we have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BROKEN = {
    "kernels/a.cu": [
        "k<<<1, 32>>>();",
        "__shared__ float x[32];",
        'asm volatile("nop;");',
        "#if __CUDA_ARCH__ >= 800",
        "#ifdef CUDA_EMU",
        "int m = __activemask();",
        "v = __shfl_xor(v, 1);",
        "float y = __expf(x);",
        "float y = expf(x);",
        "float y = rsqrtf(x);",
        "v += __shfl_xor_sync(~0u, v, 16);",
        "v = fmaxf(v, __shfl_down_sync(~0u, v, 16));",
        "__syncthreads(); __syncthreads();",
        "a = gpu_warp_sum(a) + gpu_warp_sum(b);",
        "#include <cub/cub.cuh>",
        "#include <cuda_runtime.h>",
        "__noinline__ void f();",
        "__global__ void k(int* p) {}",
    ],
    "runtime/a.cpp": [
        "#include <cuda.h>",
        "cuMemAlloc(&p, 1);",
        "cudaMemcpy(a, b, 1, cudaMemcpyHostToDevice);",
        "cudaStreamCreate(&s);",
    ],
    "gpu/gpu.h.cuh": ['asm volatile("nop;");'],
}
FINE = [
    "// __shared__ in a comment",
    "__global__ void __launch_bounds__(128) k(int* p) {}",
    "v = gpu_warp_sum(v);",
    "v = canonical_expf16(x);",
    "cudaMemcpyAsync(a, b, 1, cudaMemcpyHostToDevice, s);",
]


def check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools/check_kernels.py"), str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in BROKEN.items() for line in lines])
def test_a_broken_rule_is_found(tmp_path: Path, name: str, line: str) -> None:
    file = tmp_path / "cuda" / name
    file.parent.mkdir(parents=True)
    file.write_text(f"\n{line}\n")
    found = check(tmp_path)
    assert found.returncode == 1
    assert f"cuda/{name}:" in found.stderr


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    for name in ("kernels/a.cu", "runtime/a.cpp"):
        (tmp_path / "cuda" / name).parent.mkdir(parents=True)
        (tmp_path / "cuda" / name).write_text("\n".join(FINE) + "\n")
    assert check(tmp_path).stderr == ""


def test_our_sources_keep_the_rules() -> None:
    assert check(ROOT).stderr == ""
