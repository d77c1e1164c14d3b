"""Launchers of cuda/kernels from Python: device arrays, mirrors of their structs, and calls that raise."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_bool, c_float, c_int32, c_int64, c_void_p

import gguf
import numpy as np
from emulated_library import load
from expertree._core import _testing

UNITS = {"silu_mul": 0, "gelu_mul": 1, "swiglu_oai": 2, "relu_mul": 3}
GATINGS = {"softmax": 0, "sigmoid": 1, "softmax_of_chosen": 2, "sigmoid_of_chosen": 3}
ELEMENT_BYTES = {"F32": 4, "F16": 2, "Q8_0": 1}
PLANES = ("codes", "high", "scales", "d")


class CudaError(RuntimeError):
    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: CUDA error {code}")
        self.code = code


def call(name: str, *arguments: object) -> None:
    """Calls et_<name>; numpy scalars and Python numbers must come as ctypes where they are not int32 or a pointer."""
    code = getattr(load(), "et_" + name)(*arguments)
    if code:
        raise CudaError(name, code)


def type_number(name: str) -> int:
    return int(gguf.GGMLQuantizationType[name])


class Device:
    """A stream, and memory that is given back with it."""

    def __init__(self) -> None:
        self.stream = c_void_p()
        self.memory: list[c_void_p] = []
        call("stream", ctypes.byref(self.stream))

    def alloc(self, size_bytes: int) -> c_void_p:
        p = c_void_p()
        call("alloc", c_int64(max(size_bytes, 1)), ctypes.byref(p))
        self.memory.append(p)
        return p

    def put(self, array: np.ndarray | None) -> c_void_p:
        if array is None:
            return c_void_p()
        array = np.ascontiguousarray(array)
        p = self.alloc(array.nbytes)
        call("to_device", p, c_void_p(array.ctypes.data), c_int64(array.nbytes))
        return p

    def pointers(self, pointers: list[int | None]) -> c_void_p:
        return self.put(np.array([p or 0 for p in pointers], np.uint64))

    def get(self, p: c_void_p | int, shape: tuple[int, ...], dtype: object = np.float32) -> np.ndarray:
        self.wait()
        array = np.empty(shape, dtype)
        call(
            "to_host", c_void_p(array.ctypes.data), p if isinstance(p, c_void_p) else c_void_p(p), c_int64(array.nbytes)
        )
        return array

    def run(self, name: str, *arguments: object) -> None:
        """A launcher whose last argument is the stream."""
        call(name, *arguments, self.stream)

    def wait(self) -> None:
        call("wait", self.stream)

    def close(self) -> None:
        self.wait()
        for p in self.memory:
            call("free", p)
        call("end_stream", self.stream)


@contextmanager
def device() -> Iterator[Device]:
    opened = Device()
    try:
        yield opened
    finally:
        opened.close()


class PackedLayout(ctypes.Structure):
    _fields_ = [
        ("rows", c_int64),
        ("k", c_int64),
        ("offset", c_int64 * 4),
        ("row_bytes", c_int64 * 4),
        ("bytes", c_int64),
    ]


class Int8Rows(ctypes.Structure):
    _fields_ = [
        ("q", c_void_p),
        ("d", c_void_p),
        ("sums16", c_void_p),
        ("q_stride", c_int64),
        ("d_stride", c_int64),
        ("sums_stride", c_int64),
    ]


class ProductInput(ctypes.Structure):
    _fields_ = [("q", Int8Rows), ("f32", c_void_p), ("f32_stride", c_int64)]


class ExpertGroupsOut(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in ("active", "n_active", "missing", "n_missing", "begin", "x_row", "slot")]


class ExpertGroups(ctypes.Structure):
    _fields_ = [
        *[(name, c_void_p) for name in ("active", "n_active", "begin", "x_row", "slot")],
        *[(name, c_int32) for name in ("n_slots", "max_groups", "max_rows", "dp4a_rows")],
    ]


class ExpertMatrix(ctypes.Structure):
    _fields_ = [
        ("dtype", c_int32),
        ("rows", c_int64),
        ("k", c_int64),
        ("data", c_void_p),
        ("offset", c_int64),
        ("scale", c_void_p),
        ("bias", c_void_p),
    ]


class DenseMatrix(ctypes.Structure):
    _fields_ = [
        ("dtype", c_int32),
        ("rows", c_int64),
        ("k", c_int64),
        ("data", c_void_p),
        ("scale", c_float),
        ("bias", c_void_p),
    ]


class ResidualNorm(ctypes.Structure):
    _fields_ = [
        ("residual", c_void_p),
        ("add", c_void_p),
        ("post_norm", c_void_p),
        ("scale", c_float),
        ("w", c_void_p),
        ("bias", c_void_p),
        ("eps", c_float),
        ("normed", c_void_p),
        ("centred", c_bool),
        ("not_finite", c_void_p),
    ]


class Rope(ctypes.Structure):
    _fields_ = [
        ("x", c_void_p),
        ("row_stride", c_int64),
        ("head_stride", c_int64),
        ("n_heads", c_int32),
        ("head_dim", c_int32),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("n_pairs", c_int32),
        ("consecutive", c_bool),
        ("scale", c_void_p),
    ]


class Router(ctypes.Structure):
    _fields_ = [
        ("selection_bias", c_void_p),
        ("n_experts", c_int32),
        ("n_used", c_int32),
        ("gating", c_int32),
        ("n_groups", c_int32),
        ("n_groups_used", c_int32),
        ("renormalize", c_bool),
        ("weights_scale", c_float),
    ]


class CacheCells(ctypes.Structure):
    _fields_ = [
        ("dtype", c_int32),
        ("elements", c_void_p),
        ("scales", c_void_p),
        ("head_stride", c_int64),
        ("cell_stride", c_int64),
    ]


def cells(on: Device, type_name: str, n_heads: int, n_cells: int, head_dim: int) -> CacheCells:
    """Room for keys or values of every KV head: undefined, and with space between the planes."""
    stride = cell_stride(type_name, head_dim)
    n = n_heads * (n_cells + 1) * stride
    scales = on.alloc(2 * n // 32) if type_name == "Q8_0" else None
    number = type_number(type_name)
    return CacheCells(number, on.alloc(n * ELEMENT_BYTES[type_name]), scales, (n_cells + 1) * stride, stride)


def cell_stride(type_name: str, head_dim: int) -> int:
    stride = load().et_cell_stride
    stride.restype = c_int64
    return int(stride(type_number(type_name), c_int64(head_dim)))


def put_cells(on: Device, type_name: str, x: np.ndarray) -> CacheCells:
    """x: float32 [n_heads][n_cells][head_dim], rounded on the CPU."""
    n_heads, n_cells, head_dim = x.shape
    rows = _testing.write_cache_rows("scalar", type_name.lower(), x.reshape(-1, head_dim).copy())
    by_cell = rows.reshape(n_heads, n_cells, -1).transpose(1, 0, 2).copy()
    to = cells(on, type_name, n_heads, n_cells, head_dim)
    size = by_cell.shape[2]
    on.run("copy_cells", on.put(by_cell), c_int64(size), n_heads, c_int64(0), c_int64(n_cells), ctypes.byref(to))
    return to


class TreeAttention(ctypes.Structure):
    _fields_ = [
        ("q", c_void_p),
        ("k", CacheCells),
        ("v", CacheCells),
        ("n_heads", c_int32),
        ("n_kv_heads", c_int32),
        ("head_dim_k", c_int32),
        ("head_dim_v", c_int32),
        ("first", c_void_p),
        ("base", c_void_p),
        ("n_prefix", c_void_p),
        ("tail", c_void_p),
        ("n_tail", c_void_p),
        ("tails", c_void_p),
        ("n_positions", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
        ("sinks", c_void_p),
        ("out", c_void_p),
    ]


def packed_layout(type_name: str, rows: int, k: int) -> PackedLayout:
    layout = PackedLayout()
    load().et_packed_layout(type_number(type_name), c_int64(rows), c_int64(k), ctypes.byref(layout))
    return layout


def pack(on: Device, type_name: str, weights: np.ndarray, k: int, at: int | None = None) -> int:
    """uint8 [rows, row bytes] in the file's layout, packed on the device; returns where."""
    rows = weights.shape[0]
    packed = at if at is not None else on.alloc(packed_layout(type_name, rows, k).bytes).value
    on.run("pack", type_number(type_name), on.put(weights), c_int64(rows), c_int64(k), c_void_p(packed))
    assert packed is not None
    return packed


def int8_rows(on: Device, x: np.ndarray, block: int) -> Int8Rows:
    """float32 [rows, n], quantised on the device."""
    n_rows, n = x.shape
    function = load().et_int8_rows_bytes
    function.restype = c_int64
    memory = on.alloc(function(c_int64(n_rows), c_int64(n), c_int64(block)))
    rows = Int8Rows()
    load().et_int8_rows(memory, c_int64(n_rows), c_int64(n), c_int64(block), ctypes.byref(rows))
    on.run("quantize", on.put(x), c_int64(n), c_int64(n_rows), c_int64(n), c_int64(block), ctypes.byref(rows))
    return rows


def product_input(on: Device, type_name: str, x: np.ndarray) -> ProductInput:
    block = activation_block(type_name)
    if block == 0:
        return ProductInput(f32=on.put(x), f32_stride=x.shape[1])
    return ProductInput(q=int8_rows(on, x, block))


def activation_block(type_name: str) -> int:
    """Elements to a scale of the activations that meet this format; 0: they are floats."""
    if type_name in ("F32", "F16", "BF16"):
        return 0
    return 256 if gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]][0] == 256 else 32
