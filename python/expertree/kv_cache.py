"""Formats of the KV cache: their names, and how many bytes a file's keys and values would take."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from expertree.errors import InvalidRequestError

# Bytes of a block, elements of a block. The elements of a head are kept in whole blocks.
_BLOCKS = {"f32": (4, 1), "f16": (2, 1), "q8_0": (34, 32)}
CACHE_TYPES = tuple(_BLOCKS)

_KV_WEIGHT = re.compile(r"^blk\.(\d{1,6})\.attn_(k|v|kv_a_mqa)\.weight$")


def cache_types(value: str | tuple[str, str]) -> tuple[str, str]:
    """(keys, values) of one name for both, or of a pair.

    Raises:
        InvalidRequestError: not names of formats.
    """
    names = (value, value) if isinstance(value, str) else value
    if not isinstance(names, (tuple, list)) or len(names) != 2 or any(name not in CACHE_TYPES for name in names):
        raise InvalidRequestError(
            f"cache_type is {value!r}; expected one of {', '.join(CACHE_TYPES)}, or a pair (keys, values)"
        )
    return names[0], names[1]


def kv_bytes_per_token(tensors: Iterable[Any], facts: Any, types: tuple[str, str]) -> float | None:
    """Bytes that one token adds in all layers together; None when the file does not say enough. Sliding windows are not
    taken off. Exact where heads are a multiple of a block's elements."""
    widths = _kv_widths(tensors, facts)
    if widths is None:
        return None
    return sum(width * _BLOCKS[name][0] / _BLOCKS[name][1] for width, name in zip(widths, types, strict=True))


def _kv_widths(tensors: Iterable[Any], facts: Any) -> tuple[int, int] | None:
    """Numbers that one token adds to keys and to values, in all layers together."""
    rows: dict[int, dict[str, int]] = {}
    for tensor in tensors:
        match = _KV_WEIGHT.match(tensor.name)
        if match is not None and len(tensor.shape) == 2:
            rows.setdefault(int(match[1]), {})[match[2]] = tensor.shape[1]
    if rows:
        # Latent attention keeps one joint row, as keys; a layer without its own values uses the keys.
        joint = [row["kv_a_mqa"] for row in rows.values() if "kv_a_mqa" in row]
        pairs = [(row.get("k", 0), row.get("v", row.get("k", 0))) for row in rows.values() if "kv_a_mqa" not in row]
        return sum(joint) + sum(k for k, _ in pairs), sum(v for _, v in pairs)
    n_layers, width = facts.arch_int("block_count"), facts.arch_int("embedding_length")
    n_heads, n_kv_heads = facts.arch_ints("attention.head_count"), facts.arch_ints("attention.head_count_kv")
    if n_layers is None or width is None or n_heads is None or _largest(n_heads) < 1:
        return None
    heads, kv_heads = _largest(n_heads), _largest(n_kv_heads if n_kv_heads is not None else n_heads)
    n_rows = max(0, n_layers * kv_heads)
    key = facts.arch_int("attention.key_length") or width // heads
    value = facts.arch_int("attention.value_length") or width // heads
    return n_rows * max(0, key), n_rows * max(0, value)


def _largest(value: int | list[int]) -> int:
    return max(value) if isinstance(value, list) else value
