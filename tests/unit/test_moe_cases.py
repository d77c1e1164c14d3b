"""CASES M1 to M14 and G17, G19, G21 as far as these architectures can show them. Oracle: float64 numpy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import expertree
import numpy as np
import pytest
from cache_rounding import rounded
from numpy_model import NumpyModel
from tiny_model import ARCHITECTURES, MOE_ARCHITECTURES, RENORMALISED, TinyModel

TOKENS = [5, 17, 2, 90, 33, 61, 8, 8, 40]


def run(spec: TinyModel, tmp_path: Path, **options: Any) -> expertree.Model:
    return expertree.Model(spec.write(tmp_path / f"{spec.arch}.gguf"), **options)


def assert_near(got: np.ndarray, expected: np.ndarray, bound: float = 2e-4) -> None:
    worst = np.abs(got - expected).max()
    assert worst < bound, f"off by {worst}"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_logits_against_numpy(arch: str, tmp_path: Path) -> None:
    spec = TinyModel(arch=arch)
    assert_near(run(spec, tmp_path).logits(TOKENS), NumpyModel(spec).logits(TOKENS))


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_logits_with_a_rounded_cache_against_numpy(arch: str, kind: str, tmp_path: Path) -> None:
    """Each key after its rotation, each value as it is, rounded once; heads of 24 end inside a block of Q8_0."""

    def kept(x: np.ndarray) -> np.ndarray:
        return rounded(kind, x.astype(np.float32).reshape(-1, x.shape[-1])).reshape(x.shape).astype(np.float64)

    spec = TinyModel(arch=arch)
    model = run(spec, tmp_path, cache_type=kind)
    # A value that falls between two steps may be rounded either way.
    assert_near(model.logits(TOKENS), NumpyModel(spec, kept).logits(TOKENS), 2e-3 if kind == "f16" else 2e-2)
    assert model.cache_types == (kind, kind)


@pytest.mark.parametrize("arch", MOE_ARCHITECTURES)
@pytest.mark.parametrize("key", [None, True, False])
def test_m1_renormalisation_is_the_architectures_not_the_keys(arch: str, key: bool | None, tmp_path: Path) -> None:
    """qwen3moe and Mixtral always, olmoe and qwen2moe never, with the key absent, true or false."""
    spec = TinyModel(arch=arch)
    spec.keys[f"{spec.gguf_arch}.expert_weights_norm"] = key
    ids, weights = run(spec, tmp_path).routing(TOKENS)
    expected_ids, expected = NumpyModel(spec).routing(TOKENS)
    assert (ids == expected_ids).all()
    assert_near(weights, expected, 1e-5)
    sums = weights.sum(-1)
    assert np.allclose(sums, 1, atol=1e-6) == (arch in RENORMALISED)


def test_m5_softmax_is_over_all_experts_before_the_choice(tmp_path: Path) -> None:
    """Weights of qwen2moe are shares of all experts, so they sum to less than 1."""
    spec = TinyModel(arch="qwen2moe", n_layers=1)
    router = "blk.0.ffn_gate_inp.weight"
    spec.tensors[router] = spec.float_tensors()[router] * np.float32(0.1)
    _, weights = run(spec, tmp_path).routing(TOKENS)
    assert (weights.sum(-1) < 0.9).all()


def test_m6_large_expert_outputs_stay_finite(tmp_path: Path) -> None:
    """A channel beyond binary16's 65,504 is no infinity here."""
    spec = TinyModel(arch="qwen3moe")
    down = spec.float_tensors()["blk.0.ffn_down_exps.weight"]
    down[:, 3] *= 3e5
    spec.tensors["blk.0.ffn_down_exps.weight"] = down
    logits = run(spec, tmp_path).logits(TOKENS)
    assert np.isfinite(logits).all()
    assert_near(logits, NumpyModel(spec).logits(TOKENS), 2e-3)


def test_m7_nan_in_a_router_fails_the_request_and_names_the_layer(tmp_path: Path) -> None:
    spec = TinyModel(arch="qwen3moe")
    router = spec.float_tensors()["blk.1.ffn_gate_inp.weight"]
    router[3] = np.nan
    spec.tensors["blk.1.ffn_gate_inp.weight"] = router
    session = run(spec, tmp_path).session()
    for _ in range(2):  # the session lives on, and fails the same way
        with pytest.raises(expertree.ModelFormatError, match="router of layer 1"):
            session.prefill(TOKENS)
        assert session.tokens == []


def test_p1_nan_in_the_weights_names_the_layer(tmp_path: Path) -> None:
    for bad in (np.nan, np.inf):
        spec = TinyModel(arch="llama")
        down = spec.float_tensors()["blk.1.ffn_down.weight"]
        down[0, 0] = bad
        spec.tensors["blk.1.ffn_down.weight"] = down
        with pytest.raises(expertree.ModelFormatError, match="layer 1 gave a value that is not a finite number"):
            run(spec, tmp_path).generate(TOKENS, max_tokens=1)


def test_p1_nan_in_the_head_is_an_error_and_no_token(tmp_path: Path) -> None:
    spec = TinyModel(arch="llama")
    head = spec.float_tensors()["output.weight"]
    head[7, 0] = np.nan
    spec.tensors["output.weight"] = head
    session = run(spec, tmp_path).session()
    session.prefill(TOKENS)
    with pytest.raises(expertree.Error, match=r"(?i)nan"):
        session.step()
    assert session.tokens == TOKENS


def without_router_preference(**fields: Any) -> TinyModel:
    """A layer in which every expert has the same score: 1 / 8, exactly."""
    spec = TinyModel(arch="qwen3moe", n_layers=1, **fields)
    spec.tensors["blk.0.ffn_gate_inp.weight"] = np.zeros((spec.n_experts, spec.n_embd), np.float32)
    return spec


def test_equal_scores_go_to_the_lowest_ids(tmp_path: Path) -> None:
    ids, weights = run(without_router_preference(n_used=3), tmp_path).routing(TOKENS)
    assert (ids == [0, 1, 2]).all()
    assert (weights == weights[0, 0, 0]).all()


def test_expert_outputs_are_summed_in_rank_order(tmp_path: Path) -> None:
    """Ranks 0 and 1 cancel exactly and are so large that rank 2 would be lost in either of them."""
    spec = without_router_preference(n_used=4)
    tensors = spec.float_tensors()
    for part in ("gate", "up", "down"):
        experts = tensors[f"blk.0.ffn_{part}_exps.weight"]
        experts[1] = -experts[0] if part == "down" else experts[0]
        if part == "down":
            experts[:2] *= 2**26
        spec.tensors[f"blk.0.ffn_{part}_exps.weight"] = experts
    assert_near(run(spec, tmp_path).logits(TOKENS), NumpyModel(spec).logits(TOKENS))


@pytest.mark.parametrize("n", [1, 2, 8, 9, 31, 32, 33])
def test_m11_every_number_of_rows(n: int, tmp_path: Path) -> None:
    """An expert may get any number of rows, 0 and all of them included; widths are no multiple of a tile."""
    spec = TinyModel(arch="qwen3moe", n_embd=96, n_ff=32, n_experts=5)
    model, oracle = run(spec, tmp_path), NumpyModel(spec)
    one_expert_gets_all = [11] * n
    mixed = np.random.default_rng(n).integers(0, 96, n).tolist()
    for tokens in (one_expert_gets_all, mixed):
        assert_near(model.logits(tokens), oracle.logits(tokens))
    ids, _ = model.routing([11])
    assert np.unique(ids).size < 5  # some expert stays empty


def test_m13_gate_and_up_are_not_interchangeable(tmp_path: Path) -> None:
    """The oracle tells them apart: with the two swapped the same bound fails by far."""
    spec = TinyModel(arch="qwen3moe")
    good = run(spec, tmp_path).logits(TOKENS)
    tensors = spec.float_tensors()
    gate, up = "blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"
    swapped = dataclasses.replace(spec, tensors={gate: tensors[up], up: tensors[gate]})
    assert_near(good, NumpyModel(spec).logits(TOKENS))
    assert np.abs(good - NumpyModel(swapped).logits(TOKENS)).max() > 1e-2


@pytest.mark.parametrize("arch", MOE_ARCHITECTURES)
def test_m14_one_expert_per_token(arch: str, tmp_path: Path) -> None:
    """Renormalised, its weight is exactly 1; otherwise its own probability."""
    spec = TinyModel(arch=arch, n_used=1)
    model = run(spec, tmp_path)
    _, weights = model.routing(TOKENS)
    assert (weights == 1).all() if arch in RENORMALISED else (weights < 1).all()
    assert_near(model.logits(TOKENS), NumpyModel(spec).logits(TOKENS))


@pytest.mark.parametrize("form", ["F32", "Q8_0"])
def test_g17_one_tensor_per_expert_gives_the_bits_of_the_merged_form(form: str, tmp_path: Path) -> None:
    merged = TinyModel(arch="mixtral", format=form)
    apart = dataclasses.replace(merged, per_expert_tensors=True, tensors={})
    if form != "F32":  # the same blocks in both: cut the merged tensors
        rows = merged.float_tensors()
        merged.tensors = {n: v for n, v in rows.items() if "_exps" in n}
        for name, values in merged.tensors.items():
            for e, expert in enumerate([] if values is None else values):
                apart.tensors[name.replace("_exps.", f".{e}.")] = expert
    a = expertree.Model(merged.write(tmp_path / "a.gguf")).logits(TOKENS)
    b = expertree.Model(apart.write(tmp_path / "b.gguf")).logits(TOKENS)
    assert (a == b).all()


@pytest.mark.parametrize("n_experts", [300, 1024])
def test_g19_more_experts_than_a_byte_counts(n_experts: int, tmp_path: Path) -> None:
    spec = TinyModel(arch="qwen3moe", n_experts=n_experts, n_used=10, n_ff=32, n_layers=1)
    model = run(spec, tmp_path)
    tokens = list(range(96))
    ids, _ = model.routing(tokens)
    assert ids.max() > 255
    assert_near(model.logits(tokens), NumpyModel(spec).logits(tokens))


@pytest.mark.parametrize(("n_experts", "n_used"), [(8, 9), (8, 0), (0, 2)])
def test_g21_impossible_expert_counts(n_experts: int, n_used: int, tmp_path: Path) -> None:
    spec = TinyModel(arch="qwen3moe")
    spec.keys = {"qwen3moe.expert_count": n_experts, "qwen3moe.expert_used_count": n_used}
    with pytest.raises(expertree.ModelFormatError, match=r"expert_(used_)?count"):
        run(spec, tmp_path)
