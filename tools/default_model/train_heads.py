"""Trains the EAGLE-3 head, the Medusa heads and the expert predictor together: all need the same pass of the target.

The EAGLE head is unrolled over its own outputs for several draft steps (EAGLE-3's training-time test); each step is
fitted to the target's distribution, with falling weight.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from base_model import COMPUTE, END_OF_TEXT, TURN_END, TURN_START, BaseModel
from draft_heads import N_MEDUSA, TAPS, EagleHead, ExpertPredictor, MedusaHeads
from fitting import batches_by_length, fit
from torch import Tensor
from upcycled import N_EXPERTS, UpcycledModel

STEPS = 4
_STEP_WEIGHT = 0.85


class Heads(torch.nn.Module):
    """All that is trained here. vocabulary: int64 target ids of the draft vocabulary, rising."""

    def __init__(self, vocabulary: Tensor) -> None:
        super().__init__()
        self.register_buffer("vocabulary", vocabulary)
        self.eagle, self.medusa, self.predictor = EagleHead(len(vocabulary)), MedusaHeads(), ExpertPredictor()


def draft_vocabulary(
    sequences: list[np.ndarray],
    others: list[np.ndarray],
    size: int,
    always: tuple[int, ...] = (END_OF_TEXT, TURN_START, TURN_END),
) -> Tensor:
    """The `size` most frequent ids, those of `sequences` counted four times; `always` are among them. Where the text
    has fewer, the lowest other ids: merges of BPE are in order of how frequent they were."""
    count: Counter[int] = Counter(dict.fromkeys(always, 10**9))
    for weight, rows in ((4, sequences), (1, others)):
        if not rows:
            continue
        ids, n = np.unique(np.concatenate(rows), return_counts=True)
        count.update({int(i): weight * int(c) for i, c in zip(ids, n, strict=True)})
    found = [i for i, _ in count.most_common(size)]
    unseen = (i for i in range(size + len(found)) if i not in count)
    return torch.tensor(sorted([*found, *itertools.islice(unseen, size - len(found))]))


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
    rows = model.weights["token_embd.weight"][heads.vocabulary]
    heads.eagle.start_from_target(features[:, 20:].flatten(0, 1), rows, model.weights["output_norm.weight"])


@torch.no_grad()
def target_distribution(model: BaseModel, hidden: Tensor, vocabulary: Tensor) -> Tensor:
    """[B, T, draft vocabulary], the mass outside left out."""
    parts = []
    for rows in hidden.split(4):
        logits = model.logits(rows)
        total = torch.stack([part.float().logsumexp(-1) for part in logits])
        parts.append((logits[..., vocabulary].float() - total[..., None]).exp().to(COMPUTE))
    return torch.cat(parts)


def eagle_losses(
    eagle: EagleHead,
    features: Tensor,
    embedding: Callable[[Tensor], Tensor],
    p: Tensor,
    tokens: Tensor,
    lengths: Tensor,
    at_inputs: Callable[[int, Tensor, Tensor], None] | None = None,
) -> dict[str, Tensor]:
    """The weighted sum of the steps' cross-entropies as "eagle", and each as "eagle_1", "eagle_2", ..

    Args:
        features: [B, T, taps * width] of the target at tokens [B, T], which are padded behind `lengths`.
        embedding: token ids to their embeddings.
        p: [B, T, draft vocabulary] the target's distribution after each token.
        at_inputs: told each step, what the head reads there, and which positions count.
    """
    n = tokens.shape[1] - 1 - STEPS
    place = torch.arange(n, device=tokens.device)
    state = eagle.first_state(features[:, :n])
    past: list[tuple[Tensor, Tensor]] = []
    out = {"eagle": torch.zeros((), device=tokens.device)}
    for step in range(STEPS):
        here = embedding(tokens[:, 1 + step : 1 + step + n])
        seen = (place + 2 + step < lengths[:, None]).float()
        if at_inputs is not None:
            at_inputs(step, eagle.inputs(here, state).detach(), seen)
        state = eagle.step(here, state, place + step, past)
        log_q = eagle.logits(state).log_softmax(-1)
        cross = -(p[:, 1 + step : 1 + step + n].float() * log_q).sum(-1)
        loss = (cross * seen).sum() / seen.sum().clamp(min=1)
        out[f"eagle_{step + 1}"] = loss.detach()
        out["eagle"] = out["eagle"] + loss * _STEP_WEIGHT**step
    return out


def losses(heads: Heads, model: BaseModel, tokens: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    """tokens: [B, T] padded behind `lengths`."""
    features, hidden, chosen = observe(model, tokens)
    p = target_distribution(model, hidden, heads.vocabulary)
    n = tokens.shape[1] - 1 - STEPS
    place = torch.arange(n, device=tokens.device)
    predictor = [torch.zeros((), device=tokens.device)]

    def predict(step: int, inputs: Tensor, seen: Tensor) -> None:
        scores = heads.predictor.scores(inputs).log_softmax(-1)
        nll = -scores.gather(-1, chosen[:, 1 + step : 1 + step + n]).mean(-1).mean(-1)
        predictor.append((nll * seen).sum() / seen.sum() / STEPS)

    embeddings = model.weights["token_embd.weight"]
    out = eagle_losses(
        heads.eagle, features, embeddings.__getitem__, p, tokens, lengths, None if chosen is None else predict
    )
    out["predictor"] = torch.stack(predictor).sum()
    rows = embeddings[heads.vocabulary]
    out["medusa"] = torch.zeros((), device=tokens.device)
    for i, head_state in enumerate(heads.medusa.states(hidden[:, :n])):
        log_q = torch.nn.functional.linear(head_state, rows).float().log_softmax(-1)
        seen = (place + 2 + i < lengths[:, None]).float()
        cross = -(p[:, 1 + i : 1 + i + n].float() * log_q).sum(-1)
        out["medusa"] = out["medusa"] + (cross * seen).sum() / seen.sum() * 0.9**i / N_MEDUSA
    return out


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
    """Passes over `sequences` for `seconds`."""

    def loss_of(chosen: list[int]) -> tuple[dict[str, Tensor], int]:
        tokens, lengths = padded([sequences[i] for i in chosen], model.device)
        found = losses(heads, model, tokens, lengths)
        return found | {"loss": found["eagle"] + found["medusa"] + found["predictor"]}, int(tokens.numel())

    def one_pass(draw: random.Random) -> list[list[int]]:
        return batches_by_length([len(s) for s in sequences], tokens_per_batch, draw)

    fit(heads, loss_of, one_pass, log, save, seconds=seconds, rate=rate, seed=seed)


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
