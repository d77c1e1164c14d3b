"""Perplexity by domain and routing statistics of a model in torch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from base_model import LAYERS, TURN_START, BaseModel
from torch import Tensor
from upcycled import N_EXPERTS, UpcycledModel

_BATCH = 8


@torch.no_grad()
def perplexity(model: BaseModel, rows: Tensor) -> float:
    """rows: [n, positions]. The first 16 positions of a row are context only."""
    total, count = 0.0, 0
    for tokens in rows.split(_BATCH):
        tokens = tokens.to(model.device)
        logits = model.logits(model.hidden(tokens)[:, 15:-1]).float()
        losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 16:].flatten(), reduction="none")
        counted = tokens[:, 16:].flatten() != TURN_START  # the template, not text
        total, count = total + losses[counted].sum().item(), count + int(counted.sum())
    return math.exp(total / count)


@torch.no_grad()
def chosen_experts(model: UpcycledModel, rows: Tensor) -> Tensor:
    """[LAYERS, n, positions, N_USED] ids."""
    parts = []
    for tokens in rows.split(_BATCH):
        model.record = []
        model.hidden(tokens.to(model.device))
        parts.append(torch.stack([ids.view(*tokens.shape, -1) for ids in model.record]).cpu())
    model.record = None
    return torch.cat(parts, 1)


def expert_shares(chosen: Tensor) -> Tensor:
    """[LAYERS, N_EXPERTS], each layer's sum is 1."""
    return torch.stack(
        [torch.bincount(chosen[layer].flatten(), minlength=N_EXPERTS).float() for layer in range(LAYERS)]
    ) / (chosen[0].numel())


def unions(chosen: Tensor, lengths: tuple[int, ...] = (2, 4, 8, 16, 32)) -> dict[int, tuple[float, float]]:
    """For runs of that many consecutive tokens: the mean number of distinct experts of a layer, and what independent
    tokens with the same shares would have."""
    used = F.one_hot(chosen, N_EXPERTS).amax(-2).float()  # [layers, n, positions, experts]
    share = used.mean((1, 2))
    result = {}
    for length in lengths:
        union = used.unfold(2, length, 1).amax(-1).sum(-1).mean().item()
        result[length] = (union, (1 - (1 - share) ** length).sum(-1).mean().item())
    return result


def overlap(chosen: Tensor) -> float:
    """Mean share of a token's experts that the token before it used too."""
    used = F.one_hot(chosen, N_EXPERTS).amax(-2).float()
    return ((used[:, :, 1:] * used[:, :, :-1]).sum(-1).mean() / chosen.shape[-1]).item()
