"""Predictors of experts against sequences worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from expertree import InvalidRequestError
from expertree._core import _testing

NAMES = [name for name, argument, _ in _testing.predictor_infos() if not argument]


def predictor(name: str, n_layers: int = 1, n_experts: int = 8, n_used: int = 2) -> _testing.PredictorUnderTest:
    return _testing.PredictorUnderTest(name, n_layers, n_experts, n_used)


def saw(p: _testing.PredictorUnderTest, *rows: tuple[int, list[int]], n_experts: int = 8) -> None:
    """Tokens with the experts of one layer, committed together."""
    p.observe([token for token, _ in rows], np.array([[experts] for _, experts in rows], np.int32), n_experts)


def layer0(rows: list[list[list[int]]]) -> list[set[int]]:
    return [set(row[0]) for row in rows]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_known_at_first(name: str) -> None:
    p = predictor(name)
    assert p.name == name
    assert p.predict(1, [2, 3]) == []
    p.observe([], np.empty((0, 1, 2), np.int32), 8)
    assert p.predict(1, [2, 3]) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_distinct_experts_that_exist(name: str) -> None:
    rng = np.random.default_rng(1)
    n_layers, n_experts, n_used = 5, 12, 4
    p = predictor(name, n_layers, n_experts, n_used)
    for _ in range(200):
        n = int(rng.integers(1, 6))
        used = np.array([[rng.permutation(n_experts)[:n_used] for _ in range(n_layers)] for _ in range(n)], np.int32)
        p.observe([int(t) for t in rng.integers(0, 30, n)], used, n_experts)
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


def test_unknown_names() -> None:
    with pytest.raises(InvalidRequestError, match="unknown predictor 'crystal-ball'; known: last, token-table"):
        predictor("crystal-ball")
