"""Trains the low-rank experts and their routers: next-token loss on all text, Kullback-Leibler distance to the dense
model on chat (so that the manner of answering stays), and a light balance loss."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from base_model import BaseModel
from torch import Tensor
from upcycled import SharedLoraModel, UpcycledModel

_LOGIT_ROWS = 8  # sequences whose logits are in memory at once


def train(
    model: UpcycledModel | SharedLoraModel,
    teacher: BaseModel,
    batches: Iterator[tuple[Tensor, Tensor]],
    log: Path,
    *,
    seconds: float,
    max_tokens: float = float("inf"),
    rate: float = 1.5e-3,
    distil: float = 0.3,
    balance: float = 0.02,
    save: Path | None = None,
) -> dict[str, float]:
    """Until `seconds` or `max_tokens` are used up; the learning rate falls linearly to 2 % over that span.

    Writes a line of JSON to `log` every 20 steps and, for `save`, a checkpoint every minute.
    """
    parameters = list(model.experts.values())
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    start = last_save = time.monotonic()
    seen = step = 0
    with log.open("a") as lines:
        for tokens, is_chat in batches:
            spent = time.monotonic() - start
            done = max(spent / seconds, seen / max_tokens)
            if done >= 1:
                break
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / 40) * (1 - 0.98 * done)
            loss = _backward(model, teacher, tokens.to(model.device), is_chat, distil, balance)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step, seen = step + 1, seen + tokens.numel()
            if step % 20 == 1:
                record = {k: round(v.item(), 4) for k, v in loss.items()}
                record |= {"step": step, "tokens": seen, "seconds": round(time.monotonic() - start, 1)}
                print(json.dumps(record), file=lines, flush=True)
                print(json.dumps(record), flush=True)
            if save is not None and time.monotonic() - last_save > 60:
                model.save(save, tokens=seen, seconds=time.monotonic() - start)
                last_save = time.monotonic()
    notes = {"tokens": seen, "steps": step, "seconds": time.monotonic() - start}
    if save is not None:
        model.save(save, **notes)
    return notes


def _backward(
    model: UpcycledModel | SharedLoraModel,
    teacher: BaseModel,
    tokens: Tensor,
    is_chat: Tensor,
    distil: float,
    balance: float,
) -> dict[str, Tensor]:
    routed = isinstance(model, UpcycledModel)
    if routed:
        model.balance = []
    hidden = model.hidden(tokens)
    chat = is_chat.nonzero().flatten().tolist()
    with torch.no_grad():
        teacher_hidden = teacher.hidden(tokens[chat]) if chat else None
    # The head runs on a few sequences at a time, with its own backward pass down to `hidden`.
    leaf = hidden.detach().requires_grad_()
    next_token, distance = torch.zeros((), device=tokens.device), torch.zeros((), device=tokens.device)
    for first in range(0, len(tokens), _LOGIT_ROWS):
        rows = list(range(first, min(first + _LOGIT_ROWS, len(tokens))))
        logits = model.logits(leaf[rows, :-1])
        part = F.cross_entropy(logits.flatten(0, 1).float(), tokens[rows, 1:].flatten(), reduction="sum")
        part = part / tokens[:, 1:].numel()
        next_token += part.detach()
        inside = [r for r in rows if r in set(chat)]
        if inside:
            own = logits[[r - first for r in inside]].float().log_softmax(-1)
            with torch.no_grad():
                theirs = teacher.logits(teacher_hidden[[chat.index(r) for r in inside], :-1]).float().log_softmax(-1)
            kl = F.kl_div(own, theirs, reduction="sum", log_target=True) / tokens[:, 1:].numel()
            distance += kl.detach()
            part = part + distil * kl
        part.backward()
    loss = {"next_token": next_token, "distance": distance}
    outputs, gradients = [hidden], [leaf.grad]
    if routed:
        loss["balance"] = torch.stack(model.balance).mean()
        outputs, gradients = [hidden, balance * loss["balance"]], [leaf.grad, None]
        model.balance = None
    torch.autograd.backward(outputs, gradients)
    return loss
