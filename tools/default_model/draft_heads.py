"""What drafts for the model and predicts its experts: an EAGLE-3 head (Li et al. 2025), Medusa heads (Cai et al. 2024)
and a linear predictor of expert sets. All read the target's hidden states; token embeddings are the target's own."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from base_model import COMPUTE, EPSILON, FFN, HEAD_DIM, HEADS, KV_HEADS, LAYERS, WIDTH, rope_tables, rotate
from torch import Tensor
from torch.nn import Parameter
from upcycled import N_EXPERTS

TAPS = (2, LAYERS // 2, LAYERS - 3)  # layers whose inputs are the features
N_MEDUSA = 3


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x.float(), (x.shape[-1],), weight, EPSILON).to(COMPUTE)


def _matrix(outputs: int, inputs: int) -> Parameter:
    return Parameter(torch.randn(outputs, inputs) / math.sqrt(inputs))


class EagleHead(torch.nn.Module):
    """One decoder layer over [norm(embedding), norm(state)], as llama.cpp's `eagle3` with norm_before_fc.

    The state of position i is fc of the target's features at i, and goes with token i + 1; further draft steps take the
    head's own output before its last norm. Logits are over the draft vocabulary.
    """

    def __init__(self, draft_vocabulary: int) -> None:
        super().__init__()
        self.fc = _matrix(WIDTH, len(TAPS) * WIDTH)
        self.q, self.k, self.v = (_matrix(n * HEAD_DIM, 2 * WIDTH) for n in (HEADS, KV_HEADS, KV_HEADS))
        self.o = Parameter(torch.randn(WIDTH, HEADS * HEAD_DIM) * 0.3 / math.sqrt(WIDTH))
        self.gate, self.up = _matrix(FFN, WIDTH), _matrix(FFN, WIDTH)
        self.down = Parameter(torch.zeros(WIDTH, FFN))
        self.feature_norm = Parameter(torch.ones(len(TAPS) * WIDTH))
        self.embedding_norm, self.state_norm, self.ffn_norm, self.output_norm = (
            Parameter(torch.ones(WIDTH)) for _ in range(4)
        )
        self.output = _matrix(draft_vocabulary, WIDTH)
        self.rope = rope_tables("cpu")

    def first_state(self, features: Tensor) -> Tensor:
        """features: [..., 3 * WIDTH] float32."""
        return F.linear(_norm(features, self.feature_norm), self.fc.to(COMPUTE)).float()

    def inputs(self, embedding: Tensor, state: Tensor) -> Tensor:
        return torch.cat([_norm(embedding, self.embedding_norm), _norm(state, self.state_norm)], -1)

    def step(self, embedding: Tensor, state: Tensor, positions: Tensor, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        """One draft step for every start position of a batch of sequences [B, T, WIDTH] at once.

        past: keys and values of the earlier steps. Of the first step a position sees all up to its own; of a later step
        only its own, the token that its own draft put there.
        """
        z = self.inputs(embedding, state)
        batch, n, _ = z.shape
        cos, sin = (table.to(z.device)[positions] for table in self.rope)

        def split(weight: Tensor, heads: int) -> Tensor:
            return F.linear(z, weight.to(COMPUTE)).view(batch, n, heads, HEAD_DIM).transpose(1, 2)

        q = rotate(split(self.q, HEADS), cos, sin)
        k = rotate(split(self.k, KV_HEADS), cos, sin).repeat_interleave(HEADS // KV_HEADS, 1)
        v = split(self.v, KV_HEADS).repeat_interleave(HEADS // KV_HEADS, 1)
        past.append((k, v))
        scores = (q @ past[0][0].transpose(-1, -2)).float() / math.sqrt(HEAD_DIM)
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool, device=z.device).triu(1), -1e9)
        own = [(q * key).sum(-1, keepdim=True).float() / math.sqrt(HEAD_DIM) for key, _ in past[1:]]
        p = torch.cat([scores, *own], -1).softmax(-1).to(COMPUTE)
        mixed = p[..., :n] @ past[0][1]
        for i, (_, value) in enumerate(past[1:]):
            mixed = mixed + p[..., n + i, None] * value
        return self.finish(state, mixed.transpose(1, 2).reshape(batch, n, HEADS * HEAD_DIM))

    def finish(self, state: Tensor, mixed: Tensor) -> Tensor:
        x = state + F.linear(mixed, self.o.to(COMPUTE)).float()
        h = _norm(x, self.ffn_norm)
        inner = F.silu(F.linear(h, self.gate.to(COMPUTE))) * F.linear(h, self.up.to(COMPUTE))
        return x + F.linear(inner, self.down.to(COMPUTE)).float()

    def logits(self, state: Tensor) -> Tensor:
        return F.linear(_norm(state, self.output_norm), self.output.to(COMPUTE)).float()


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
