"""Token sequences for training: rows of a fixed length out of flat token files, mixed by domain."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

DOMAINS = ("code", "documentation", "prose", "mathematics", "chat")
# Shares of a training batch.
MIXTURE = {"code": 0.22, "documentation": 0.18, "prose": 0.15, "mathematics": 0.2, "chat": 0.25}


def load_rows(path: Path, positions: int) -> Tensor:
    """[rows, positions] int64; the tail that fills no row is left out."""
    flat = np.load(path)
    n = len(flat) // positions
    return torch.from_numpy(flat[: n * positions].astype(np.int64)).view(n, positions)


def mixed_batches(rows: dict[str, Tensor], batch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Without end: tokens [batch, positions] and whether each row is chat. A domain is reshuffled after a full pass."""
    draw = random.Random(seed)
    order: dict[str, list[int]] = {domain: [] for domain in rows}
    names = list(rows)
    while True:
        chosen = sorted(draw.choices(names, [MIXTURE[n] for n in names], k=batch))
        picked = []
        for domain in chosen:
            if not order[domain]:
                order[domain] = draw.sample(range(len(rows[domain])), len(rows[domain]))
            picked.append(rows[domain][order[domain].pop()])
        yield torch.stack(picked), torch.tensor([domain == "chat" for domain in chosen])
