"""Trains the EAGLE-3 head, the Medusa heads and the expert predictor together: all need the same pass of the target.

The EAGLE head is unrolled over its own outputs for several draft steps (EAGLE-3's training-time test); each step is
fitted to the target's distribution, with falling weight.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from base_model import COMPUTE, END_OF_TEXT, TURN_END, TURN_START, BaseModel
from draft_heads import N_MEDUSA, TAPS, EagleHead, ExpertPredictor, MedusaHeads
from torch import Tensor
from upcycled import N_EXPERTS, UpcycledModel

STEPS = 4
_STEP_WEIGHT = 0.85
_SHORTEST = 48


class Heads(torch.nn.Module):
    """All that is trained here. vocabulary: int64 target ids of the draft vocabulary, rising."""

    def __init__(self, vocabulary: Tensor) -> None:
        super().__init__()
        self.register_buffer("vocabulary", vocabulary)
        self.eagle, self.medusa, self.predictor = EagleHead(len(vocabulary)), MedusaHeads(), ExpertPredictor()


def draft_vocabulary(sequences: list[np.ndarray], others: list[np.ndarray], size: int) -> Tensor:
    """The most frequent ids, those of `sequences` counted four times."""
    count: Counter[int] = Counter({END_OF_TEXT: 10**9, TURN_START: 10**9, TURN_END: 10**9})
    for weight, rows in ((4, sequences), (1, others)):
        ids, n = np.unique(np.concatenate(rows), return_counts=True)
        count.update({int(i): weight * int(c) for i, c in zip(ids, n, strict=True)})
    return torch.tensor(sorted(i for i, _ in count.most_common(size)))


@torch.no_grad()
def observe(model: BaseModel, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """features [B, T, 3 * WIDTH] float32, last hidden [B, T, WIDTH], chosen experts [B, T, layers, N_USED] or None."""
    taps: dict[int, Tensor] = dict.fromkeys(TAPS)
    routed = isinstance(model, UpcycledModel)
    if routed:
        model.record = []
    hidden = model.hidden(tokens, taps=taps)
    chosen = None
    if routed:
        chosen = torch.stack([ids.view(*tokens.shape, -1) for ids in model.record], 2)
        model.record = None
    return torch.cat([taps[layer] for layer in TAPS], -1), hidden, chosen


@torch.no_grad()
def start_from_target(heads: Heads, model: BaseModel, sample: Tensor) -> None:
    """Feature scales, and the output matrix from the target's rows."""
    features, _, _ = observe(model, sample)
    features = features[:, 20:].flatten(0, 1)
    features = features * torch.rsqrt(features.square().mean(-1, keepdim=True))
    heads.eagle.feature_norm.copy_((1 / features.std(0).clamp(min=1e-3)).clamp(max=50.0))
    heads.eagle.output.copy_(model.weights["token_embd.weight"][heads.vocabulary].float())
    heads.eagle.output_norm.copy_(model.weights["output_norm.weight"].float())


@torch.no_grad()
def target_distribution(model: BaseModel, hidden: Tensor, vocabulary: Tensor) -> Tensor:
    """[B, T, draft vocabulary], the mass outside left out."""
    parts = []
    for rows in hidden.split(4):
        logits = model.logits(rows)
        total = torch.stack([part.float().logsumexp(-1) for part in logits])
        parts.append((logits[..., vocabulary].float() - total[..., None]).exp().to(COMPUTE))
    return torch.cat(parts)


def losses(heads: Heads, model: BaseModel, tokens: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    """tokens: [B, T] padded behind `lengths`."""
    features, hidden, chosen = observe(model, tokens)
    p = target_distribution(model, hidden, heads.vocabulary)
    n = tokens.shape[1] - 1 - STEPS
    place = torch.arange(n, device=tokens.device)
    embedding = model.weights["token_embd.weight"]
    state = heads.eagle.first_state(features[:, :n])
    past: list[tuple[Tensor, Tensor]] = []
    out = {"eagle": torch.zeros((), device=tokens.device), "predictor": torch.zeros((), device=tokens.device)}
    for step in range(STEPS):
        here = embedding[tokens[:, 1 + step : 1 + step + n]]
        seen = (place + 2 + step < lengths[:, None]).float()
        if chosen is not None:
            scores = heads.predictor.scores(heads.eagle.inputs(here, state).detach()).log_softmax(-1)
            wanted = chosen[:, 1 + step : 1 + step + n]
            nll = -scores.gather(-1, wanted).mean(-1).mean(-1)
            out["predictor"] = out["predictor"] + (nll * seen).sum() / seen.sum() / STEPS
        state = heads.eagle.step(here, state, place + step, past)
        log_q = heads.eagle.logits(state).log_softmax(-1)
        cross = -(p[:, 1 + step : 1 + step + n].float() * log_q).sum(-1)
        loss = (cross * seen).sum() / seen.sum()
        out[f"eagle_{step + 1}"] = loss.detach()
        out["eagle"] = out["eagle"] + loss * _STEP_WEIGHT**step
    rows = model.weights["token_embd.weight"][heads.vocabulary]
    out["medusa"] = torch.zeros((), device=tokens.device)
    for i, head_state in enumerate(heads.medusa.states(hidden[:, :n])):
        log_q = torch.nn.functional.linear(head_state, rows).float().log_softmax(-1)
        seen = (place + 2 + i < lengths[:, None]).float()
        cross = -(p[:, 1 + i : 1 + i + n].float() * log_q).sum(-1)
        out["medusa"] = out["medusa"] + (cross * seen).sum() / seen.sum() * 0.9**i / N_MEDUSA
    return out


def batches_by_length(sequences: list[np.ndarray], tokens_per_batch: int, draw: random.Random) -> list[list[int]]:
    """Indices of sequences of like length, in random order of batches."""
    order = sorted((i for i, s in enumerate(sequences) if len(s) >= _SHORTEST), key=lambda i: len(sequences[i]))
    found, first = [], 0
    while first < len(order):
        last = first
        while last < len(order) and (last + 1 - first) * len(sequences[order[last]]) <= tokens_per_batch:
            last += 1
        found.append(order[first : max(last, first + 1)])
        first = max(last, first + 1)
    draw.shuffle(found)
    return found


def padded(sequences: list[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(s) for s in sequences])
    tokens = torch.zeros(len(sequences), int(lengths.max()), dtype=torch.long)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = torch.from_numpy(sequence.astype(np.int64))
    return tokens.to(device), lengths.to(device)


def train(
    heads: Heads,
    model: BaseModel,
    sequences: list[np.ndarray],
    log: Path,
    save: Path,
    *,
    seconds: float,
    tokens_per_batch: int,
    rate: float = 1.5e-3,
    seed: int = 0,
) -> None:
    """Passes over `sequences` for `seconds`, cosine learning rate, a checkpoint every minute."""
    draw = random.Random(seed)
    optimizer = torch.optim.AdamW(heads.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    start = last_save = time.monotonic()
    seen = step = 0
    queue: list[list[int]] = []
    with log.open("a") as lines:
        while (done := (time.monotonic() - start) / seconds) < 1:
            if not queue:
                queue = batches_by_length(sequences, tokens_per_batch, draw)
            tokens, lengths = padded([sequences[i] for i in queue.pop()], model.device)
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / 30) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * done)))
            loss = losses(heads, model, tokens, lengths)
            (loss["eagle"] + loss["medusa"] + loss["predictor"]).backward()
            torch.nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step, seen = step + 1, seen + int(tokens.numel())
            if step % 20 == 1:
                record = {k: round(v.item(), 4) for k, v in loss.items()}
                record |= {"step": step, "tokens": seen, "seconds": round(time.monotonic() - start, 1)}
                print(json.dumps(record), file=lines, flush=True)
                print(json.dumps(record), flush=True)
            if time.monotonic() - last_save > 60:
                torch.save(heads.state_dict(), save)
                last_save = time.monotonic()
    torch.save(heads.state_dict(), save)


@torch.no_grad()
def predictor_recall(heads: Heads, model: UpcycledModel, sequences: list[np.ndarray]) -> dict[str, list[float]]:
    """Recall of the true experts at their true number, per layer: of the head for the tokens of draft depth 1 and 2,
    and of `last`, the token before."""
    hits: dict[str, Tensor] = {}
    count = 0
    for sequence in sequences:
        tokens, _ = padded([sequence], model.device)
        features, _, chosen = observe(model, tokens)
        n = tokens.shape[1] - 3
        true = torch.nn.functional.one_hot(chosen, N_EXPERTS).amax(-2)
        embedding = model.weights["token_embd.weight"]
        state = heads.eagle.first_state(features[:, :n])
        past: list[tuple[Tensor, Tensor]] = []
        for depth in (1, 2):
            here = embedding[tokens[:, depth : depth + n]]
            best = heads.predictor.scores(heads.eagle.inputs(here, state)).topk(chosen.shape[-1], -1).indices
            right = true[:, depth : depth + n].gather(-1, best).sum((0, 1, 3))
            hits[f"head, depth {depth}"] = hits.get(f"head, depth {depth}", 0) + right
            state = heads.eagle.step(here, state, torch.arange(n, device=tokens.device) + depth - 1, past)
        hits["last"] = hits.get("last", 0) + (true[:, 1 : 1 + n] * true[:, :n]).sum((0, 1, 3))
        count += n * chosen.shape[-1]
    return {name: (h.float() / count).tolist() for name, h in hits.items()}
