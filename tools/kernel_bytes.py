#!/usr/bin/env python3
"""Writes docs/gpu/bytes.md: bytes that each CUDA kernel moves, against the fewest it could.

    python tools/kernel_bytes.py [--output FILE] [--only TEXT ...]

Runs kernels on the emulated device in a build that counts (cuda/emulation/byte_counts.cpp), which it makes in the
development build's folder (make test makes that one). --only prints the sections whose title has one of these texts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from ctypes import byref, c_float, c_int64
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/cuda"), str(ROOT / "tools/gpu_check")]

import kernels  # noqa: E402
import numpy as np  # noqa: E402
from counted_bytes import LaunchBytes, count  # noqa: E402
from emulated_library import build_folder, load  # noqa: E402
from kernel_reports import demangled  # noqa: E402
from kernels import UNITS, CacheCells, DenseMatrix, Device, TreeAttention, activation_block, device  # noqa: E402
from time_kernels import Layer, Sizes  # noqa: E402
from weights import QUANTISED, block_bytes, block_size, random_rows, random_weights  # noqa: E402

N_EMBD, N_FF, N_HEADS, N_KV_HEADS, HEAD_DIM, N_EXPERTS, N_USED = 2048, 768, 32, 4, 128, 128, 8  # Qwen3-30B-A3B
TARGET = "expertree_cuda_tests_count"
CELLS = {"F32": 4.0, "F16": 2.0, "Q8_0": 34 / 32}  # bytes of an element


@dataclass(frozen=True)
class Line:
    launch: LaunchBytes
    shape: str
    least: int  # bytes


def build() -> Path:
    folder = build_folder()
    if folder is None:
        sys.exit("kernel_bytes: no development build; make test makes one")
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") or "cmake"
    subprocess.run([cmake, "--build", str(folder.parent), "--target", TARGET], check=True, stdout=sys.stderr)
    return folder / f"lib{TARGET}.so"


def kernel_names(library: Path) -> dict[int, str]:
    """Address to name with template arguments."""
    done = subprocess.run(["nm", str(library)], capture_output=True, text=True, check=True)
    symbols = [line.split() for line in done.stdout.splitlines() if len(line.split()) == 3]
    symbols = [symbol for symbol in symbols if symbol[1] in "tTwW" and "expertree4cuda" in symbol[2]]
    names = demangled([symbol[2] for symbol in symbols])
    return {int(symbol[0], 16): name for symbol, name in zip(symbols, names, strict=True)}


def lines(on: Device, shape: str, least: list[float], name: str, *arguments: object) -> Iterator[Line]:
    """One for each launch of the launcher that writes anything; `least` for each of them."""
    launches = [launch for launch in count(on, lambda: kernels.call(name, *arguments)) if launch.grid[1]]
    for launch, size in zip(launches, least, strict=True):
        yield Line(launch, shape, round(size))


def one(name: str, shape: str, least: float, arguments: Callable[[Device], tuple[object, ...]]) -> Iterator[Line]:
    """A launcher that launches once, with the arguments that are made for it."""
    with device() as on:
        yield from lines(on, shape, [least], name, *arguments(on), on.stream)


def of_rows(n: int) -> str:
    return f"{n} row{'s' * (n != 1)}"


def floats(on: Device, *shape: int) -> object:
    return on.put(np.random.default_rng(1).standard_normal(shape).astype(np.float32))


def weight_bytes(form: str, rows: int, k: int) -> int:
    """The file's."""
    return rows * (k // block_size(form)) * block_bytes(form)


def input_bytes(form: str, n_rows: int, k: int) -> int:
    """Int8 with a float for each block; floats where the format takes those."""
    block = activation_block(form)
    return n_rows * (k + k // block * 4) if block else 4 * n_rows * k


def products() -> Iterator[Line]:
    rng = np.random.default_rng(1)
    for form in (*QUANTISED, "F16", "F32"):
        with device() as on:
            packed = kernels.pack(on, form, random_weights(rng, form, N_FF, N_EMBD), N_EMBD)
            matrix = DenseMatrix(kernels.type_number(form), N_FF, N_EMBD, packed, 1.0, None)
            y = on.alloc(64 * N_FF * 4)
            for n_rows in (1, 8, 16, 64):
                x = kernels.product_input(on, form, random_rows(rng, n_rows, N_EMBD))
                least = weight_bytes(form, N_FF, N_EMBD) + input_bytes(form, n_rows, N_EMBD) + n_rows * N_FF * 4
                values = (byref(matrix), byref(x), n_rows, y, c_int64(N_FF), on.stream, 8)
                yield from lines(on, of_rows(n_rows), [least], "product", *values)


def experts() -> Iterator[Line]:
    rng = np.random.default_rng(2)
    n_experts = 4
    for form, n_embd, n_ff in (("Q4_K", N_EMBD, N_FF), ("Q6_K", N_EMBD, N_FF), ("MXFP4", 2880, 2880)):
        with device() as on:
            layer = Layer(on, form, Sizes(n_experts, n_embd, n_ff, 0))
            gate, up, down = layer.matrices
            for per_expert in (1, 4, 16):
                n = n_experts * per_expert
                groups = layer.groups(per_expert)
                x, h = (kernels.product_input(on, form, random_rows(rng, n, size)) for size in (n_embd, n_ff))
                hidden, out = on.alloc(n * n_ff * 4), on.alloc(n * n_embd * 4)
                shape = f"{n_experts} experts, {of_rows(per_expert)} each, {n_embd} to {n_ff}"
                values = (
                    byref(gate), byref(up), UNITS["silu_mul"], byref(x), byref(x), byref(groups), hidden, c_int64(n_ff),
                    None,
                )  # fmt: skip
                least = n_experts * 2 * weight_bytes(form, n_ff, n_embd) + input_bytes(form, n, n_embd) + n * n_ff * 4
                yield from lines(on, shape, [least], "expert_hidden", *values, on.stream)
                shape = f"{n_experts} experts, {of_rows(per_expert)} each, {n_ff} to {n_embd}"
                more = (byref(down), byref(h), byref(groups), out, c_int64(n_embd))
                least = n_experts * weight_bytes(form, n_embd, n_ff) + input_bytes(form, n, n_ff) + n * n_embd * 4
                yield from lines(on, shape, [least], "expert_down", *more, on.stream)


def attention_of(on: Device, cells: CacheCells, n_rows: int, n_positions: int) -> TreeAttention:
    """Rows that see one path."""

    def each(value: int) -> object:
        return on.put(np.full(n_rows, value, np.int32))

    return TreeAttention(
        q=floats(on, n_rows, N_HEADS, HEAD_DIM), k=cells, v=cells, n_heads=N_HEADS, n_kv_heads=N_KV_HEADS,
        head_dim_k=HEAD_DIM, head_dim_v=HEAD_DIM, first=None, base=each(0), n_prefix=each(n_positions), tail=each(0),
        n_tail=each(0), tails=each(-1), n_positions=n_positions, scale=0.1, softcap=0.0, sinks=None,
        out=on.alloc(4 * n_rows * N_HEADS * HEAD_DIM),
    )  # fmt: skip


def attention() -> Iterator[Line]:
    n_positions = 1024
    for form, n_rows in (("F32", 1), ("F16", 1), ("Q8_0", 1), ("F16", 8)):
        with device() as on:
            x = np.random.default_rng(3).standard_normal((N_KV_HEADS, n_positions, HEAD_DIM)).astype(np.float32)
            args = attention_of(on, kernels.put_cells(on, form, x), n_rows, n_positions)
            size = load().et_attention_scratch_bytes
            size.restype = c_int64
            scratch = on.alloc(size(byref(args), c_int64(n_rows)))
            heads = n_rows * N_HEADS
            cells, rows = x.size * CELLS[form], 4 * heads * HEAD_DIM
            scores, tiles = 4 * heads * n_positions, 4 * heads * (n_positions // 32)
            least = [rows + cells + scores, 2 * scores + tiles + 4 * heads, scores + tiles + 4 * heads + cells + rows]
            values = (byref(args), c_int64(n_rows), scratch, None)
            shape = f"{of_rows(n_rows)}, {N_HEADS} heads on {N_KV_HEADS}, {n_positions} positions of {form}"
            yield from lines(on, shape, least, "attention", *values, on.stream)


def cells() -> Iterator[Line]:
    n_rows, row = 8, N_KV_HEADS * HEAD_DIM
    shape = f"{n_rows} rows of {N_KV_HEADS} heads"
    for form, size in CELLS.items():
        with device() as on:
            to = kernels.cells(on, form, N_KV_HEADS, n_rows, HEAD_DIM)
            numbers = on.put(np.arange(n_rows, dtype=np.int32))
            values = (floats(on, n_rows, row), c_int64(row), N_KV_HEADS, HEAD_DIM, numbers, c_int64(n_rows), byref(to))
            least = n_rows * (4 * row + 4 + row * size)
            yield from lines(on, f"{shape}, {form}", [least], "store_cells", *values, None, on.stream)
            rounded = on.put(np.zeros(round(n_rows * row * size), np.uint8))
            more = (rounded, c_int64(round(HEAD_DIM * size)), N_KV_HEADS, c_int64(0), c_int64(n_rows), byref(to))
            least = 2 * n_rows * row * size
            yield from lines(on, f"{shape}, {form}", [least], "copy_cells", *more, on.stream)


def rows() -> Iterator[Line]:
    n = 8
    row, shape = 4 * N_EMBD, f"{n} rows of {N_EMBD}"
    yield from one(
        "rms_norm", shape, (2 * n + 1) * row,
        lambda on: (
            floats(on, n, N_EMBD), c_int64(N_EMBD), floats(on, N_EMBD), None, c_float(1e-5), c_int64(n),
            c_int64(N_EMBD), on.alloc(n * row), c_int64(N_EMBD), 0,
        ),
    )  # fmt: skip

    def residual(on: Device) -> tuple[object, ...]:
        norm = kernels.ResidualNorm(
            floats(on, n, N_EMBD), floats(on, n, N_EMBD), None, 1.0, floats(on, N_EMBD), None, 1e-5, on.alloc(n * row),
            False, on.put(np.zeros(1, np.int32)),
        )  # fmt: skip
        return byref(norm), c_int64(n), c_int64(N_EMBD), None

    yield from one("residual_norm", shape, (4 * n + 1) * row, residual)

    def rope(on: Device) -> tuple[object, ...]:
        angles = floats(on, n, HEAD_DIM // 2), floats(on, n, HEAD_DIM // 2)
        x, stride = floats(on, n, N_HEADS, HEAD_DIM), N_HEADS * HEAD_DIM
        args = kernels.Rope(x, stride, HEAD_DIM, N_HEADS, HEAD_DIM, *angles, HEAD_DIM // 2, False, None)
        return byref(args), c_int64(n)

    yield from one("rope", f"{n} rows of {N_HEADS} heads", 4 * n * (2 * N_HEADS * HEAD_DIM + HEAD_DIM), rope)
    for block in (32, 256):
        least = n * (row + N_EMBD + N_EMBD // block * 4 + N_EMBD // 16 * 2)
        with device() as on:
            x = random_rows(np.random.default_rng(1), n, N_EMBD)
            to = kernels.int8_rows(on, x, block)
            values = (on.put(x), c_int64(N_EMBD), c_int64(n), c_int64(N_EMBD), c_int64(block), byref(to))
            yield from lines(on, shape, [least], "quantize", *values, on.stream)
    yield from one(
        "sum_experts", f"{shape}, {N_USED} experts each", n * (N_USED * (row + 4) + row),
        lambda on: (
            floats(on, n * N_USED, N_EMBD), floats(on, n, N_USED), n, N_USED, c_int64(N_EMBD), None, c_float(1.0),
            on.alloc(n * row),
        ),
    )  # fmt: skip
    yield from one(
        "weigh_inputs", f"{shape}, {N_USED} experts each", n * (row + N_USED * (row + 4)),
        lambda on: (
            floats(on, n, N_EMBD), floats(on, n, N_USED), c_int64(n), N_USED, c_int64(N_EMBD),
            on.alloc(n * N_USED * row),
        ),
    )  # fmt: skip
    yield from one(
        "gated_unit", shape, 3 * n * row,
        lambda on: (0, floats(on, n, N_EMBD), floats(on, n, N_EMBD), c_int64(n * N_EMBD), on.alloc(n * row)),
    )  # fmt: skip
    yield from one(
        "sigmoid_gate", shape, 3 * n * row,
        lambda on: (floats(on, n, N_EMBD), floats(on, n, N_EMBD), 0, c_int64(n), c_int64(N_EMBD)),
    )  # fmt: skip
    size = c_int64(n * N_EMBD)
    yield from one(
        "scale_softcap", shape, 2 * n * row, lambda on: (floats(on, n, N_EMBD), size, c_float(0.5), c_float(0.0))
    )
    yield from one("clamp", shape, 2 * n * row, lambda on: (floats(on, n, N_EMBD), size, c_float(0.5)))


def choices() -> Iterator[Line]:
    n, n_slots = 8, 8 * N_USED
    router = kernels.Router(None, N_EXPERTS, N_USED, 0, 1, 1, True, 1.0)
    yield from one(
        "router", f"{n} rows, {N_USED} of {N_EXPERTS}", n * (2 * 4 * N_EXPERTS + 8 * N_USED),
        lambda on: (
            byref(router), floats(on, n, N_EXPERTS), c_int64(n), on.alloc(4 * n_slots), on.alloc(4 * n_slots),
            on.put(np.zeros(1, np.int32)), None,
        ),
    )  # fmt: skip
    rng = np.random.default_rng(1)
    chosen = np.array([rng.permutation(N_EXPERTS)[:N_USED] for _ in range(n)], np.int32)
    n_active = len(np.unique(chosen))

    def group(on: Device) -> tuple[object, ...]:
        lengths = (N_EXPERTS, 1, N_EXPERTS, 1, N_EXPERTS + 1, n_slots, n_slots)
        out = kernels.ExpertGroupsOut(*[on.alloc(4 * length) for length in lengths])
        return on.put(chosen), n, N_USED, N_EXPERTS, 0, on.pointers([256] * N_EXPERTS), byref(out), None

    # Slots, the pointers of experts with slots, then active, begin, x_row, slot and the two numbers.
    least = 4 * n_slots + 8 * n_active + 4 * (n_active + N_EXPERTS + 1 + 2 * n_slots + 2)
    yield from one("group_slots", f"{n} rows, {N_USED} of {N_EXPERTS}", least, group)


def best_logits() -> Iterator[Line]:
    n, k = 151936, 40
    with device() as on:
        size = load().et_top_k_scratch_bytes
        size.restype = c_int64
        scratch = on.alloc(size(c_int64(1), c_int64(n), k))
        values = (
            floats(on, 1, n), c_int64(1), c_int64(n), k, on.alloc(4 * k), on.alloc(4 * k),
            on.put(np.zeros(1, np.int32)), scratch, None,
        )  # fmt: skip
        least: list[float] = []
        n_keys, read = n, 4 * n
        while n_keys > 2048:  # pieces
            n_keys = -(-n_keys // 2048) * k
            least.append(read + 8 * n_keys)
            read = 8 * n_keys
        least.append(read + 3 * 4 * k)  # logits, too: their ids alone are in the keys
        yield from lines(on, f"{k} of {n}", least, "top_k", *values, on.stream)


def packing() -> Iterator[Line]:
    n_rows = 64
    for form in (*QUANTISED, "F16", "F32"):
        with device() as on:
            in_file = on.put(random_weights(np.random.default_rng(1), form, n_rows, N_EMBD))
            packed = on.alloc(kernels.packed_layout(form, n_rows, N_EMBD).bytes)
            values = (kernels.type_number(form), in_file, c_int64(n_rows), c_int64(N_EMBD), packed)
            least = 2 * weight_bytes(form, n_rows, N_EMBD)
            yield from lines(on, f"{n_rows} rows", [least], "pack", *values, on.stream)


SECTIONS: list[tuple[str, str, Callable[[], Iterator[Line]]]] = [
    ("Products", f"{N_FF} x {N_EMBD} weights. Least: weights, int8 inputs with their scales, outputs.", products),
    ("Experts", "As products: the weights of all experts that have rows, every row's input, every output.", experts),
    ("Attention", "Least: queries, cells, scores; scores and weights; weights, decays, cells, outputs.", attention),
    ("Cache cells", f"Heads of {HEAD_DIM}. Least: rows, cells' numbers, cells.", cells),
    ("Rows", "Least: inputs, weights of norms, angles, outputs.", rows),
    ("Router and groups", "Least: scores and gated scores, choices; slots, pointers, groups.", choices),
    ("Best logits", "Least: logits or kept keys, keys that are kept.", best_logits),
    ("Packing", f"Rows of {N_EMBD}. Least: the file's bytes, read and written.", packing),
]

HEAD = """# CUDA kernels: bytes moved, against the fewest

Written by `python tools/kernel_bytes.py` (2 minutes), which counts every access to device memory on the emulated
device; nothing here was measured on a GPU. Sizes are KiB, ratios are to the least.

- *least*: each input, weight and output once; what those are stands at a section's head. Weights are the file's bytes.
- *memory*: different 32-byte sectors of the launch, read and written. Memory moves these if L2 keeps what comes again.
- *blocks*: different sectors of each block, summed over blocks. L2 is asked for these if L1 keeps what comes again.
- *used*: of the sectors that a warp's access touches, the bytes that it takes. Where the next accesses take the rest,
  little use means more work for L1, not more traffic.

The last argument of a product's name tells gate and up together (`true`) from one matrix.

What stands out. No kernel moves memory for nothing: padding and sums of activations are 2% at most, and the two ratios
over 1.1 are of 2 KiB whose sectors are used in part (`group_slots`, the last `keep_best`). Blocks ask L2 for more where
many read the same. A `product_dp4a` of 8 columns has 8 weight rows to a block, so of 4-bit formats it asks for twice as
many bytes of activations as of weights; `product_mma` has 64 weight rows and 32 columns to a block, and at 64 columns
asks for each about as much; `product_float` reads weights again for every 8 columns; attention reads a path's cells
again for every row. Packing reads and writes single bytes, and `product_mma` of Q4_1 and Q5_1 reads sums of activations
two bytes at a time.
"""


def table(name_of: dict[int, str], found: Iterator[Line]) -> Iterator[str]:
    yield "| kernel | shape | least | memory | | blocks | | used |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for line in found:
        launch = line.launch
        grid, block = sum(launch.grid), sum(launch.block)
        yield (
            f"| `{name_of[launch.kernel]}` | {line.shape} | {kib(line.least)} | {kib(grid)} | {grid / line.least:.2f} "
            f"| {kib(block)} | {block / line.least:.2f} | {sum(launch.warp_used) / sum(launch.warp):.0%} |"
        )


def kib(size_bytes: int) -> str:
    return f"{size_bytes / 1024:,.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs/gpu/bytes.md")
    parser.add_argument("--only", nargs="+", metavar="TEXT")
    options = parser.parse_args()
    library = build()
    os.environ["EXPERTREE_CUDA_TESTS"] = str(library)
    names = kernel_names(library)
    text = [HEAD] if options.only is None else []
    for title, what, section in SECTIONS:
        if options.only is None or any(wanted.lower() in title.lower() for wanted in options.only):
            text += [f"## {title}", "", what, "", *table(names, section()), ""]
    if options.only is not None:
        print("\n".join(text))
        return 0
    options.output.write_text("\n".join(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
