"""Writes GGUF files byte by byte, correct ones and hostile ones, without the `gguf` package."""

from __future__ import annotations

import struct
import unicodedata
from collections.abc import Sequence

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
TYPE_NAMES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "array")
TYPE_NAMES += ("uint64", "int64", "float64")
_PACKING = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}

GGML_F32 = 0
GGML_Q8_0 = 8


def text(value: str | bytes, length: int | None = None) -> bytes:
    """A GGUF string; `length` is announced instead of the true one."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def scalar(kind: int, value: int | float | str | bytes) -> bytes:
    if kind == STRING:
        assert isinstance(value, (str, bytes))
        return text(value)
    return struct.pack("<" + _PACKING[kind], value)


def array(kind: int, values: Sequence[int | float | str | bytes], count: int | None = None) -> bytes:
    """The value of an array key; `count` is announced instead of the true one."""
    head = struct.pack("<IQ", kind, len(values) if count is None else count)
    return head + b"".join(scalar(kind, value) for value in values)


def key(name: str | bytes, kind: int, value: int | float | str | bytes) -> bytes:
    """One metadata entry. For an array, `value` is what `array` returns."""
    assert kind != ARRAY or isinstance(value, bytes)
    encoded = value if kind == ARRAY else scalar(kind, value)
    assert isinstance(encoded, bytes)
    return text(name) + struct.pack("<I", kind) + encoded


def tensor(
    name: str | bytes, ne: Sequence[int], kind: int = GGML_F32, offset: int = 0, n_dims: int | None = None
) -> bytes:
    """One row of the tensor directory; `offset` counts from the start of the tensor data."""
    head = text(name) + struct.pack("<I", len(ne) if n_dims is None else n_dims)
    return head + struct.pack(f"<{len(ne)}Q", *ne) + struct.pack("<IQ", kind, offset)


def gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = 32,
    magic: bytes = b"GGUF",
    n_keys: int | None = None,
    n_tensors: int | None = None,
) -> bytes:
    """A file. `alignment` pads the directory before `data`; it writes no key."""
    head = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(keys) if n_keys is None else n_keys,
    )
    head += b"".join(keys) + b"".join(tensors)
    padding = -len(head) % alignment if data else 0
    return head + bytes(padding) + data


def split_keys(no: int, count: int, n_tensors: int) -> list[bytes]:
    return [
        key("split.no", U16, no),
        key("split.count", U16, count),
        key("split.tensors.count", I32, n_tensors),
    ]


def split_name(stem: str, no: int, count: int) -> str:
    """The file name of part `no` (from 0)."""
    return f"{stem}-{no + 1:05d}-of-{count:05d}.gguf"


def is_safe_line(message: str) -> bool:
    """One line without characters that a terminal obeys or that hide what follows."""
    hidden = range(0x200B, 0x2010), range(0x202A, 0x202F), range(0x2060, 0x2070), range(0xFEFF, 0xFF00)
    return all(
        unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp") and not any(ord(c) in r for r in hidden)
        for c in message
    )
