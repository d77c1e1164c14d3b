"""SmolLM2-135M-Instruct in torch, from its GGUF file: what the default model starts from.

Runs on CPU and CUDA. Weights are frozen; the residual stream is float32. Subclasses replace `feed_forward`.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCABULARY = 576, 30, 9, 3, 64, 1536, 49152
EPSILON, ROPE_BASE, MAX_POSITIONS = 1e-5, 100_000.0, 2048
END_OF_TEXT, TURN_START, TURN_END = 0, 1, 2
# Of products and of all frozen weights: few CPUs multiply bfloat16 fast.
COMPUTE = torch.bfloat16 if torch.cuda.is_available() else torch.float32


def load_weights(path: Path) -> dict[str, Tensor]:
    """Every tensor of the GGUF file, dequantised to float32, by name."""
    reader = gguf.GGUFReader(path)
    return {
        t.name: torch.from_numpy(np.array(gguf.quants.dequantize(t.data, t.tensor_type), dtype=np.float32))
        for t in reader.tensors
    }


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Normalised in float32."""
    return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), EPSILON).to(COMPUTE)


def rope_tables(
    device: torch.device | str, head_dim: int = HEAD_DIM, base: float = ROPE_BASE, positions: int = MAX_POSITIONS
) -> tuple[Tensor, Tensor]:
    frequencies = base ** (-torch.arange(0, head_dim, 2, device=device).float() / head_dim)
    angles = torch.outer(torch.arange(positions, device=device).float(), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [..., T, head_dim], neighbouring pairs (GGUF's "norm" order); cos, sin: [T, head_dim / 2]."""
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


class Cache:
    """Keys and values of a batch of sequences of the same length."""

    def __init__(self, batch: int, positions: int, device: torch.device | str) -> None:
        shape = (LAYERS, batch, KV_HEADS, positions, HEAD_DIM)
        self.keys = torch.zeros(shape, dtype=COMPUTE, device=device)
        self.values = torch.zeros(shape, dtype=COMPUTE, device=device)
        self.length = 0


class BaseModel(torch.nn.Module):
    """The dense model. Token ids are [batch, positions]; hidden states [batch, positions, WIDTH]."""

    def __init__(self, weights: dict[str, Tensor], device: torch.device | str) -> None:
        super().__init__()
        self.device = torch.device(device)
        self.weights = {name: w.to(self.device, COMPUTE) for name, w in weights.items()}
        self.rope = rope_tables(self.device)

    def layer_weight(self, layer: int, name: str) -> Tensor:
        return self.weights[f"blk.{layer}.{name}.weight"]

    def feed_forward(self, layer: int, h: Tensor) -> Tensor:
        gate = F.linear(h, self.layer_weight(layer, "ffn_gate"))
        up = F.linear(h, self.layer_weight(layer, "ffn_up"))
        return F.linear(F.silu(gate) * up, self.layer_weight(layer, "ffn_down"))

    def attention(self, layer: int, h: Tensor, cache: Cache | None) -> Tensor:
        batch, n, _ = h.shape
        start = cache.length if cache is not None else 0
        cos, sin = (table[start : start + n] for table in self.rope)

        def split(name: str, heads: int) -> Tensor:
            return F.linear(h, self.layer_weight(layer, name)).view(batch, n, heads, HEAD_DIM).transpose(1, 2)

        q, k = rotate(split("attn_q", HEADS), cos, sin), rotate(split("attn_k", KV_HEADS), cos, sin)
        v = split("attn_v", KV_HEADS)
        if cache is not None:
            cache.keys[layer, :, :, start : start + n] = k
            cache.values[layer, :, :, start : start + n] = v
            k, v = cache.keys[layer, :, :, : start + n], cache.values[layer, :, :, : start + n]
        causal = n > 1
        assert not (causal and start), "several tokens at once only at the start of a sequence"
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        return F.linear(
            out.transpose(1, 2).reshape(batch, n, HEADS * HEAD_DIM), self.layer_weight(layer, "attn_output")
        )

    def hidden(self, tokens: Tensor, cache: Cache | None = None, taps: dict[int, Tensor] | None = None) -> Tensor:
        """The normalised output of the last layer.

        taps: its keys are layer numbers; each value becomes the input of that layer, the float32 residual stream.
        """
        x = self.weights["token_embd.weight"][tokens].float()
        for layer in range(LAYERS):
            if taps is not None and layer in taps:
                taps[layer] = x
            x = x + self.attention(layer, rms_norm(x, self.layer_weight(layer, "attn_norm")), cache)
            x = x + self.feed_forward(layer, rms_norm(x, self.layer_weight(layer, "ffn_norm")))
        if cache is not None:
            cache.length += tokens.shape[1]
        return rms_norm(x, self.weights["output_norm.weight"])

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.weights["token_embd.weight"])
