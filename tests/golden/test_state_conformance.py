"""llama.cpp's numbers for what a state decides: logits after going back, and MTP blocks (tests/conformance).

The bounds are those of test_conformance.py: max abs 1e-3, rms 1e-4; experts and drafted tokens equal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import expertree
import numpy as np
import pytest
from expertree import _core
from expertree._core import _testing

FOLDER = Path(__file__).parent.parent / "conformance"
ROLLBACK_MODELS = ("qwen35moe", "qwen35", "qwen3next", "lfm2moe")
MTP_MODELS = ("qwen35moe-mtp", "glm4moe-mtp")


def load(name: str) -> tuple[expertree.Model, Any]:
    return expertree.Model(FOLDER / f"{name}.gguf", threads=2), np.load(FOLDER / f"{name}.npz")


def assert_near(got: np.ndarray, want: np.ndarray, what: str) -> None:
    error = np.asarray(got, np.float64) - want
    print(f"{what}: max error {np.abs(error).max():.1e}, rms {np.sqrt((error * error).mean()):.1e}")
    assert np.abs(error).max() < 1e-3
    assert np.sqrt((error * error).mean()) < 1e-4


@pytest.mark.parametrize("way", ["rollback", "truncate", "commit and truncate", "sibling branch", "branched session"])
@pytest.mark.parametrize("name", ROLLBACK_MODELS)
def test_going_back(name: str, way: str) -> None:
    """Wrong tokens, back, other tokens: the bits of a fresh run, which is llama.cpp's within bounds."""
    model, expected = load(name)
    tokens, wrong, right = (expected[key].tolist() for key in ("tokens", "wrong_tokens", "alt_tokens"))
    session = model.session()
    session.prefill(tokens)
    if way == "sibling branch":
        got = session.evaluate([*wrong, *right], [-1, 0, 1, -1, 3, 4])[3:]
    else:
        if way == "rollback":
            session.evaluate(wrong)
            session.rollback()
        elif way == "truncate":
            session.prefill(wrong)
            session.truncate(len(tokens))
        elif way == "commit and truncate":
            session.evaluate(wrong)
            session.commit([0, 1])
            session.truncate(len(tokens))
        else:
            other = session.branch()
            session.prefill(wrong)
            session = other
        got = session.evaluate(right)
    fresh = model.logits([*tokens, *right])[len(tokens) :]
    assert (got.view(np.uint32) == fresh.view(np.uint32)).all()
    assert_near(got, expected["alt_logits"], f"{name}, {way}")
    stale = model.logits([*tokens, *wrong, *right])[-3:]
    assert np.abs(stale - expected["alt_logits"]).max() > 1, "the vectors would not notice that nothing went back"


@pytest.mark.parametrize("name", MTP_MODELS)
def test_mtp_block(name: str) -> None:
    model, expected = load(name)
    tokens = expected["tokens"].tolist()
    _, hidden, logits = _testing.hidden_states(model._core, tokens, list(range(-1, len(tokens) - 1)), [], True)
    assert_near(logits, expected["logits"], f"{name}, logits")
    assert_near(hidden, expected["hidden"], f"{name}, hidden")
    ids, weights = model.routing(tokens)
    assert (np.sort(ids, -1) == np.sort(expected["experts"], -1)).all()
    assert np.abs(weights - expected["weights"]).max() < 1e-4
    session = model.session()
    session.prefill(tokens)
    assert [session.step().tokens[0] for _ in range(16)] == expected["greedy"].tolist()  # type: ignore[union-attr]

    drafter = _testing.DrafterUnderTest(model._core, "mtp", 512)
    drafter.keep_expansions()
    options = _core.SamplerOptions()
    rows = []
    for i, token in enumerate(tokens):
        drafter.draft(tokens[: i + 1], (1, 1, 1), options)
        rows.append(drafter.expansions()[0][2])
        drafter.observe([token], i, np.zeros((1, 0), np.float32), np.ascontiguousarray(hidden[i : i + 1]))
    assert_near(np.array(rows), expected["mtp_logits"], f"{name}, logits of the block")
    drafted = drafter.draft([*tokens, int(expected["draft_in"][0])], (4, 4, 1), options)[0]
    assert drafted == expected["draft"].tolist()
    assert_near(np.array([e[2] for e in drafter.expansions()]), expected["draft_logits"], f"{name}, drafting")
