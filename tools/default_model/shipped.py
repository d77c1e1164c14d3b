"""Reads the trained parts back from their GGUF files, as they are shipped: what measurements should be made on."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from base_model import LAYERS
from torch import Tensor
from train_heads import Heads
from upcycled import PROJECTIONS, WIDE, UpcycledModel


def _tensors(path: Path) -> dict[str, Tensor]:
    found = {}
    for t in gguf.GGUFReader(path).tensors:
        if t.tensor_type == gguf.GGMLQuantizationType.Q8_0:
            found[t.name] = torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32))
        else:
            found[t.name] = torch.from_numpy(np.array(t.data))
    return found


def read_experts(path: Path, weights: dict[str, Tensor], device: torch.device | str) -> UpcycledModel:
    saved = _tensors(path)
    routers = [saved[f"blk.{layer}.ffn_gate_inp.weight"] for layer in range(LAYERS)]
    model = UpcycledModel(weights, routers, device).requires_grad_(False)
    for layer in range(LAYERS):
        for name, (inputs, outputs) in PROJECTIONS.items():
            a, b = (saved[f"blk.{layer}.ffn_{name}_exps.lora_{side}"] for side in "ab")
            model.experts[f"{layer}_{name}_a"].copy_(a.reshape(WIDE, inputs))
            model.experts[f"{layer}_{name}_b"].copy_(b.reshape(WIDE, outputs).T)
    return model


@torch.no_grad()
def read_heads(folder: Path, device: torch.device | str) -> Heads:
    saved = _tensors(folder / "eagle3.gguf")
    offsets = saved["d2t"]
    heads = Heads(offsets + torch.arange(len(offsets)))
    eagle = heads.eagle
    names = {
        "fc": eagle.fc, "enc.output_norm": eagle.feature_norm, "output_norm": eagle.output_norm, "output": eagle.output,
        "blk.0.attn_norm": eagle.embedding_norm, "blk.0.attn_norm_2": eagle.state_norm,
        "blk.0.ffn_norm": eagle.ffn_norm,
        "blk.0.attn_q": eagle.q, "blk.0.attn_k": eagle.k, "blk.0.attn_v": eagle.v, "blk.0.attn_output": eagle.o,
        "blk.0.ffn_gate": eagle.gate, "blk.0.ffn_up": eagle.up, "blk.0.ffn_down": eagle.down,
    }  # fmt: skip
    for name, parameter in names.items():
        parameter.copy_(saved[f"{name}.weight"])
    medusa = _tensors(folder / "medusa.gguf")
    for i in range(len(heads.medusa.weight)):
        heads.medusa.weight[i] = medusa[f"head.{i}.weight"]
        heads.medusa.bias[i] = medusa[f"head.{i}.bias"]
    predictor = _tensors(folder / "predictor.gguf")
    heads.predictor.weight.copy_(predictor["predictor.weight"])
    heads.predictor.bias.copy_(predictor["predictor.bias"])
    return heads.to(device)
