"""The exactness contract with every format of the KV cache, in every architecture: a key or a value is rounded once,
when it is written, so that chunks, trees, going back, threads and instruction sets change no bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from expertree import Model
from recorded_model import ARCHITECTURES as RECORDED
from test_exactness import ISAS, assert_same_bits, plain_logits
from tiny_model import ARCHITECTURES

Loader = Callable[..., Model]
TYPES: list[Any] = ["f16", "q8_0", ("q8_0", "f16"), ("f32", "q8_0")]
ALL = [*ARCHITECTURES, *RECORDED]
# Two of the four in each architecture, in turn; both plain ones everywhere.
CASES = [(arch, kind) for i, arch in enumerate(ALL) for kind in ("f16", "q8_0", TYPES[2 + i % 2])]


@pytest.mark.parametrize(("arch", "kind"), CASES, ids=str)
def test_any_way_to_a_token(arch: str, kind: Any, load_tiny: Loader) -> None:
    """A batch on every instruction set, chunks, a forked tree, a commit of one branch, rows dropped, a shorter length,
    a branched session: the bits of one token after another on the plain kernels."""
    fields = {"arch": arch, "format": "Q8_0"}
    tokens = np.random.default_rng(23).integers(0, 96, 40).tolist()
    oracle = load_tiny(fields, isa="scalar", threads=1, cache_type=kind)
    expected = plain_logits(oracle, tokens)
    for isa in ISAS:
        got = load_tiny(fields, isa=isa, threads=3, cache_type=kind).logits(tokens)
        assert_same_bits(got, expected, f"{arch} {kind} on {isa}")

    session = load_tiny(fields, threads=2, cache_type=kind).session(n_ctx=64)
    session.prefill(tokens[:9])
    session.prefill(tokens[9:20])
    rows, parents = [*tokens[20:26], 7, 8, 9], [-1, 0, 1, 2, 3, 4, 2, 6, 7]
    got = session.evaluate(rows, parents)
    assert_same_bits(got[:6], expected[20:26], "the first branch")
    session.commit([0, 1, 2, 6, 7, 8])
    other = [*tokens[:23], 7, 8, 9]
    assert_same_bits(got[[6, 7, 8]], plain_logits(oracle, other)[23:], "the second branch")
    session.evaluate(tokens[30:35])
    session.rollback()
    session.truncate(14)
    again = session.branch()
    assert_same_bits(again.evaluate(tokens[14:40]), expected[14:], "after a shorter length, in a copy")


def test_types_differ(load_tiny: Loader) -> None:
    """Else the tests above would compare F32 with itself."""
    tokens = np.random.default_rng(5).integers(0, 96, 24).tolist()
    logits = {kind: load_tiny({"arch": "qwen3moe"}, cache_type=kind).logits(tokens) for kind in ("f32", *TYPES)}
    errors = {kind: float(np.abs(value - logits["f32"]).max()) for kind, value in logits.items()}
    assert errors["f32"] == 0 and 1e-5 < errors["f16"] < 0.05 and 4 * errors["f16"] < errors["q8_0"] < 2
    assert len({value.tobytes() for value in logits.values()}) == len(logits)
