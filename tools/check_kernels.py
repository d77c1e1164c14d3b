#!/usr/bin/env python3
"""Checks the rules of CUDA sources that no compiler checks. No output and exit status 0 when all is well.

    python tools/check_kernels.py [ROOT]

cuda/README.md gives the rules and their reasons. In kernels (cuda/kernels and tests/cuda, .cu and .cuh): gpu.h's
launches, shared memory and wrappers only; no library but our own; no function whose bits differ between devices;
barriers and warp collectives one to a line; a thread limit on every kernel. In host code (.cpp and .h): the runtime API
only, and nothing that runs in the default stream.
"""

import re
import sys

from check_layers import blanked, report

KERNEL_SUFFIXES = {".cu", ".cuh"}
KERNEL_FOLDERS = ("cuda/kernels", "tests/cuda", "cuda/gpu")
HOST_FOLDERS = ("cuda/kernels", "cuda/runtime")
WRAPPERS = "cuda/gpu/wrap.cuh"  # may hold assembly; and cuda/gpu may tell compilers and devices apart

APPROXIMATE = (
    r"__(?:exp|log|log2|log10|sin|cos|tan|pow|sincos)f|__fdividef|rsqrtf?|__frsqrt_rn|__tanhf|"
    r"(?:exp|exp2|exp10|expm1|log|log2|log10|log1p|sin|cos|tan|sincos|pow|tanh|sinh|cosh|erf|erfc|cbrt)f"
)
# pattern, what to do instead
KERNEL_RULES = [
    (r"<<<", "launch with gpu_launch"),
    (r"\b__shared__\b", "declare shared memory with GPU_SHARED or GPU_DYN_SHARED"),
    (r"\b__noinline__\b", "write GPU_NOINLINE"),
    (r"\b__activemask\b", "say which lanes take part"),
    (r"\b__shfl(?:_xor|_up|_down)?\s*\(|\b__(?:any|all|ballot)\s*\(", "use the form that takes a mask"),
    (r"\b(?:" + APPROXIMATE + r")\s*\(", "its bits differ between devices; use the canonical functions"),
    (r"\batomicAdd\s*\([^;]*\b(?:float|double)\b", "sums of floats by atomics have no fixed order"),
    (r"\+=\s*__shfl_(?:xor|down)_sync\([^;]*,\s*(?:16|[a-z]\w*)\s*\)", "sum lanes with gpu_warp_sum or gpu_group_sum"),
    (r"\bf?maxf?\s*\([^;]*__shfl_(?:xor|down)_sync\([^;]*,\s*(?:16|[a-z]\w*)\s*\)", "use gpu_warp_max, gpu_group_max"),
    (r"#\s*include\s*[<\"](?:cub|thrust|cuda/std|cooperative_groups|cublas|mma\.h|cuda_runtime|cuda_fp16|cuda_bf16|cuda\.h)",
     "kernels include cuda/gpu/gpu.h, our own headers and the language's"),
    (r"\btex[123]D|\bcudaTextureObject_t|\bcudaLaunchDevice|\bcg::", "not emulated"),
]  # fmt: skip
OUTSIDE_GPU = [
    (r"\basm\b", "inline assembly stands only in " + WRAPPERS),
    (
        r"\b__CUDA_ARCH__\b|\bCUDA_EMU\b|\b__CUDACC__\b",
        "choose code by a template parameter, so that all of it is tested",
    ),
]
HOST_RULES = [
    (r"#\s*include\s*[<\"]cuda\.h|\bcu(?:Init|Ctx|Mem|Launch|Module)\w*\s*\(", "use the runtime API only"),
    (r"\bcuda(?:Memcpy|Memset)\s*\(", "it runs in the default stream; use the asynchronous form and a stream"),
    (r"\bcudaStreamCreate\s*\(", "such a stream waits for the default one; make it with cudaStreamNonBlocking"),
]  # fmt: skip
COLLECTIVE = re.compile(
    r"\b(?:__syncthreads(?:_or|_and|_count)?|__syncwarp|__shfl(?:_xor|_up|_down)?_sync|__(?:ballot|any|all)_sync|"
    r"gpu_(?:warp|group)_(?:sum|max)\b(?:<\w+>)?|gpu_mma_\w+|gpu_ldmatrix_\w+)\s*\("
)
GLOBAL = re.compile(r"\b__global__\b([^;{]*)[;{]", re.DOTALL)


def kernel_faults(name, code):
    """Yields (line, message) for a kernel source whose comments and literals are blanked."""
    in_gpu = name.startswith("cuda/gpu/")
    for number, line in enumerate(code.splitlines(), 1):
        for pattern, remedy in KERNEL_RULES if not in_gpu else []:
            match = re.search(pattern, line)
            if match:
                yield number, f"{match.group().strip()}: {remedy}"
        for pattern, remedy in OUTSIDE_GPU:
            match = re.search(pattern, line)
            if match and not in_gpu:
                yield number, f"{match.group()}: {remedy}"
        if len(COLLECTIVE.findall(line)) > 1 and not in_gpu:
            yield number, "two barriers or warp collectives on one line, which the emulation could not tell apart"
    if in_gpu and name != WRAPPERS and re.search(OUTSIDE_GPU[0][0], code):
        yield 1, OUTSIDE_GPU[0][1]
    for match in GLOBAL.finditer(code):
        if "__launch_bounds__" not in match.group(1) and name.startswith("cuda/kernels"):
            yield code.count("\n", 0, match.start()) + 1, "a kernel says how many threads it runs: __launch_bounds__"


def host_faults(code):
    for number, line in enumerate(code.splitlines(), 1):
        for pattern, remedy in HOST_RULES:
            match = re.search(pattern, line)
            if match:
                yield number, f"{match.group().strip()}: {remedy}"


def check(root):
    """Yields "file:line: message" for every broken rule under root."""
    for folder in sorted({*KERNEL_FOLDERS, *HOST_FOLDERS}):
        for file in sorted((root / folder).rglob("*")):
            name = str(file.relative_to(root))
            is_kernel = file.suffix in KERNEL_SUFFIXES and folder in KERNEL_FOLDERS
            is_host = file.suffix in {".cpp", ".h"} and folder in HOST_FOLDERS
            if not is_kernel and not is_host:
                continue
            code = blanked(file.read_text(encoding="utf-8"), keep_strings=True)
            for line, message in kernel_faults(name, code) if is_kernel else host_faults(code):
                yield f"{name}:{line}: {message}"


if __name__ == "__main__":
    sys.exit(report(check, sys.argv[1:]))
