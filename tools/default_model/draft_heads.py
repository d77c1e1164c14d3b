"""What drafts for the model and predicts its experts: an EAGLE-3 head (Li et al. 2025), Medusa heads (Cai et al. 2024)
and a linear predictor of expert sets. All read the target's hidden states; token embeddings are the target's own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from base_model import (
    COMPUTE,
    EPSILON,
    FFN,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    MAX_POSITIONS,
    ROPE_BASE,
    WIDTH,
    rope_tables,
    rotate,
)
from torch import Tensor
from torch.nn import Parameter
from upcycled import N_EXPERTS

TAPS = (2, LAYERS // 2, LAYERS - 3)  # layers whose inputs are the features
N_MEDUSA = 3


@dataclass(frozen=True)
class HeadSizes:
    """An EAGLE-3 head's shape; the default model's by default.

    width: of the target's hidden states and of the head. taps: layers whose inputs are the features. positions: the
    longest sequence that it is trained on.
    """

    width: int = WIDTH
    n_heads: int = HEADS
    n_kv_heads: int = KV_HEADS
    head_dim: int = HEAD_DIM
    n_ff: int = FFN
    taps: tuple[int, ...] = TAPS
    epsilon: float = EPSILON
    rope_base: float = ROPE_BASE
    positions: int = MAX_POSITIONS

    @property
    def n_features(self) -> int:
        return len(self.taps) * self.width


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return F.rms_norm(x.float(), (x.shape[-1],), weight, epsilon).to(COMPUTE)


def _matrix(outputs: int, inputs: int) -> Parameter:
    return Parameter(torch.randn(outputs, inputs) / math.sqrt(inputs))


class EagleHead(torch.nn.Module):
    """One decoder layer over [norm(embedding), norm(state)], as llama.cpp's `eagle3` with norm_before_fc.

    The state of position i is fc of the target's features at i, and goes with token i + 1; further draft steps take the
    head's own output before its last norm. Logits are over the draft vocabulary.
    """

    def __init__(self, draft_vocabulary: int, sizes: HeadSizes | None = None) -> None:
        super().__init__()
        self.sizes = s = sizes or HeadSizes()
        self.fc = _matrix(s.width, s.n_features)
        self.q, self.k, self.v = (_matrix(n * s.head_dim, 2 * s.width) for n in (s.n_heads, s.n_kv_heads, s.n_kv_heads))
        self.o = Parameter(torch.randn(s.width, s.n_heads * s.head_dim) * 0.3 / math.sqrt(s.width))
        self.gate, self.up = _matrix(s.n_ff, s.width), _matrix(s.n_ff, s.width)
        self.down = Parameter(torch.zeros(s.width, s.n_ff))
        self.feature_norm = Parameter(torch.ones(s.n_features))
        self.embedding_norm, self.state_norm, self.ffn_norm, self.output_norm = (
            Parameter(torch.ones(s.width)) for _ in range(4)
        )
        self.output = _matrix(draft_vocabulary, s.width)
        self.rope = rope_tables("cpu", s.head_dim, s.rope_base, s.positions)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return _norm(x, weight, self.sizes.epsilon)

    def first_state(self, features: Tensor) -> Tensor:
        """features: [..., taps * width] float32."""
        return F.linear(self.norm(features, self.feature_norm), self.fc.to(COMPUTE)).float()

    def inputs(self, embedding: Tensor, state: Tensor) -> Tensor:
        return torch.cat([self.norm(embedding, self.embedding_norm), self.norm(state, self.state_norm)], -1)

    def step(self, embedding: Tensor, state: Tensor, positions: Tensor, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        """One draft step for every start position of a batch of sequences [B, T, width] at once.

        past: keys and values of the earlier steps. Of the first step a position sees all up to its own; of a later step
        only its own, the token that its own draft put there.
        """
        s = self.sizes
        z = self.inputs(embedding, state)
        batch, n, _ = z.shape
        cos, sin = (table.to(z.device)[positions] for table in self.rope)
        group = s.n_heads // s.n_kv_heads

        def split(weight: Tensor, heads: int) -> Tensor:
            return F.linear(z, weight.to(COMPUTE)).view(batch, n, heads, s.head_dim).transpose(1, 2)

        q = rotate(split(self.q, s.n_heads), cos, sin)
        k = rotate(split(self.k, s.n_kv_heads), cos, sin).repeat_interleave(group, 1)
        v = split(self.v, s.n_kv_heads).repeat_interleave(group, 1)
        past.append((k, v))
        scores = (q @ past[0][0].transpose(-1, -2)).float() / math.sqrt(s.head_dim)
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool, device=z.device).triu(1), -1e9)
        own = [(q * key).sum(-1, keepdim=True).float() / math.sqrt(s.head_dim) for key, _ in past[1:]]
        p = torch.cat([scores, *own], -1).softmax(-1).to(COMPUTE)
        mixed = p[..., :n] @ past[0][1]
        for i, (_, value) in enumerate(past[1:]):
            mixed = mixed + p[..., n + i, None] * value
        return self.finish(state, mixed.transpose(1, 2).reshape(batch, n, s.n_heads * s.head_dim))

    def finish(self, state: Tensor, mixed: Tensor) -> Tensor:
        x = state + F.linear(mixed, self.o.to(COMPUTE)).float()
        h = self.norm(x, self.ffn_norm)
        inner = F.silu(F.linear(h, self.gate.to(COMPUTE))) * F.linear(h, self.up.to(COMPUTE))
        return x + F.linear(inner, self.down.to(COMPUTE)).float()

    def logits(self, state: Tensor) -> Tensor:
        return F.linear(self.norm(state, self.output_norm), self.output.to(COMPUTE)).float()

    @torch.no_grad()
    def start_from_target(self, features: Tensor, output_rows: Tensor, output_norm: Tensor) -> None:
        """Feature scales from a sample [n, taps * width]; the output from the target's: its rows of the draft
        vocabulary, and its last norm."""
        features = features * torch.rsqrt(features.square().mean(-1, keepdim=True))
        self.feature_norm.copy_((1 / features.std(0).clamp(min=1e-3)).clamp(max=50.0))
        self.output.copy_(output_rows.float())
        self.output_norm.copy_(output_norm.float())


class MedusaHeads(torch.nn.Module):
    """Head i guesses the token i + 2 places on from the target's last hidden state h: the target's output rows of the
    draft vocabulary applied to h + SiLU(W h + b)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(torch.zeros(N_MEDUSA, WIDTH, WIDTH))
        self.bias = Parameter(torch.zeros(N_MEDUSA, WIDTH))

    def states(self, hidden: Tensor) -> list[Tensor]:
        return [
            hidden + F.silu(F.linear(hidden, w.to(COMPUTE), b.to(COMPUTE)))
            for w, b in zip(self.weight, self.bias, strict=True)
        ]


class ExpertPredictor(torch.nn.Module):
    """Scores of every layer's experts for a token, linear in what the EAGLE head reads for it: [norm(embedding),
    norm(state)]."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(torch.zeros(LAYERS * N_EXPERTS, 2 * WIDTH))
        self.bias = Parameter(torch.zeros(LAYERS * N_EXPERTS))

    def scores(self, inputs: Tensor) -> Tensor:
        """[..., LAYERS, N_EXPERTS]"""
        out = F.linear(inputs, self.weight.to(COMPUTE), self.bias.to(COMPUTE)).float()
        return out.view(*out.shape[:-1], LAYERS, N_EXPERTS)
