"""The state of recurrent layers: whatever a sequence has been through, the bits are those of plain decoding, and going
back finds a checkpoint where one was promised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from expertree import InvalidRequestError, Model
from expertree._core import _testing
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import RECURRENT_ARCHITECTURES

Loader = Callable[..., Model]
TOKENS = np.random.default_rng(4).integers(0, 96, 1400).tolist()


def load(load_tiny: Loader, arch: str, **fields: Any) -> Model:
    return load_tiny({"arch": arch, "format": "Q8_0", "n_ctx": 2048, "n_layers": 3, **fields}, threads=2)


def state_of(model: Model, n_ctx: int = 2048) -> Any:
    return _testing.StateUnderTest(model._core, n_ctx)


def advance(state: Any, tokens: list[int], keep_all: bool = True) -> np.ndarray:
    logits = np.asarray(state.run(tokens, keep_all=keep_all))
    state.commit(list(range(len(tokens))))
    return logits


def plain(model: Model, tokens: list[int]) -> np.ndarray:
    state = state_of(model)
    return np.concatenate([advance(state, [token]) for token in tokens])


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape
    wrong = np.flatnonzero((got.view(np.uint32) != want.view(np.uint32)).any(1))
    assert wrong.size == 0, f"rows {wrong[:8]} differ by up to {np.abs(got - want).max()}"


@pytest.mark.parametrize("keep_all", [True, False])
@pytest.mark.parametrize("arch", RECURRENT_ARCHITECTURES)
def test_a_prompt_of_several_passes(arch: str, keep_all: bool, load_tiny: Loader) -> None:
    """A pass is 512 rows; the state goes from one to the next."""
    model = load(load_tiny, arch)
    tokens = TOKENS[:1100]
    want = plain(model, tokens[:1040])
    state = state_of(model)
    got = advance(state, tokens, keep_all)
    assert_same_bits(got[:1040], want)
    session = model.session(n_ctx=1200)
    session.prefill(tokens[:700])
    assert_same_bits(session.evaluate(tokens[700:]), got[700:])


@pytest.mark.parametrize("arch", RECURRENT_ARCHITECTURES)
def test_part_of_a_long_chain_is_kept(arch: str, load_tiny: Loader) -> None:
    """Its terms are replayed; more of them than one pass takes."""
    model = load(load_tiny, arch)
    want = advance(state_of(model), TOKENS[:900])
    state = state_of(model)
    advance(state, TOKENS[:10])
    state.run(TOKENS[10:760])
    state.commit(list(range(600)))
    assert state.n_committed == 610
    assert_same_bits(advance(state, TOKENS[610:700]), want[610:700])
    state.run(TOKENS[700:720])
    state.commit(list(range(5)))
    state.run(TOKENS[705:720])  # the terms of the five are applied by a batch that is then dropped
    state.rollback()
    assert_same_bits(advance(state, TOKENS[705:720]), want[705:720])


@pytest.mark.parametrize("arch", RECURRENT_ARCHITECTURES)
def test_a_tree_of_several_passes(arch: str, load_tiny: Loader) -> None:
    """600 rows: a long chain, with a second branch that parts from it early and one that parts late."""
    model = load(load_tiny, arch)
    parents = [*range(-1, 559), 40, *range(560, 589), 550, *range(590, 599)]
    tokens = TOKENS[:600]
    state = state_of(model)
    advance(state, TOKENS[1200:1210])
    got = np.asarray(state.run(tokens, parents))
    for path in ([*range(41), *range(560, 590)], [*range(551), *range(590, 600)]):
        want = advance(state_of(model), TOKENS[1200:1210] + [tokens[row] for row in path])[10:]
        assert_same_bits(got[path], want)
    path = [*range(41), *range(560, 570)]
    state.commit(path)
    want = advance(state_of(model), TOKENS[1200:1210] + [tokens[row] for row in path] + [7, 8])
    assert_same_bits(advance(state, [7, 8]), want[-2:])


@pytest.mark.parametrize("arch", RECURRENT_ARCHITECTURES)
def test_what_going_back_finds(arch: str, load_tiny: Loader) -> None:
    model = load(load_tiny, arch)
    want = advance(state_of(model), TOKENS[:800])

    def check(state: Any, length: int, found: int) -> None:
        assert state.truncate(length) == state.n_committed == found
        assert_same_bits(advance(state, TOKENS[found : length + 3]), want[found : length + 3])

    state = state_of(model)
    advance(state, TOKENS[:300])
    for token in TOKENS[300:310]:
        advance(state, [token])
    check(state.branch(), 310, 310)  # no way at all
    check(state.branch(), 309, 268)  # 32 before the end of the prompt
    check(state.branch(), 268, 268)
    check(state.branch(), 267, 0)
    state.run(TOKENS[310:330])
    state.commit(list(range(15)))
    check(state.branch(), 325, 325)
    check(state.branch(), 312, 312)  # terms not applied yet
    check(state.branch(), 310, 310)
    check(state.branch(), 309, 268)
    state.run(TOKENS[325:327])  # applies them
    state.rollback()
    check(state.branch(), 312, 268)
    for token in TOKENS[325:700]:
        advance(state, [token])
    check(state.branch(), 690, 524)  # 256 tokens after the last checkpoint, one is taken
    check(state.branch(), 500, 268)
    check(state, 3, 0)


def test_truncated_sessions_are_as_good_as_new(load_tiny: Loader) -> None:
    """Through a session, which runs again what is missing: plain steps and drafted ones."""
    model = load(load_tiny, "qwen35moe")
    for draft in (None, "ngram"):
        session = model.session(n_ctx=1024, draft=draft)
        session.prefill(TOKENS[:100] * 3)
        for _ in range(40):
            session.step(max_tokens=1 if draft is None else None)
        tokens = session.tokens
        for length in (len(tokens) - 1, len(tokens) - 5, 290, 268, 200, 1):
            session.truncate(length)
            fresh = model.session(n_ctx=1024)
            fresh.prefill(tokens[:length])
            for _ in range(3):
                assert session.step(max_tokens=1).tokens == fresh.step().tokens  # type: ignore[union-attr]


@settings(max_examples=40)
@given(data=st.data())
def test_any_history(data: st.DataObject, load_tiny: Loader) -> None:
    """Prompts, trees, partial commits, rollbacks, truncations and branches in any order."""
    model = load(load_tiny, data.draw(st.sampled_from(RECURRENT_ARCHITECTURES)), n_layers=2)
    state = state_of(model)
    kept: list[int] = []
    for _ in range(data.draw(st.integers(1, 8))):
        action = data.draw(st.sampled_from(["prompt", "chain", "tree", "truncate", "branch"]))
        if action == "prompt":
            more = TOKENS[: data.draw(st.sampled_from([1, 2, 20, 64, 100]))]
            advance(state, more)
            kept += more
        elif action in ("chain", "tree"):
            n = data.draw(st.integers(1, 9))
            parents = [i - 1 if action == "chain" else data.draw(st.integers(-1, i - 1)) for i in range(n)]
            tokens = data.draw(st.lists(st.integers(0, 95), min_size=n, max_size=n))
            state.run(tokens, parents)
            if data.draw(st.booleans()):
                state = state.branch()
            row, path = data.draw(st.integers(-1, n - 1)), []
            while row >= 0:
                path.append(row)
                row = parents[row]
            state.commit(path[::-1])
            kept += [tokens[r] for r in path[::-1]]
        elif action == "truncate":
            kept = kept[: state.truncate(data.draw(st.integers(0, len(kept))))]
        else:
            other = state.branch()
            advance(state, [1, 2, 3])
            state = other
        assert state.n_committed == len(kept)
    assert_same_bits(advance(state, [5, 6]), advance(state_of(model), [*kept, 5, 6])[-2:])


def test_memory_is_accounted(load_tiny: Loader) -> None:
    """Four states and the terms of 64 rows per recurrent layer, beside the KV cache of the layers with attention."""
    model = load(load_tiny, "qwen35moe")  # layers 0 and 2 are recurrent
    state = 2 * (4 * 16 * 16 + 3 * 128)
    terms = 2 * 64 * (128 + 2 * 4)
    kv = 1 * 2 * 2 * 24 * 100
    counted = model.memory(n_ctx=100)["kv_bytes"]
    assert 4 * (4 * state + terms + kv) <= counted < 4 * (4 * state + terms + kv) + 4096
    with pytest.raises(InvalidRequestError):
        state_of(model, 8).run(TOKENS[:9])
