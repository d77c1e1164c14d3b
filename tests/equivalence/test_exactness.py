"""The exactness contract (X1, X3): logits have the same bits however a token is reached.

The oracle of each test is the plainest way: scalar kernels, one thread, one token at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from expertree import Model, Session, _core
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_model import ARCHITECTURES as RECORDED
from tiny_model import ARCHITECTURES, FORMATS

ISAS = _core.isa_names()
EXAMPLES = int(os.environ.get("EXPERTREE_EXAMPLES", "60"))  # of each property; more for a long run
Loader = Callable[..., Model]


def plain_logits(model: Model, tokens: list[int]) -> np.ndarray:
    """One token at a time: float32 (n, n_vocab)."""
    session = model.session(n_ctx=max(1, len(tokens)))
    rows = []
    for token in tokens:
        rows.append(session.evaluate([token])[0])
        session.commit([0])
    return np.array(rows)


def assert_same_bits(got: np.ndarray, expected: np.ndarray, what: str = "") -> None:
    different = np.flatnonzero((got.view(np.uint32) != expected.view(np.uint32)).reshape(len(expected), -1).any(1))
    assert different.size == 0, f"{what}: rows {different[:8]} differ by up to {np.abs(got - expected).max()}"


def ids(draw: Any, n_vocab: int, low: int, high: int) -> list[int]:
    return draw(st.lists(st.integers(0, n_vocab - 1), min_size=low, max_size=high))


MODELS = st.sampled_from(
    [{"arch": arch, "format": form} for arch in ARCHITECTURES for form in ("F32", "Q8_0", "Q4_1")]
    + [{"arch": "qwen3moe", "format": form} for form in FORMATS]
    + [{"arch": arch, "format": "Q8_0"} for arch in RECORDED]
)
CACHES = st.sampled_from(["f32", "f32", "f16", "q8_0"])
CASES = [(arch, form) for arch in ARCHITECTURES for form in FORMATS]
CASES += [(arch, form) for arch in RECORDED for form in ("F32", "Q8_0")]


def draw_model(draw: Any, load_tiny: Loader) -> Model:
    threads, isa = draw(st.integers(1, 4)), draw(st.sampled_from(ISAS))
    return load_tiny(draw(MODELS), threads=threads, isa=isa, cache_type=draw(CACHES))


@pytest.mark.parametrize(("arch", "form"), CASES)
def test_batch_threads_and_isa_equal_plain(arch: str, form: str, load_tiny: Loader) -> None:
    """Every architecture in every format: a batch on every instruction set and 3 threads, against the oracle."""
    fields = {"arch": arch, "format": form}
    tokens = np.random.default_rng(7).integers(0, 96, 17).tolist()
    expected = plain_logits(load_tiny(fields, isa="scalar", threads=1), tokens)
    assert np.isfinite(expected).all() and expected.std() > 0.1
    for isa in ISAS:
        got = load_tiny(fields, isa=isa, threads=3).logits(tokens)
        assert_same_bits(got, expected, f"{arch} {form} on {isa}")


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_any_chunking(data: st.DataObject, load_tiny: Loader) -> None:
    model = draw_model(data.draw, load_tiny)
    tokens = ids(data.draw, 96, 1, 80)
    expected = plain_logits(model, tokens)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(tokens) - 1)), max_size=6)))
    session = model.session(n_ctx=len(tokens))
    begin, got = 0, []
    for end in [*cuts, len(tokens)]:
        if end > begin:
            got.append(session.evaluate(tokens[begin:end]))
            session.commit(range(end - begin))
        begin = end
    assert_same_bits(np.concatenate(got), expected)


@st.composite
def trees(draw: st.DrawFn, n_vocab: int = 96, max_rows: int = 24) -> tuple[list[int], list[int]]:
    n = draw(st.integers(1, max_rows))
    tokens = draw(st.lists(st.integers(0, n_vocab - 1), min_size=n, max_size=n))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    return tokens, parents


def path_to(parents: list[int], row: int) -> list[int]:
    path = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]


@settings(max_examples=EXAMPLES)
@given(data=st.data(), tree=trees())
def test_any_tree(data: st.DataObject, tree: tuple[list[int], list[int]], load_tiny: Loader) -> None:
    """Each row of a tree has the bits of its own path run plainly."""
    model = draw_model(data.draw, load_tiny)
    tokens, parents = tree
    prompt = ids(data.draw, 96, 0, 40)
    session = model.session(n_ctx=len(prompt) + len(tokens))
    if prompt:
        session.prefill(prompt)
    got = session.evaluate(tokens, parents)
    for row in range(len(tokens)):
        path = [tokens[r] for r in path_to(parents, row)]
        expected = plain_logits(model, prompt + path)[-1:]
        assert_same_bits(got[row : row + 1], expected, f"row {row} of {parents}")


@pytest.mark.parametrize("arch", RECORDED)
def test_going_back_in_every_architecture(arch: str, load_tiny: Loader) -> None:
    """Chunks, a tree that forks at its third row, a commit of one branch, rows dropped, a shorter length: windows and
    compressed pasts are as after a plain run."""
    model = load_tiny({"arch": arch, "format": "Q8_0"}, threads=2)
    tokens = np.random.default_rng(19).integers(0, 96, 40).tolist()
    session = model.session(n_ctx=64)
    session.prefill(tokens[:9])
    session.prefill(tokens[9:20])
    branch, parents = [*tokens[20:26], 7, 8, 9], [-1, 0, 1, 2, 3, 4, 2, 6, 7]
    got = session.evaluate(branch, parents)
    session.commit([0, 1, 2, 6, 7, 8])
    other = [*tokens[:23], 7, 8, 9]
    expected = plain_logits(model, other)
    assert_same_bits(got[[0, 1, 2, 6, 7, 8]], expected[20:], "the branch that is kept")
    assert_same_bits(got[3:6], plain_logits(model, tokens[:26])[23:], "the branch that is dropped")
    session.evaluate(tokens[30:35])
    session.rollback()
    assert_same_bits(session.evaluate([3, 4]), plain_logits(model, [*other, 3, 4])[26:], "after rows dropped")
    session.rollback()
    session.truncate(14)
    again = session.branch()
    assert_same_bits(again.evaluate(tokens[14:30]), plain_logits(model, tokens[:30])[14:], "after a shorter length")


def step_like_plain(session: Session, model: Model, kept: list[int]) -> list[int]:
    """One greedy step, which must be the one that plain logits give: [token]."""
    step = session.step()
    assert step is not None
    assert step.tokens == [int(plain_logits(model, kept)[-1].argmax())]
    return step.tokens


@pytest.mark.parametrize("arch", [*ARCHITECTURES, *RECORDED])
def test_what_a_prompt_leaves(arch: str, load_tiny: Loader) -> None:
    """Only its last row goes all the way. It gives the next token, and the others are seen by later ones."""
    model = load_tiny({"arch": arch, "format": "Q8_0"}, threads=2)
    tokens = np.random.default_rng(29).integers(0, 96, 23).tolist()
    session = model.session(n_ctx=64)
    for begin, end in ((0, 1), (1, 10), (10, 23)):
        session.prefill(tokens[begin:end])
        following = session.branch()
        kept = tokens[:end] + step_like_plain(following, model, tokens[:end])
        assert_same_bits(following.evaluate([3, 4]), plain_logits(model, [*kept, 3, 4])[end + 1 :], f"after {end}")


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_any_sequence_of_commit_rollback_truncate_branch(data: st.DataObject, load_tiny: Loader) -> None:
    """A session that has been through anything is as good as new."""
    model = draw_model(data.draw, load_tiny)
    session = model.session(n_ctx=256)
    kept: list[int] = []
    for _ in range(data.draw(st.integers(1, 6))):
        action = data.draw(st.sampled_from(["prefill", "commit", "rollback", "truncate", "branch", "step"]))
        if action == "prefill":
            more = ids(data.draw, 96, 1, 20)
            session.prefill(more)
            kept += more
        elif action in ("commit", "rollback"):
            tokens, parents = data.draw(trees(max_rows=10))
            session.evaluate(tokens, parents)
            if data.draw(st.booleans()):  # a branch takes the pending rows along
                other = session.branch()
                session.rollback()
                session.prefill([1, 2, 3])
                session = other
            if action == "rollback":
                session.rollback()
                continue
            path = path_to(parents, data.draw(st.integers(-1, len(tokens) - 1)))
            session.commit(path)
            kept += [tokens[r] for r in path]
        elif action == "truncate":
            length = data.draw(st.integers(0, len(kept)))
            session.truncate(length)
            kept = kept[:length]
        elif action == "branch":
            other = session.branch()
            session.prefill([1, 2, 3])  # what happens to one is nothing to the other
            session = other
        elif kept:
            kept += step_like_plain(session, model, kept)
    assert session.tokens == kept
    probe = ids(data.draw, 96, 1, 3)
    got = session.evaluate(probe)
    assert_same_bits(got, plain_logits(model, kept + probe)[len(kept) :])
    session.rollback()
    if kept:
        step_like_plain(session, model, kept)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_same_text_with_any_threads_isa_and_chunking(temperature: float, load_tiny: Loader) -> None:
    """X2 without drafting: one seed, one text."""
    fields = {"arch": "qwen3moe", "format": "Q8_0"}
    prompt = list(range(20))
    texts = []
    for isa in ISAS:
        for threads in (1, 2, 4):
            session: Session = load_tiny(fields, isa=isa, threads=threads).session(temperature=temperature, seed=7)
            session.prefill(prompt[:threads])
            session.prefill(prompt[threads:])
            texts.append([session.step().tokens[0] for _ in range(40)])  # type: ignore[union-attr]
    assert all(text == texts[0] for text in texts)


def test_a_prefill_longer_than_one_chunk(load_tiny: Loader) -> None:
    """Forward cuts a batch into pieces of 512 rows."""
    model = load_tiny({"arch": "qwen3moe", "format": "Q8_0", "n_ctx": 2048}, threads=2)
    tokens = np.random.default_rng(3).integers(0, 96, 1100).tolist()
    whole = model.logits(tokens)
    session = model.session(n_ctx=1100)
    session.prefill(tokens[:300])
    assert_same_bits(session.evaluate(tokens[300:]), whole[300:])
    assert_same_bits(whole[:40], plain_logits(model, tokens[:40]))
