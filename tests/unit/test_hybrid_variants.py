"""Gated delta nets of other sizes, intervals and tensor forms, against numpy; and files that cannot be one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expertree import Model, ModelFormatError
from numpy_model import NumpyModel
from tiny_hybrid import DELTA_NET, DeltaSizes
from tiny_model import TinyModel

TOKENS = np.random.default_rng(11).integers(0, 96, 24).tolist()

SIZES: list[dict[str, Any]] = [
    {"n_key_heads": 1, "n_value_heads": 6},
    {"n_key_heads": 4, "n_value_heads": 4},
    {"n_key_heads": 3, "n_value_heads": 6, "state_size": 8},
    {"state_size": 40},
    {"state_size": 72, "n_key_heads": 1, "n_value_heads": 2},  # more columns than one task takes
    {"n_taps": 1},
    {"n_taps": 2},
    {"n_taps": 7},
    {"interval": 1},
    {"interval": 3},
    {"interval": 4},
    {"recurrent_layers": [True, True, False, True]},
    {"recurrent_layers": [0, 1, 1, 0]},
    {"recurrent_layers": [True, True, True, True]},
    {"sections": (3, 2, 1, 0)},
    {"sections": (1, 1, 1, 0)},
    {"sections": (1, 1, 1, 3)},
    {"sections": (8, 8, 8, 0), "interval": 2},
]


def check(spec: TinyModel, folder: Path) -> None:
    model = Model(spec.write(folder / "model.gguf"), threads=2)
    expected = NumpyModel(spec).logits(TOKENS)
    assert expected.std() > 0.1
    assert np.abs(model.logits(TOKENS) - expected).max() < 1e-3 * max(1, np.abs(expected).max())
    session = model.session()
    session.prefill(TOKENS[:9])
    assert np.abs(session.evaluate(TOKENS[9:]) - expected[9:]).max() < 1e-3 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("arch", DELTA_NET)
def test_sizes(arch: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    check(TinyModel(arch=arch, n_layers=4, delta=DeltaSizes(**sizes)), tmp_path)


@pytest.mark.parametrize("sizes", SIZES[:4], ids=str)
def test_first_files_of_qwen3next(sizes: dict[str, Any], tmp_path: Path) -> None:
    """One tensor for queries, keys, values and gates, head by head."""
    check(TinyModel(arch="qwen3next", n_layers=3, delta=DeltaSizes(merged_in=True, **sizes)), tmp_path)


@pytest.mark.parametrize("arch", DELTA_NET)
@pytest.mark.parametrize(
    "fields",
    [
        {"n_kv_heads": 1},
        {"n_heads": 6, "n_kv_heads": 6},
        {"n_experts": 5, "n_used": 5},
        {"n_embd": 96},
        {"tensors": {"output.weight": None}},  # tied
    ],
    ids=str,
)
def test_shapes(arch: str, fields: dict[str, Any], tmp_path: Path) -> None:
    check(TinyModel(arch=arch, n_layers=3, **fields), tmp_path)


@pytest.mark.parametrize("arch", ["qwen35moe", "qwen3next"])
def test_keys_that_may_be_missing(arch: str, tmp_path: Path) -> None:
    """The widths of experts follow from the dense one; or the dense one is missing where nothing is dense."""
    spec = TinyModel(arch=arch, n_ff=64, n_used=2)
    spec.keys = {f"{arch}.feed_forward_length": None}
    check(spec, tmp_path)
    spec.keys = {f"{arch}.expert_shared_feed_forward_length": None}
    check(spec, tmp_path)
    spec.keys = {f"{arch}.feed_forward_length": 128, f"{arch}.expert_feed_forward_length": None}
    check(spec, tmp_path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"ssm.inner_size": 65}, "inner_size' is 65; expected ssm.time_step_rank"),
        ({"ssm.group_count": 3}, "group_count' is 3; expected a divisor"),
        ({"ssm.group_count": 0}, "group_count"),
        ({"ssm.conv_kernel": 65}, "conv_kernel' is 65; expected at most 64"),
        ({"ssm.conv_kernel": 3}, "ssm_conv1d.weight' has shape"),
        ({"ssm.state_size": None}, "state_size"),
        ({"full_attention_interval": 0}, "full_attention_interval"),
        ({"attention.recurrent_layers": [True]}, "recurrent_layers"),
        ({"attention.recurrent_layers": [2, 0]}, "recurrent_layers"),
        ({"rope.dimension_sections": None}, "dimension_sections"),
        ({"rope.dimension_sections": [0, 0, 0, 0]}, "sections of 1 to 24 pairs"),
        ({"rope.dimension_sections": [2, 2, 2]}, "dimension_sections"),
        ({"rope.dimension_sections": [20, 20, 20, 0]}, "sections of 1 to 24 pairs"),
    ],
    ids=str,
)
def test_bad_keys(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    spec = TinyModel(arch="qwen35moe", keys={f"qwen35moe.{key}": value for key, value in keys.items()})
    with pytest.raises(ModelFormatError, match=message):
        Model(spec.write(tmp_path / "model.gguf"))


@pytest.mark.parametrize("name", ["attn_qkv.weight", "attn_gate.weight", "ssm_conv1d.weight", "ssm_dt.bias", "ssm_a"])
def test_missing_tensors(name: str, tmp_path: Path) -> None:
    spec = TinyModel(arch="qwen35", tensors={f"blk.0.{name}": None})
    with pytest.raises(ModelFormatError, match=rf"blk\.0\.{name}' is missing"):
        Model(spec.write(tmp_path / "model.gguf"))
