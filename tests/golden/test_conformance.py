"""Tiny models with llama.cpp's numbers (tests/conformance, from the conformance set; CC0), one test per file.

F32 files, and quantised files in the reference mode: max abs 1e-3, rms 1e-4 on logits; experts and greedy text equal.
Quantised files with int8 activations: rms at most 1.25 times that of llama.cpp's own rounding (`logits_native`).
Positions from the first one on whose routing differs from the exact one are left out of that figure: which side of a
near tie the rounding falls on is chance. They are counted and printed (pytest -s), and there may be no more of them
than llama.cpp itself plus one. Where that leaves nothing, routing must be llama.cpp's own and all positions count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import expertree
import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent / "conformance"
# Every recorded model of an architecture: a new file in the folder is enough to be tested.
ARCHITECTURES = sorted(path.stem for path in FOLDER.glob("*.npz") if not path.stem.startswith("quant-"))
QUANTISED_ARCHITECTURES = [n for n in ARCHITECTURES if "logits_native" in np.load(FOLDER / f"{n}.npz").files]
QUANTISED = [
    *"F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4".split(),
    *"IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S TQ1_0 TQ2_0 NVFP4 NVFP4-scaled".split(),
]


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def greedy(model: expertree.Model, tokens: np.ndarray, n: int = 16) -> list[int]:
    session = model.session()
    session.prefill(tokens)
    return [step.tokens[0] for step in (session.step() for _ in range(n)) if step is not None]


def differing_decisions(ids: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Positions (bool, (n,)) at which some layer chose another set of experts."""
    return (np.sort(ids, -1) != np.sort(expected, -1)).any((0, 2))


def assert_exact(model: expertree.Model, expected: Any) -> None:
    tokens = expected["tokens"]
    error = model.logits(tokens) - expected["logits"]
    print(f"{model.path.stem}: max error {np.abs(error).max():.1e}, rms {rms(error):.1e}")
    assert np.abs(error).max() < 1e-3
    assert rms(error) < 1e-4
    assert greedy(model, tokens) == expected["greedy"].tolist()
    if model.n_experts:
        ids, weights = model.routing(tokens)
        same_order = ids == expected["experts"]
        if not same_order.all():  # neighbours closer than 1e-4 may change places
            chosen = np.take_along_axis(expected["router_scores"], ids.astype(np.int64), -1)
            wanted = np.take_along_axis(expected["router_scores"], expected["experts"].astype(np.int64), -1)
            assert np.abs(chosen - wanted)[~same_order].max() < 1e-4
        assert not differing_decisions(ids, expected["experts"]).any()
        assert np.abs(weights - expected["weights"]).max() < 1e-4


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architecture(name: str) -> None:
    activations = "f32" if name in QUANTISED_ARCHITECTURES else "int8"
    assert_exact(
        expertree.Model(FOLDER / f"{name}.gguf", activations=activations),
        np.load(FOLDER / f"{name}.npz"),
    )


def test_every_architecture_is_recorded() -> None:
    """A row in the table of architectures without a recorded model is not covered by the tests here."""
    readers = [expertree._core.GgufReader(str(FOLDER / f"{name}.gguf")) for name in ARCHITECTURES]
    recorded = {reader.value("general.architecture") for reader in readers}
    assert set(expertree._core.architecture_names()) == recorded


@pytest.mark.parametrize("form", QUANTISED)
def test_quantised_model_in_reference_mode(form: str) -> None:
    model = expertree.Model(FOLDER / f"quant-{form}.gguf", activations="f32")
    assert_exact(model, np.load(FOLDER / f"quant-{form}.npz"))


@pytest.mark.parametrize("name", [*(f"quant-{form}" for form in QUANTISED), *QUANTISED_ARCHITECTURES])
def test_quantised_model_with_int8_activations(name: str) -> None:
    model = expertree.Model(FOLDER / f"{name}.gguf")
    expected = np.load(FOLDER / f"{name}.npz")
    tokens, exact = expected["tokens"], expected["logits"]

    ids, _ = model.routing(tokens)
    flipped = differing_decisions(ids, expected["experts"])
    flipped_native = differing_decisions(expected["experts_native"], expected["experts"])
    n_clean = int(np.argmax(flipped | flipped_native)) if (flipped | flipped_native).any() else len(tokens)
    assert flipped.sum() <= flipped_native.sum() + 1
    if n_clean < 3:  # a near tie at the start: the same side as llama.cpp, so that all positions can be compared
        assert not differing_decisions(ids, expected["experts_native"]).any()
        n_clean = len(tokens)
    for position in np.flatnonzero(flipped):  # only near ties may fall on the other side
        scores = -np.sort(-expected["router_scores"][:, position], -1)
        if scores.max() > 1.5:  # raw scores, of models whose weights are a softmax over the chosen: to probabilities
            scores = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        k = ids.shape[-1]
        assert (scores[:, k - 1] - scores[:, k]).min() < 0.05

    error = rms(model.logits(tokens)[:n_clean] - exact[:n_clean])
    error_native = rms(expected["logits_native"][:n_clean] - exact[:n_clean])
    text = greedy(model, tokens)
    differ = np.flatnonzero(np.array(text) != expected["greedy"])
    print(
        f"{name}: rms {error:.4f}, llama.cpp {error_native:.4f}, over {n_clean} of {len(tokens)} positions; "
        f"{flipped.sum()} decisions differ (llama.cpp {flipped_native.sum()}); greedy text differs from token "
        f"{differ[0] if differ.size else 'none'}"
    )
    assert n_clean >= 3
    # F16 and BF16 weights: activations are not rounded here, so the floor is the float one.
    assert error <= 1.25 * error_native + 1e-5
    if differ.size:  # the first difference must be a step that the rounding can turn
        noise = 4 * rms(expected["logits_native"] - exact)
        turned = expected["greedy_margin"][differ[0]] < noise
        if name in QUANTISED_ARCHITECTURES and not turned:  # or one at which it turned a routing decision
            read = [*tokens, *expected["greedy"][: differ[0]]]
            exact_ids, _ = expertree.Model(FOLDER / f"{name}.gguf", activations="f32").routing(read)
            turned = differing_decisions(model.routing(read)[0], exact_ids)[-1]
        assert turned


def test_the_bounds_notice_a_fault(tmp_path: Path) -> None:
    """Negative control: one weight of 4,096 in one matrix, off by its own size, is out of bounds."""
    source = (FOLDER / "qwen3moe.gguf").read_bytes()
    reader = expertree._core.GgufReader(str(FOLDER / "qwen3moe.gguf"))
    tensor = next(t for t in reader.tensors if t.name == "blk.1.attn_q.weight")
    values = np.frombuffer(source, np.float32, 64, tensor.offset).copy()
    values[np.abs(values).argmax()] *= 2
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(source[: tensor.offset] + values.tobytes() + source[tensor.offset + values.nbytes :])
    with pytest.raises(AssertionError):
        assert_exact(expertree.Model(damaged), np.load(FOLDER / "qwen3moe.npz"))
