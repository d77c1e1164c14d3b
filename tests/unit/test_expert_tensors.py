"""The forms in which files hold experts: merged gate and up, a tensor per expert, scales, mixed formats."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import expertree
import numpy as np
import pytest
from numpy_model import NumpyModel
from tiny_model import TinyModel

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output")
PROJECTIONS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


def logits(spec: TinyModel, path: Path, **options: object) -> np.ndarray:
    return expertree.Model(spec.write(path), **options).logits(TOKENS)  # type: ignore[arg-type]


def few_slots(path: Path) -> int:
    """A budget for about three experts of each kind."""
    stats = expertree._core._testing.load_paged(path.as_posix()).experts.stats
    return int(stats["least_bytes"] + 2 * (stats["all_bytes"] - stats["least_bytes"]) // stats["slots"])


def as_tensors(spec: TinyModel) -> TinyModel:
    """The same model with every expert tensor given, so that its blocks do not depend on its name."""
    experts = {name: values for name, values in spec.float_tensors().items() if "_exps" in name}
    return dataclasses.replace(spec, tensors={**experts, **spec.tensors})


def merge_gate_up(spec: TinyModel) -> TinyModel:
    """Gate and up as one tensor per layer, gate first."""
    tensors = dict(as_tensors(spec).tensors)
    for i in range(spec.n_layers):
        gate, up = (f"blk.{i}.ffn_{part}_exps.weight" for part in ("gate", "up"))
        tensors[f"blk.{i}.ffn_gate_up_exps.weight"] = np.concatenate([tensors[gate], tensors[up]], axis=1)
        tensors[gate] = tensors[up] = None
    return dataclasses.replace(spec, tensors=tensors)


@pytest.mark.parametrize("form", ["F32", "Q4_0", "NVFP4", "IQ3_S"])
def test_merged_gate_and_up_gives_the_bits_of_separate_ones(form: str, tmp_path: Path) -> None:
    spec = TinyModel(format=form)
    apart = logits(as_tensors(spec), tmp_path / "a.gguf")
    path = merge_gate_up(spec).write(tmp_path / "b.gguf")
    assert (expertree.Model(path).logits(TOKENS) == apart).all()
    assert (expertree.Model(path, ram=few_slots(path)).logits(TOKENS) == apart).all()


def test_merged_tensor_of_the_wrong_width_is_refused(tmp_path: Path) -> None:
    spec = merge_gate_up(TinyModel())
    name = "blk.1.ffn_gate_up_exps.weight"
    spec.tensors[name] = np.asarray(spec.tensors[name])[:, :-1]
    with pytest.raises(expertree.ModelFormatError, match=r"blk\.1\.ffn_gate_up_exps\.weight.*127.*128"):
        logits(spec, tmp_path / "bad.gguf")


def scaled(spec: TinyModel, seed: int = 5) -> tuple[TinyModel, TinyModel]:
    """The model with scale tensors, and the one whose weights (F32) are multiplied by them."""
    rng = np.random.default_rng(seed)
    weights = spec.float_tensors()
    scales: dict[str, np.ndarray] = {}
    products: dict[str, np.ndarray] = {}
    for i in range(spec.n_layers):
        for name in MATRICES + PROJECTIONS:
            stem = f"blk.{i}.{name}"
            scale = rng.uniform(0.5, 2, spec.n_experts if "exps" in name else 1).astype(np.float32)
            scales[stem + ".scale"] = scale
            weight = weights[stem + ".weight"]
            products[stem + ".weight"] = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
    return dataclasses.replace(spec, tensors=dict(scales)), dataclasses.replace(spec, tensors=dict(products))


def test_scales_multiply_products(tmp_path: Path) -> None:
    with_scales, multiplied = scaled(TinyModel())
    path = with_scales.write(tmp_path / "a.gguf")
    got = expertree.Model(path).logits(TOKENS)
    assert np.abs(got - NumpyModel(multiplied).logits(TOKENS)).max() < 1e-3
    assert np.abs(got - logits(TinyModel(), tmp_path / "b.gguf")).max() > 1e-1
    assert (expertree.Model(path, ram=few_slots(path)).logits(TOKENS) == got).all()


def test_scales_of_one_tensor_per_expert_and_of_merged_gate_up(tmp_path: Path) -> None:
    spec = TinyModel()
    with_scales, _ = scaled(spec)
    for i in range(spec.n_layers):  # a merged tensor has one scale for both of its parts
        with_scales.tensors[f"blk.{i}.ffn_up_exps.scale"] = with_scales.tensors[f"blk.{i}.ffn_gate_exps.scale"]
    want = logits(as_tensors(with_scales), tmp_path / "a.gguf")

    merged = merge_gate_up(with_scales)
    apart = dataclasses.replace(with_scales, per_expert_tensors=True, tensors={})
    for name, values in with_scales.tensors.items():
        if "_exps.scale" not in name:
            apart.tensors[name] = values
            continue
        for e, value in enumerate(np.asarray(values)):
            apart.tensors[name.replace("_exps.", f".{e}.")] = value.reshape(1)
    for i in range(spec.n_layers):
        merged.tensors[f"blk.{i}.ffn_gate_up_exps.scale"] = merged.tensors.pop(f"blk.{i}.ffn_gate_exps.scale")
        merged.tensors[f"blk.{i}.ffn_up_exps.scale"] = None
    assert (logits(merged, tmp_path / "b.gguf") == want).all()
    assert (logits(apart, tmp_path / "c.gguf") == want).all()


def test_input_scales_are_taken_and_change_nothing(tmp_path: Path) -> None:
    spec, _ = scaled(TinyModel(format="NVFP4"))
    want = logits(spec, tmp_path / "a.gguf")
    for name in [name for name in spec.tensors if name.endswith(".scale")]:
        spec.tensors[name.replace(".scale", ".input_scale")] = np.full_like(spec.tensors[name], 3.0)
    assert (logits(spec, tmp_path / "b.gguf") == want).all()


@pytest.mark.parametrize("n", [1, 7, 9])
def test_scales_of_another_number_of_experts_are_refused(n: int, tmp_path: Path) -> None:
    spec = TinyModel(tensors={"blk.0.ffn_down_exps.scale": np.ones(n, np.float32)})
    with pytest.raises(expertree.ModelFormatError, match=r"ffn_down_exps\.scale.*\[8\]"):
        logits(spec, tmp_path / "bad.gguf")


MIXES = [
    ("IQ3_S", "IQ2_XXS", "Q6_K"),
    ("MXFP4", "Q5_1", "BF16"),
    ("IQ4_XS", "NVFP4", "F32"),
    ("TQ2_0", "Q8_0", "IQ1_M"),
]


@pytest.mark.parametrize("forms", MIXES, ids="-".join)
def test_three_formats_inside_one_expert(forms: tuple[str, str, str], tmp_path: Path) -> None:
    """And in the next layer the other way round; on disk, in memory, by any kernels."""
    formats = {f"blk.0.{name}.weight": form for name, form in zip(PROJECTIONS, forms, strict=True)}
    formats |= {f"blk.1.{name}.weight": form for name, form in zip(PROJECTIONS, reversed(forms), strict=True)}
    path = TinyModel(format="Q8_0", formats=formats).write(tmp_path / "mixed.gguf")
    want = expertree.Model(path).logits(TOKENS)
    for options in ({"ram": few_slots(path)}, {"isa": "scalar"}, {"threads": 1}):
        assert (expertree.Model(path, **options).logits(TOKENS) == want).all(), options  # type: ignore[arg-type]
    reference = expertree.Model(path, activations="f32").logits(TOKENS)
    assert 0 < np.abs(want - reference).max() < 0.5 * np.abs(reference).max()
