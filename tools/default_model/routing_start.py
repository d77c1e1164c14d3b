"""Routers to start training from: in each layer, balanced k-means of the normalised feed-forward inputs, then a linear
map fitted to the cluster labels by ridge regression, scaled so that the better of two chosen experts weighs 0.7 on
average."""

from __future__ import annotations

import torch
from base_model import LAYERS, WIDTH, BaseModel
from torch import Tensor
from upcycled import N_EXPERTS, N_USED

_FIRST_POSITIONS = 4  # left out: their states are outliers


class _Recorder(BaseModel):
    def __init__(self, weights: dict[str, Tensor], device: torch.device | str) -> None:
        super().__init__(weights, device)
        self.inputs: list[list[Tensor]] = [[] for _ in range(LAYERS)]

    def feed_forward(self, layer: int, h: Tensor) -> Tensor:
        self.inputs[layer].append(h[:, _FIRST_POSITIONS:].reshape(-1, WIDTH).float())
        return super().feed_forward(layer, h)


@torch.no_grad()
def starting_routers(weights: dict[str, Tensor], tokens: Tensor, device: torch.device | str) -> list[Tensor]:
    """tokens: [sequences, positions], a mixture of all domains. Returns [N_EXPERTS, WIDTH] of each layer."""
    recorder = _Recorder(weights, device)
    for rows in tokens.split(8):
        recorder.hidden(rows.to(device))
    generator = torch.Generator(recorder.device).manual_seed(0)
    return [_fit(torch.cat(h), generator).cpu() for h in recorder.inputs]


def _fit(h: Tensor, generator: torch.Generator) -> Tensor:
    n = len(h)
    x = torch.nn.functional.normalize(h - h.mean(0), dim=1)
    centres = x[torch.randperm(n, generator=generator, device=h.device)[:N_EXPERTS]]
    offsets = torch.zeros(N_EXPERTS, device=h.device)
    for _ in range(25):
        scores = x @ torch.nn.functional.normalize(centres, dim=1).T
        for _ in range(12):
            share = torch.bincount((scores + offsets).argmax(1), minlength=N_EXPERTS) / n
            offsets += 0.05 * (1 / N_EXPERTS - share)
        label = (scores + offsets).argmax(1)
        member = torch.nn.functional.one_hot(label, N_EXPERTS).float()
        centres = member.T @ x / member.sum(0).clamp(min=1)[:, None]
    gram = h.T @ h
    ridge = 0.01 * gram.diagonal().mean() * torch.eye(WIDTH, device=h.device)
    router = torch.linalg.solve(gram + ridge, h.T @ (member - 1 / N_EXPERTS)).T
    best = (h @ router.T).topk(N_USED, -1).values
    gap, low, high = best[:, 0] - best[:, 1], 0.1, 1000.0
    for _ in range(40):
        scale = (low * high) ** 0.5
        low, high = (scale, high) if torch.sigmoid(gap * scale).mean() < 0.7 else (low, scale)
    return router * scale
