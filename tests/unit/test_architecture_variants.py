"""What the recorded models do not show: what a context, a window or a missing tensor changes."""

from __future__ import annotations

import struct
from pathlib import Path

import expertree
import numpy as np
import pytest
from recorded_model import FOLDER, RecordedModel
from tiny_model import TinyModel

TOKENS = np.random.default_rng(23).integers(0, 96, 40).tolist()
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"


def load(path: Path, **options: int) -> expertree.Model:
    return expertree.Model(path, **options)  # type: ignore[arg-type]


def test_long_factors_hold_beyond_the_original_context(tmp_path: Path) -> None:
    """phimoe's original context is 1,024: longer sessions turn by the other tensor, and none is longer unasked."""
    plain = RecordedModel("phimoe").write(tmp_path / "plain.gguf")
    swapped = RecordedModel("phimoe", names={LONG: SHORT, SHORT: LONG}).write(tmp_path / "swapped.gguf")
    assert load(plain).n_ctx == 1024
    short = load(plain).logits(TOKENS)
    long = load(plain, n_ctx=1025).logits(TOKENS)
    assert np.abs(short - long).max() > 0.1
    assert (load(plain, n_ctx=1024).logits(TOKENS) == short).all()
    assert (load(swapped, n_ctx=1025).logits(TOKENS) == short).all()
    assert (load(swapped).logits(TOKENS) == long).all()
    session = load(plain).session(n_ctx=1025)
    assert (session.evaluate(TOKENS) == long).all()


def test_a_window_ends_where_it_should(tmp_path: Path) -> None:
    """With windows of 8 in all of 4 layers a token reaches 4 * 7 positions further, and not one more."""
    keys = {"gpt-oss.attention.sliding_window_pattern": 0}
    model = load(RecordedModel("gpt-oss-f32", keys=keys).write(tmp_path / "m.gguf"))
    other = [TOKENS[0] + 1, *TOKENS[1:]]
    differs = (model.logits(TOKENS) != model.logits(other)).any(1)
    assert differs[:29].all() and not differs[29:].any()
    everything = load(FOLDER / "gpt-oss-f32.gguf")  # every other layer sees all
    assert (everything.logits(TOKENS) != everything.logits(other)).any(1).all()


def test_dbrx_clamps_what_it_projects(tmp_path: Path) -> None:
    """At 2 in the recorded model; 0 is no limit, and a negative one is none that makes sense."""
    recorded = (FOLDER / "dbrx.gguf").read_bytes()
    key = b"dbrx.attention.clamp_kqv" + struct.pack("<I", 6)

    def with_limit(limit: float) -> Path:
        path = tmp_path / f"{limit}.gguf"
        path.write_bytes(recorded.replace(key + struct.pack("<f", 2.0), key + struct.pack("<f", limit)))
        return path

    logits = {limit: load(with_limit(limit)).logits(TOKENS) for limit in (2.0, 0.0, 1e6, 1.0)}
    assert (logits[0.0] == logits[1e6]).all()
    assert np.abs(logits[2.0] - logits[0.0]).max() > 0.1 and np.abs(logits[2.0] - logits[1.0]).max() > 0.1
    with pytest.raises(expertree.ModelFormatError, match="clamp_kqv"):
        load(with_limit(-1.0))


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("gpt-oss-f32", "blk.1.attn_sinks.weight"),
        ("gpt-oss-f32", "blk.0.ffn_down_exps.bias"),
        ("glm4moe", "blk.1.exp_probs_b.bias"),
        ("deepseek2", "blk.1.attn_v_b.weight"),
        ("gemma4-moe", "blk.0.ffn_gate_inp.scale"),
        ("phimoe", "output.bias"),
        ("dbrx", "blk.1.attn_output_norm.weight"),
    ],
)
def test_a_missing_tensor_is_named(name: str, missing: str, tmp_path: Path) -> None:
    path = RecordedModel(name, names={missing: "x" + missing}).write(tmp_path / "m.gguf")
    with pytest.raises(expertree.ModelFormatError, match=missing):
        load(path)


def test_attention_to_later_positions_is_refused(tmp_path: Path) -> None:
    spec = TinyModel(arch="qwen3moe", keys={"qwen3moe.attention.causal": False})
    with pytest.raises(expertree.UnsupportedError, match=r"attention\.causal"):
        load(spec.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("name", ["gpt-oss-f32", "gemma3", "llama4", "smallthinker", "mimo2", "exaone-moe"])
@pytest.mark.parametrize("key", ["attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"])
def test_windowed_heads_of_another_size_are_refused(name: str, key: str, tmp_path: Path) -> None:
    arch = name.removesuffix("-f32")
    path = RecordedModel(name, keys={f"{arch}.{key}": 4}).write(tmp_path / "m.gguf")
    with pytest.raises(expertree.UnsupportedError, match=key):
        load(path)


@pytest.mark.parametrize("name", ["qwen3", "qwen3moe", "qwen35moe"])
def test_the_output_may_have_a_scale_and_a_bias(name: str, tmp_path: Path) -> None:
    plain = load(TinyModel(arch=name).write(tmp_path / "plain.gguf")).logits(TOKENS)
    scaled = TinyModel(arch=name, tensors={"output.scale": np.array([0.5], np.float32)})
    assert (load(scaled.write(tmp_path / "scaled.gguf")).logits(TOKENS) == plain * np.float32(0.5)).all()
    bias = np.arange(96, dtype=np.float32)
    biased = TinyModel(arch=name, tensors={"output.bias": bias})
    assert (load(biased.write(tmp_path / "biased.gguf")).logits(TOKENS) == plain + bias).all()


@pytest.mark.parametrize(
    ("arch", "matrix"),
    [("qwen35moe", "attn_q"), ("qwen35", "attn_q"), ("qwen3moe", "attn_qkv"), ("llama", "attn_qkv")],
)
def test_parts_of_a_matrix_keep_its_scale(arch: str, matrix: str, tmp_path: Path) -> None:
    """Files with scales: one of a fused projection, or of queries with their gates, holds for all its parts."""
    names = [f"blk.{i}.{matrix}" for i in range(2)]
    weights = TinyModel(arch=arch).float_tensors()
    changed: dict[str, np.ndarray | None] = {}
    for name in names:
        parts = [name.replace("attn_qkv", part) + ".weight" for part in ("attn_q", "attn_k", "attn_v")]
        if matrix == "attn_qkv":
            weights[name + ".weight"] = np.concatenate([weights[part] for part in parts])
            changed |= {part: None for part in parts}
    present = [name for name in names if name + ".weight" in weights]
    halved = {name + ".weight": weights[name + ".weight"] * np.float32(0.5) for name in present}
    scaled: dict[str, np.ndarray | None] = {name + ".weight": weights[name + ".weight"] for name in present}
    scaled |= {name + ".scale": np.array([0.5], np.float32) for name in present}
    expected = load(TinyModel(arch=arch, tensors={**changed, **halved}).write(tmp_path / "halved.gguf")).logits(TOKENS)
    got = load(TinyModel(arch=arch, tensors={**changed, **scaled}).write(tmp_path / "scaled.gguf")).logits(TOKENS)
    assert present and (got == expected).all()
