"""Writes what was trained as GGUF files: the experts (merged with the base model where it is built), the EAGLE-3 head
under the field's convention, and the Medusa heads and the expert predictor in the forms that models/README.md
describes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import gguf
import numpy as np
import torch
from base_model import LAYERS, WIDTH
from draft_heads import N_MEDUSA, EagleHead
from train_heads import Heads
from upcycled import N_EXPERTS, N_USED, PROJECTIONS, RANK, UpcycledModel

_NAME = "SmolLM2-8x135M-Instruct"
_Q8, _F16, _F32 = (getattr(gguf.GGMLQuantizationType, name) for name in ("Q8_0", "F16", "F32"))


class _Writer:
    def __init__(self, path: Path, arch: str, name: str, licence: str | None = "apache-2.0") -> None:
        self.path, self.arch = path, arch
        self.file = gguf.GGUFWriter(path.with_suffix(".part"), arch)
        self.file.add_name(name)
        if licence is not None:
            self.file.add_string("general.license", licence)

    def tensor(self, name: str, values: torch.Tensor, kind: gguf.GGMLQuantizationType = _Q8) -> None:
        data = np.ascontiguousarray(values.detach().float().cpu().numpy())
        if kind == _Q8 and data.shape[-1] % 32:
            kind = _F16
        self.file.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)

    def close(self) -> None:
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()
        self.path.with_suffix(".part").replace(self.path)


def write_experts(model: UpcycledModel, base: Path, path: Path) -> None:
    out = _Writer(path, "expertree-experts", f"{_NAME} experts")
    out.file.add_string("expertree.base.sha256", hashlib.sha256(base.read_bytes()).hexdigest())
    for key, value in (("expert_count", N_EXPERTS), ("expert_used_count", N_USED), ("lora_rank", RANK)):
        out.file.add_uint32(f"expertree.{key}", value)
    for layer in range(LAYERS):
        for name, (inputs, outputs) in PROJECTIONS.items():
            a, b = (model.experts[f"{layer}_{name}_{side}"] for side in "ab")
            out.tensor(f"blk.{layer}.ffn_{name}_exps.lora_a", a.view(N_EXPERTS, RANK, inputs))
            out.tensor(f"blk.{layer}.ffn_{name}_exps.lora_b", b.T.reshape(N_EXPERTS, RANK, outputs))
        out.tensor(f"blk.{layer}.ffn_gate_inp.weight", model.experts[f"{layer}_router"], _F32)
    out.close()


def write_eagle(
    eagle: EagleHead, vocabulary: torch.Tensor, path: Path, target: str = _NAME, licence: str | None = "apache-2.0"
) -> None:
    """vocabulary: int64 target ids of the draft vocabulary, rising. target: the name of the model it drafts for."""
    out, s = _Writer(path, "eagle3", f"{target} EAGLE-3", licence), eagle.sizes
    f = out.file
    f.add_block_count(1)
    f.add_context_length(8192)
    f.add_embedding_length(s.width)
    f.add_feed_forward_length(s.n_ff)
    f.add_head_count(s.n_heads)
    f.add_head_count_kv(s.n_kv_heads)
    f.add_key_length(s.head_dim)
    f.add_value_length(s.head_dim)
    f.add_rope_dimension_count(s.head_dim)
    f.add_rope_freq_base(s.rope_base)
    f.add_layer_norm_rms_eps(s.epsilon)
    for key in ("target_layers", "extract_layers"):  # the newer and the older name
        f.add_array(f"eagle3.{key}", list(s.taps))
    f.add_uint32("eagle3.target_hidden_size", s.width)
    f.add_bool("eagle3.norm_before_residual", False)
    f.add_bool("eagle3.norm_before_fc", True)
    ids = vocabulary.cpu().numpy()
    f.add_tensor("d2t", (ids - np.arange(len(ids))).astype(np.int64))  # offsets: target id = draft id + d2t
    out.tensor("fc.weight", eagle.fc)
    out.tensor("enc.output_norm.weight", eagle.feature_norm, _F32)
    out.tensor("output_norm.weight", eagle.output_norm, _F32)
    out.tensor("output.weight", eagle.output)
    out.tensor("blk.0.attn_norm.weight", eagle.embedding_norm, _F32)
    out.tensor("blk.0.attn_norm_2.weight", eagle.state_norm, _F32)
    out.tensor("blk.0.ffn_norm.weight", eagle.ffn_norm, _F32)
    for name, weight in (("attn_q", eagle.q), ("attn_k", eagle.k), ("attn_v", eagle.v), ("attn_output", eagle.o)):
        out.tensor(f"blk.0.{name}.weight", weight)
    for name, weight in (("ffn_gate", eagle.gate), ("ffn_up", eagle.up), ("ffn_down", eagle.down)):
        out.tensor(f"blk.0.{name}.weight", weight)
    out.close()


def write_medusa(heads: Heads, path: Path) -> None:
    out = _Writer(path, "medusa", f"{_NAME} Medusa heads")
    out.file.add_uint32("medusa.head_count", N_MEDUSA)
    out.file.add_embedding_length(WIDTH)
    out.file.add_tensor("draft_ids", heads.vocabulary.cpu().numpy().astype(np.int32))
    for i in range(N_MEDUSA):
        out.tensor(f"head.{i}.weight", heads.medusa.weight[i])
        out.tensor(f"head.{i}.bias", heads.medusa.bias[i], _F32)
    out.close()


def write_predictor(heads: Heads, path: Path) -> None:
    out = _Writer(path, "expert-predictor", f"{_NAME} expert predictor")
    out.file.add_uint32("expert-predictor.moe_layer_count", LAYERS)
    out.file.add_uint32("expert-predictor.expert_count", N_EXPERTS)
    out.file.add_string("expert-predictor.features", "eagle3")
    out.tensor("predictor.weight", heads.predictor.weight)
    out.tensor("predictor.bias", heads.predictor.bias, _F32)
    out.close()
