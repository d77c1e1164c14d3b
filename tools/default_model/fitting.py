"""The training loop of draft heads: AdamW, a cosine learning rate, a log, and a checkpoint every minute,
from which a run that was interrupted goes on."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

_SHORTEST = 48
_SAVE_SECONDS = 60
_LOG_STEPS = 20


def batches_by_length(
    lengths: list[int], tokens_per_batch: int, draw: random.Random, shortest: int = _SHORTEST
) -> list[list[int]]:
    """Indices of sequences of like length, in random order of batches; those under `shortest` are left out."""
    order = sorted((i for i, n in enumerate(lengths) if n >= shortest), key=lambda i: lengths[i])
    found, first = [], 0
    while first < len(order):
        last = first
        while last < len(order) and (last + 1 - first) * lengths[order[last]] <= tokens_per_batch:
            last += 1
        found.append(order[first : max(last, first + 1)])
        first = max(last, first + 1)
    draw.shuffle(found)
    return found


def fit(
    module: torch.nn.Module,
    losses: Callable[[list[int]], tuple[dict[str, Tensor], int]],
    one_pass: Callable[[random.Random], list[list[int]]],
    log: Path,
    save: Path,
    *,
    rate: float,
    seed: int,
    seconds: float = math.inf,
    steps: int = 0,
) -> None:
    """Trains for `seconds` or so many `steps`, those of interrupted runs included, and leaves the state dict in `save`.

    Args:
        losses: of a batch of indices: named losses, "loss" the one to lessen, and how many tokens it had.
        one_pass: the batches of a pass over the data, in an order that it draws.
        log: a JSON line every so many steps is added.
        save: beside it lies `save` + ".resume" until training is over.
    """
    optimizer = torch.optim.AdamW(module.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    resume = save.with_name(save.name + ".resume")
    step = seen = 0
    spent = 0.0  # seconds of earlier runs
    if resume.exists():
        state = torch.load(resume, weights_only=True)
        module.load_state_dict(state["module"])
        optimizer.load_state_dict(state["optimizer"])
        step, seen, spent = state["step"], state["tokens"], state["seconds"]
    draw = random.Random(seed + step)
    start = last_save = time.monotonic()

    def checkpoint() -> None:
        staged = save.with_name(save.name + ".part")
        progress = {"step": step, "tokens": seen, "seconds": spent + time.monotonic() - start}
        torch.save({"module": module.state_dict(), "optimizer": optimizer.state_dict(), **progress}, staged)
        staged.replace(resume)

    queue: list[list[int]] = []
    with log.open("a") as lines:
        while (done := step / steps if steps else (spent + time.monotonic() - start) / seconds) < 1:
            queue = queue or one_pass(draw)
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / 30) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * done)))
            loss, n_tokens = losses(queue.pop())
            loss["loss"].backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step, seen = step + 1, seen + n_tokens
            if step % _LOG_STEPS == 1:
                record = {k: round(v.item(), 4) for k, v in loss.items()}
                record |= {"step": step, "tokens": seen, "seconds": round(spent + time.monotonic() - start, 1)}
                print(json.dumps(record), file=lines, flush=True)
                print(json.dumps(record), flush=True)
            if time.monotonic() - last_save > _SAVE_SECONDS:
                checkpoint()
                last_save = time.monotonic()
    staged = save.with_name(save.name + ".part")
    torch.save(module.state_dict(), staged)
    staged.replace(save)
    resume.unlink(missing_ok=True)
