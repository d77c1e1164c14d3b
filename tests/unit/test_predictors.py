"""Predictors of experts against sequences worked by hand."""

from __future__ import annotations

from collections.abc import Callable

import expertree
import numpy as np
import pytest
from drafters import CallDrafter, chain
from expertree import InvalidRequestError
from expertree._core import _testing
from tiny_model import TinyModel

NAMES = [name for name, argument, _ in _testing.predictor_infos() if not argument]
ASKS_THE_TARGET = ("router",)
Loader = Callable[..., expertree.Model]


def predictor(name: str, n_layers: int = 1, n_experts: int = 8, n_used: int = 2) -> _testing.PredictorUnderTest:
    return _testing.PredictorUnderTest(name, n_layers, n_experts, n_used)


def saw(p: _testing.PredictorUnderTest, *rows: tuple[int, list[int]], n_experts: int = 8) -> None:
    """Tokens with the experts of one layer, committed together."""
    p.observe([token for token, _ in rows], np.array([[experts] for _, experts in rows], np.int32), n_experts)


def layer0(rows: list[list[list[int]]]) -> list[set[int]]:
    return [set(row[0]) for row in rows]


def any_predictor(
    name: str, load_tiny: Loader, n_layers: int = 1, n_experts: int = 8, n_used: int = 2
) -> _testing.PredictorUnderTest:
    if name not in ASKS_THE_TARGET:
        return predictor(name, n_layers, n_experts, n_used)
    model = load_tiny({"n_layers": n_layers, "n_experts": n_experts, "n_used": n_used})
    return _testing.PredictorUnderTest(name, model._core)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_known_at_first(name: str, load_tiny: Loader) -> None:
    p = any_predictor(name, load_tiny)
    assert p.name == name
    assert p.predict(1, [2, 3]) == []
    p.observe([], np.empty((0, 1, 2), np.int32), 8)
    assert p.predict(1, [2, 3]) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_distinct_experts_that_exist(name: str, load_tiny: Loader) -> None:
    rng = np.random.default_rng(1)
    n_layers, n_experts, n_used = 5, 12, 4
    p = any_predictor(name, load_tiny, n_layers, n_experts, n_used)
    for _ in range(200):
        n = int(rng.integers(1, 6))
        used = np.array([[rng.permutation(n_experts)[:n_used] for _ in range(n_layers)] for _ in range(n)], np.int32)
        p.observe([int(t) for t in rng.integers(0, 30, n)], used, n_experts)
        if p.wants_hidden:
            p.observe_hidden(rng.standard_normal(64).tolist())
        tokens = [int(t) for t in rng.integers(0, 40, int(rng.integers(0, 33)))]
        rows = p.predict(int(rng.integers(0, 40)), tokens)
        assert len(rows) == len(tokens) + 1
        for row in rows:
            assert len(row) == n_layers
            for experts in row:
                assert len(set(experts)) == len(experts) == n_used
                assert all(0 <= e < n_experts for e in experts)


def test_last() -> None:
    p = predictor("last")
    saw(p, (10, [1, 2]), (11, [3, 4]))
    assert layer0(p.predict(10, [11, 12])) == [{3, 4}] * 3
    saw(p, (12, [5, 6]))
    assert layer0(p.predict(10, [])) == [{5, 6}]


def test_last_keeps_layers_apart() -> None:
    p = predictor("last", n_layers=2)
    p.observe([10], np.array([[[1, 2], [3, 4]]], np.int32), 8)
    assert p.predict(0, [7]) == [[[1, 2], [3, 4]]] * 2


def test_token_table() -> None:
    p = predictor("token-table")
    saw(p, (10, [1, 2]), (11, [3, 4]))
    # 12 was never seen: what the last token used.
    assert layer0(p.predict(10, [11, 12])) == [{1, 2}, {3, 4}, {3, 4}]
    # Of 10: 1 twice, 2 and 5 once: the later one.
    saw(p, (10, [1, 5]))
    assert layer0(p.predict(10, [])) == [{1, 5}]
    # 2 is used again: 1 twice, 2 twice.
    saw(p, (10, [2, 6]))
    assert layer0(p.predict(10, [])) == [{1, 2}]


def test_token_table_forgets_the_rarest_expert_of_a_token() -> None:
    """Room for four: 1, 2 with three uses, then 3, 4, then 5 takes the place of the older of 3 and 4."""
    p = predictor("token-table")
    for _ in range(3):
        saw(p, (10, [1, 2]))
    saw(p, (10, [3, 4]))
    saw(p, (10, [1, 5]))
    for _ in range(5):
        saw(p, (10, [3, 4]))
    assert layer0(p.predict(10, [])) == [{3, 4}]


def test_token_table_counts_do_not_overflow() -> None:
    p = predictor("token-table")
    tokens, used = [10] * 20000, np.tile(np.array([[[1, 2]]], np.int32), (20000, 1, 1))
    for _ in range(4):
        p.observe(tokens, used, 8)
    saw(p, (10, [3, 4]))
    assert layer0(p.predict(10, [])) == [{1, 2}]


def test_token_table_is_bounded() -> None:
    """64 layers of 16 entries of 4 bytes: 32 MiB hold 8192 tokens; the oldest make room."""
    n_layers, n_used = 64, 8
    p = predictor("token-table", n_layers, 128, n_used)
    row = np.tile(np.arange(n_used, dtype=np.int32), (1, n_layers, 1))
    p.observe([0], row + 100, 128)
    p.observe([9000], row + 50, 128)
    p.observe(list(range(1, 8191)), np.tile(row, (8190, 1, 1)), 128)
    assert set(p.predict(0, [9000])[0][0]) == set(range(100, 108))
    p.observe([20000], row + 20, 128)  # no room left: token 0 goes
    rows = p.predict(0, [9000, 20000])
    assert set(rows[0][0]) == set(range(20, 28))
    assert set(rows[1][0]) == set(range(50, 58))
    assert set(rows[2][63]) == set(range(20, 28))


def test_oracle_gives_what_it_was_fed() -> None:
    fed = np.array([[[1, 2]], [[3, 4]], [[5, 6]]], np.int32)
    assert layer0(_testing.oracle_predict(fed, 8, 0, [7, 8])) == [{1, 2}, {3, 4}, {5, 6}]
    with pytest.raises(InvalidRequestError, match="3 rows for a tree of 1"):
        _testing.oracle_predict(fed, 8, 0, [7])
    with pytest.raises(InvalidRequestError, match="0 rows"):
        _testing.oracle_predict(None, 8, 0, [7])


def routed(fields: dict[str, int], hidden: np.ndarray) -> np.ndarray:
    """Sorted experts [layers][n_used] that the routers choose where the residual stream is what ended in `hidden`."""
    tensors = TinyModel(**fields).float_tensors()
    state = hidden.astype(np.float64) / tensors["output_norm.weight"]
    state /= np.sqrt((state**2).mean() + 1e-5)
    rows = []
    for layer in range(fields["n_layers"]):
        scores = tensors[f"blk.{layer}.ffn_gate_inp.weight"] @ (state * tensors[f"blk.{layer}.ffn_norm.weight"])
        rows.append(np.sort(np.argsort(-scores)[: fields["n_used"]]))
    return np.array(rows)


def test_router_asks_about_the_last_known_hidden_state(load_tiny: Loader) -> None:
    fields = {"n_layers": 4, "n_experts": 16, "n_used": 3}
    model = load_tiny(fields)
    p = _testing.PredictorUnderTest("router", model._core)
    assert p.wants_hidden
    for tokens in ([5, 6, 7], [1, 2, 3, 4]):
        hidden = _testing.hidden_states(model._core, tokens, list(range(-1, len(tokens) - 1)), [], True)[1][-1]
        p.observe_hidden(hidden.tolist())
        rows = np.sort(np.array(p.predict(8, [9, 10])), -1)
        assert (rows == routed(fields, hidden)).all()


def test_router_in_a_session_follows_what_was_kept(load_tiny: Loader) -> None:
    fields = {"n_layers": 4, "n_experts": 16, "n_used": 3}
    model = load_tiny(fields)
    truth = model.generate([5, 6, 7], max_tokens=24, temperature=0.0, ignore_eos=True).tokens
    text = [5, 6, 7, *truth]

    def draft(history: list[int], limits: object) -> tuple[list[int], list[int], list[float]]:
        first, second, third = text[len(history) : len(history) + 3]
        return chain([first, second, (third + 1) % 96])  # two right, one wrong

    session = model.session(draft=CallDrafter(draft), select="all", predict="router", temperature=0.0)
    session.prefill(text[:3])
    seen = 0
    while len(session) < 20:
        before = session.tokens
        step = session.step()
        assert step is not None
        if step.tree.experts is None:
            continue
        kept = before[:-1]  # the root has not been run
        hidden = _testing.hidden_states(model._core, kept, list(range(-1, len(kept) - 1)), [], True)[1][-1]
        assert step.tree.experts.shape == (4, 4, 3)
        assert (np.sort(step.tree.experts, -1) == routed(fields, hidden)).all()
        seen += len(step.accepted) == 2
    assert seen > 3
    assert session.tokens == text[: len(session)]


def test_router_needs_a_target() -> None:
    with pytest.raises(InvalidRequestError, match=r"router.*there is none"):
        predictor("router")


def test_unknown_names() -> None:
    with pytest.raises(InvalidRequestError, match="unknown predictor 'crystal-ball'; known: last, token-table"):
        predictor("crystal-ball")
