"""Tree attention against the scalar kernel: bits, whatever rows go together."""

from __future__ import annotations

import ctypes
from ctypes import c_int64
from dataclasses import dataclass

import numpy as np
import pytest
from expertree._core import _testing
from kernels import CacheCells, CudaError, TreeAttention, call, cells, device, load, put_cells
from weights import assert_same_bits


@dataclass
class Case:
    n_heads: int
    n_kv_heads: int
    head_dim_k: int
    head_dim_v: int
    n_prefix: int
    tails: list[list[int]]  # of each row, cells from n_prefix on
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    latent: bool = False  # values are the leading elements of the keys
    types: tuple[str, str] = ("F32", "F32")  # of keys and values

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        rng = np.random.default_rng(self.n_prefix * 7 + self.n_heads)
        n_cells = self.n_prefix + 1 + max((max(t, default=0) for t in self.tails), default=0)
        q = rng.standard_normal((len(self.tails), self.n_heads, self.head_dim_k)).astype(np.float32)
        k = rng.standard_normal((self.n_kv_heads, n_cells, self.head_dim_k)).astype(np.float32)
        v = rng.standard_normal((self.n_kv_heads, n_cells, self.head_dim_v)).astype(np.float32)
        sinks = rng.standard_normal(self.n_heads).astype(np.float32) if self.sinks else None
        return q, k, k[..., : self.head_dim_v].copy() if self.latent else v, sinks

    def tail_cells(self, row: int) -> np.ndarray:
        return np.array([self.n_prefix + t for t in self.tails[row]], np.int32)

    def first(self, row: int) -> int:
        n = self.n_prefix + len(self.tails[row])
        return max(0, n - self.window) if self.window else 0


def attend(case: Case, rows: list[int], room: int = 0) -> np.ndarray:
    """room: with a grid for more rows and paths longer by so many, of which nothing may be read."""
    q, k, v, sinks = case.arrays()
    tails = [case.tail_cells(row) for row in rows]
    n, more = len(rows), 3 if room else 0

    def table(values: list[int]) -> np.ndarray:
        return np.array(values + [1 << 30] * more, np.int32)

    begins = np.cumsum([0, *(len(t) for t in tails)])[:-1]
    with device() as on:
        keys = put_cells(on, case.types[0], k)
        args = TreeAttention(
            q=on.put(np.concatenate([q[rows], np.full((more, *q.shape[1:]), np.nan, np.float32)])),
            k=keys,
            v=keys if case.latent else put_cells(on, case.types[1], v),
            n_heads=case.n_heads,
            n_kv_heads=case.n_kv_heads,
            head_dim_k=case.head_dim_k,
            head_dim_v=case.head_dim_v,
            first=on.put(table([case.first(row) for row in rows])) if case.window else None,
            base=on.put(table([0] * n)),
            n_prefix=on.put(table([case.n_prefix] * n)),
            tail=on.put(table([int(begin) for begin in begins])),
            n_tail=on.put(table([len(t) for t in tails])),
            tails=on.put(np.concatenate([*tails, [-1]]).astype(np.int32)),
            n_positions=case.n_prefix + max(len(t) for t in tails) + room,
            scale=0.125,
            softcap=case.softcap,
            sinks=on.put(sinks),
            out=on.put(np.zeros((n + more, case.n_heads, case.head_dim_v), np.float32)),
        )
        size = load().et_attention_scratch_bytes
        size.restype = c_int64
        scratch = on.alloc(size(ctypes.byref(args), c_int64(n + more)))
        n_rows = on.put(np.array([n], np.int32)) if room else None
        on.run("attention", ctypes.byref(args), c_int64(n + more), scratch, n_rows)
        out = on.get(args.out, (n + more, case.n_heads, case.head_dim_v))
        assert not out[n:].any()
        return out[:n]


def expected(case: Case, row: int) -> np.ndarray:
    q, k, v, sinks = case.arrays()
    group = case.n_heads // case.n_kv_heads
    out = []
    for head in range(case.n_kv_heads):
        heads = slice(head * group, (head + 1) * group)
        out.append(
            _testing.attend(
                "scalar", q[row, heads].copy(), k[head], v[head], case.n_prefix, case.tail_cells(row), 0.125,
                first=case.first(row), softcap=case.softcap, sinks=None if sinks is None else sinks[heads].copy(),
                k_type=case.types[0].lower(), v_type=case.types[1].lower(),
            )
        )  # fmt: skip
    return np.concatenate(out)


TREE = [[0], [0, 1], [0, 2], [0, 2, 4], [3], [3, 5, 6, 7, 8]]
CASES = {
    "plain": Case(4, 4, 64, 64, 40, TREE),
    "no prefix": Case(4, 2, 32, 32, 0, TREE),
    "group of three": Case(6, 2, 80, 80, 31, TREE),
    "group of sixteen": Case(16, 1, 128, 128, 64, TREE),
    "window": Case(4, 2, 64, 64, 100, TREE, window=37),
    "window inside the tail": Case(4, 2, 64, 64, 100, TREE, window=2),
    "soft cap and sinks": Case(4, 2, 64, 64, 33, TREE, softcap=20.0, sinks=True),
    "sinks and window": Case(8, 1, 64, 64, 70, TREE, window=33, sinks=True),
    "latent": Case(10, 1, 72, 64, 50, TREE, latent=True),
    "narrow": Case(2, 1, 4, 4, 5, TREE),
    "wide": Case(2, 1, 576, 512, 20, TREE, latent=True),
    "values of another width": Case(4, 2, 48, 36, 65, TREE),
    "long": Case(2, 1, 16, 16, 1100, [[0]]),
}
# Heads of whole and of broken blocks, longer than the tiles in flight, and the two kinds mixed.
for types in (("F16", "F16"), ("Q8_0", "Q8_0"), ("F16", "Q8_0"), ("Q8_0", "F32")):
    kinds = " and ".join(types)
    CASES[f"{kinds} cells"] = Case(4, 2, 64, 64, 40, TREE, window=37, types=types)
    CASES[f"{kinds}, broken blocks"] = Case(6, 2, 48, 36, 200, TREE, softcap=20.0, sinks=True, types=types)
    CASES[f"{kinds}, narrow"] = Case(2, 1, 4, 4, 5, TREE, types=types)
CASES["latent in half"] = Case(10, 1, 72, 64, 50, TREE, latent=True, types=("F16", "F16"))
CASES["latent in int8"] = Case(10, 1, 72, 64, 50, TREE, latent=True, types=("Q8_0", "Q8_0"))


@pytest.mark.parametrize("name", CASES)
def test_attention(name: str, order: str) -> None:
    case = CASES[name]
    rows = list(range(len(case.tails)))
    together = attend(case, rows)
    for row in rows:
        assert_same_bits(together[row], expected(case, row), f"{name}, row {row}")
    assert_same_bits(attend(case, rows[-1:])[0], together[-1], f"{name}: alone")
    assert_same_bits(attend(case, rows, room=70), together, f"{name}: with room")


@pytest.mark.parametrize("name", ["long", "sinks and window"])
def test_more_positions_than_shared_memory_has_maxima_for(name: str, order: str) -> None:
    case = CASES[name]
    for row in range(len(case.tails)):
        assert_same_bits(attend(case, [row], room=200_000)[0], expected(case, row), f"{name}, row {row}")


def test_many_rows(order: str) -> None:
    case = Case(4, 2, 32, 32, 10, [[i] for i in range(40)], window=20)
    got = attend(case, list(range(40)))
    for row in (0, 17, 39):
        assert_same_bits(got[row], expected(case, row))


def test_rows_of_several_sequences(order: str) -> None:
    """Each has its own first cell, prefix and tail."""
    case = Case(4, 2, 32, 32, 140, [[]] * 8)
    q, k, v, _ = case.arrays()
    base, n_seen = [0, 0, 71, 71, 5, 100, 139, 64], [70, 69, 64, 33, 32, 31, 2, 1]
    tails: list[list[int]] = [[], [3, 90], [], [70], [1, 2, 3], [], [0], []]
    begins = np.cumsum([0, *(len(t) for t in tails)])[:-1]
    listed = [cell for tail in tails for cell in tail]
    with device() as on:
        put = [on.put(np.array(x, np.int32)) for x in (base, n_seen, begins, [len(t) for t in tails], listed)]
        args = TreeAttention(
            q=on.put(q), k=put_cells(on, "F32", k), v=put_cells(on, "F32", v), n_heads=4, n_kv_heads=2,
            head_dim_k=32, head_dim_v=32, base=put[0], n_prefix=put[1], tail=put[2], n_tail=put[3], tails=put[4],
            n_positions=71, scale=0.125, out=on.alloc(8 * 4 * 32 * 4),
        )  # fmt: skip
        sizes = [getattr(load(), f"et_attention_scratch_{what}") for what in ("bytes", "limit")]
        for size in sizes:
            size.restype = c_int64
        scratch, limit = (int(size(ctypes.byref(args), c_int64(8))) for size in sizes)
        assert scratch <= limit
        on.run("attention", ctypes.byref(args), c_int64(8), on.alloc(scratch), None)
        got = on.get(args.out, (8, 4, 32))
    for row, n in enumerate(n_seen):
        cells = np.array([*range(base[row], base[row] + n), *tails[row]], np.int32)
        for head in range(2):
            heads = slice(2 * head, 2 * head + 2)
            want = _testing.attend("scalar", q[row, heads].copy(), k[head], v[head], 0, cells, 0.125)
            assert_same_bits(got[row, heads], want, f"row {row}")


def test_the_limit_of_scratch_memory_holds_for_shorter_paths() -> None:
    limit, size = load().et_attention_scratch_limit, load().et_attention_scratch_bytes
    limit.restype = size.restype = c_int64
    for n_heads, longest, n_rows in ((4, 1024, 512), (32, 4608, 512), (64, 131072, 512), (2, 400_000, 8), (1, 40, 3)):
        args = TreeAttention(n_heads=n_heads, n_positions=longest)
        most = int(limit(ctypes.byref(args), c_int64(n_rows)))
        for n_positions in sorted({1, 33, longest // 3, longest // 2 + 7, longest - 1, longest}):
            shorter = TreeAttention(n_heads=n_heads, n_positions=n_positions)
            for rows in (1, 2, n_rows // 2, n_rows):
                assert int(size(ctypes.byref(shorter), c_int64(rows))) <= most


def test_what_attention_cannot_be() -> None:
    with device() as on:

        def refused(n_heads: int = 4, n_kv: int = 2, stride: int = 8, dtype: int = 0) -> None:
            row = cells(on, "F32", 2, 1, 8)
            values = CacheCells(dtype, row.elements, None, 64, stride)
            args = TreeAttention(n_heads=n_heads, n_kv_heads=n_kv, head_dim_k=8, head_dim_v=8, k=row, v=values)
            with pytest.raises(CudaError):
                call("attention", ctypes.byref(args), c_int64(1), None, None, on.stream)

        refused(n_heads=3)
        refused(n_kv=0)
        refused(stride=10)  # not whole pieces of 16 bytes
        refused(stride=4)  # less than a head
        refused(dtype=2)
