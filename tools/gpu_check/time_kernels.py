"""Prints JSON: copy speeds, and fused expert kernels' shares of the device's copy speed for 1 .. 64 rows per expert.

    python tools/gpu_check/time_kernels.py [--tiny]

A kernel must read its experts' packed weights once: bytes / time over what a copy on the device moves per second.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from ctypes import c_int64
from dataclasses import dataclass

import numpy as np
from timing import copy_speeds, device_facts, seconds

from kernels import (  # isort: skip
    UNITS, Device, ExpertGroups, ExpertGroupsOut, ExpertMatrix, device, pack, packed_layout, product_input, type_number,
)  # fmt: skip
from weights import random_rows, random_weights  # isort: skip

FORMATS = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "MXFP4", "IQ4_XS", "Q3_K", "Q2_K", "F16")
ROWS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Sizes:
    n_experts: int
    n_embd: int
    n_ff: int
    copy_bytes: int
    rows: tuple[int, ...] = ROWS
    formats: tuple[str, ...] = FORMATS


# Qwen3-30B-A3B's experts, enough of them to be larger than any device's cache.
FULL = Sizes(n_experts=96, n_embd=2048, n_ff=768, copy_bytes=256 << 20)
TINY = Sizes(n_experts=2, n_embd=256, n_ff=256, copy_bytes=1 << 16, rows=(1, 8, 16), formats=("Q4_K", "F16"))


class Layer:
    """A layer's experts of one format on the device."""

    def __init__(self, on: Device, form: str, sizes: Sizes) -> None:
        self.on, self.form, self.sizes = on, form, sizes
        shapes = [(sizes.n_ff, sizes.n_embd)] * 2 + [(sizes.n_embd, sizes.n_ff)]
        layouts = [packed_layout(form, *shape) for shape in shapes]
        self.bytes = [layout.bytes for layout in layouts]  # gate, up, down of one expert
        offsets = [0, self.bytes[0], self.bytes[0] + self.bytes[1]]
        rng = np.random.default_rng(1)
        weights = [random_weights(rng, form, *shape) for shape in shapes]
        slots: list[int | None] = []
        for _ in range(sizes.n_experts):
            slot = on.alloc(sum(self.bytes)).value
            assert slot is not None
            slots.append(slot)
            for matrix, shape, offset in zip(weights, shapes, offsets, strict=True):
                pack(on, form, matrix, shape[1], slot + offset)
        self.table = on.pointers(slots)
        none = on.put(None)
        self.matrices = [
            ExpertMatrix(type_number(form), *shape, self.table, offset, none, none)
            for shape, offset in zip(shapes, offsets, strict=True)
        ]

    def groups(self, rows: int) -> ExpertGroups:
        """`rows` rows to each expert, each row on one."""
        n = self.sizes.n_experts
        chosen = np.arange(n * rows, dtype=np.int32).reshape(-1, 1) % n
        lengths = (n, 1, n, 1, n + 1, n * rows, n * rows)
        out = ExpertGroupsOut(*[self.on.put(np.zeros(length, np.int32)) for length in lengths])
        self.on.run("group_slots", self.on.put(chosen), n * rows, 1, n, 0, self.table, ctypes.byref(out), None)
        return ExpertGroups(out.active, out.n_active, out.begin, out.x_row, out.slot, n * rows, n, rows, 8)

    def times(self, rows: int) -> tuple[float, float]:
        """Seconds of gate, up and activation in one, and of down."""
        n, on, ref = self.sizes.n_experts * rows, self.on, ctypes.byref
        groups = self.groups(rows)
        rng = np.random.default_rng(2)
        x = product_input(on, self.form, random_rows(rng, n, self.sizes.n_embd))
        h = product_input(on, self.form, random_rows(rng, n, self.sizes.n_ff))
        hidden, scratch = on.alloc(n * self.sizes.n_ff * 4), on.alloc(n * self.sizes.n_ff * 4)
        out = on.alloc(n * self.sizes.n_embd * 4)
        gate, up, down = self.matrices

        def run_hidden() -> None:
            on.run(
                "expert_hidden", ref(gate), ref(up), UNITS["silu_mul"], ref(x), ref(x), ref(groups), hidden,
                c_int64(self.sizes.n_ff), scratch,
            )  # fmt: skip

        def run_down() -> None:
            on.run("expert_down", ref(down), ref(h), ref(groups), out, c_int64(self.sizes.n_embd))

        return seconds(on, run_hidden), seconds(on, run_down)


def measure(sizes: Sizes) -> dict[str, object]:
    with device() as on:
        copies = copy_speeds(on, sizes.copy_bytes)
    results = []
    for form in sizes.formats:
        with device() as on:
            layer = Layer(on, form, sizes)
            for rows in sizes.rows:
                for kernel, time, size_bytes in zip(
                    ("expert_hidden", "expert_down"), layer.times(rows),
                    (layer.bytes[0] + layer.bytes[1], layer.bytes[2]), strict=True,
                ):  # fmt: skip
                    speed = size_bytes * sizes.n_experts / time
                    result = {"kernel": kernel, "format": form, "rows": rows, "seconds": time}
                    results.append({**result, "bytes_per_s": speed, "of_copy": speed / copies["on_device"]})
    return {"device": device_facts(), "copies": copies, "kernels": results}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="sizes for the emulated device")
    print(json.dumps(measure(TINY if parser.parse_args().tiny else FULL)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
