"""Hidden states of the forward pass: what drafters read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import expertree
import numpy as np
import pytest
from expertree._core import _testing
from numpy_model import NumpyModel
from tiny_model import ARCHITECTURES, TinyModel

FIELDS: dict[str, Any] = {"n_layers": 3}


def chain(n: int) -> list[int]:
    return list(range(-1, n - 1))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_against_numpy(arch: str, load_tiny: Callable[..., expertree.Model]) -> None:
    fields = {**FIELDS, "arch": arch}
    tokens = np.random.default_rng(3).integers(0, 96, 11).tolist()
    model = load_tiny(fields)
    taps, last, logits = _testing.hidden_states(model._core, tokens, chain(11), [2, 0, 1, 2], True)
    residuals, hidden = NumpyModel(TinyModel(**fields)).hidden_states(tokens)
    for t, layer in enumerate([2, 0, 1, 2]):
        assert np.abs(taps[:, t] - residuals[:, layer]).max() < 1e-4, layer
    assert np.abs(last - hidden).max() < 1e-4
    assert (logits.view(np.uint32) == model.logits(tokens).view(np.uint32)).all()


def test_same_bits_in_any_batch(load_tiny: Callable[..., expertree.Model]) -> None:
    """A row of a tree, of a long batch (several chunks) and of a short one have the same hidden states."""
    model = load_tiny({**FIELDS, "format": "Q8_0"})._core
    tokens = np.random.default_rng(4).integers(0, 96, 1100).tolist()
    taps, last, _ = _testing.hidden_states(model, tokens, chain(1100), [1, 2], True)
    short, short_last, _ = _testing.hidden_states(model, tokens[:7], chain(7), [1, 2], True)
    assert taps[:7].tobytes() == short.tobytes()
    assert last[:7].tobytes() == short_last.tobytes()
    # A fork after row 3: row 4 is another child, row 5 goes on from row 3 as the chain does.
    tree = [*tokens[:4], 9, tokens[4]]
    forked, forked_last, _ = _testing.hidden_states(model, tree, [-1, 0, 1, 2, 3, 3], [1, 2], True)
    assert forked[5].tobytes() == taps[4].tobytes()
    assert forked_last[5].tobytes() == last[4].tobytes()
    assert taps[1099].any() and last[1099].any()


def test_nothing_asked_nothing_given(load_tiny: Callable[..., expertree.Model]) -> None:
    taps, last, _ = _testing.hidden_states(load_tiny(FIELDS)._core, [1, 2], [-1, 0], [], False)
    assert taps.size == 0 and last.size == 0


@pytest.mark.parametrize("layer", [-1, 3, 2**31 - 1])
def test_unknown_layer(layer: int, load_tiny: Callable[..., expertree.Model]) -> None:
    with pytest.raises(expertree.InvalidRequestError, match="layers 0 to 2"):
        _testing.hidden_states(load_tiny(FIELDS)._core, [1, 2], [-1, 0], [0, layer], False)


def test_evaluate_gives_them_on_request(load_tiny: Callable[..., expertree.Model]) -> None:
    model = load_tiny(FIELDS)
    tokens = np.random.default_rng(5).integers(0, 96, 9).tolist()
    session = model.session()
    session.prefill(tokens[:5])
    logits, hidden = session.evaluate(tokens[5:], hidden=True)
    session.rollback()
    assert (logits == session.evaluate(tokens[5:])).all()
    _, expected = NumpyModel(TinyModel(**FIELDS)).hidden_states(tokens)
    assert hidden.shape == (4, 64) and np.abs(hidden - expected[5:]).max() < 1e-4
