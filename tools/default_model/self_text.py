"""Conversations that a model writes by itself (Xu et al. 2024, "Magpie"): given the opened user turn, or a first word
of it, it writes the question and then the answer. Licence-clean, and the very distribution that draft heads must
follow."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import torch
from base_model import END_OF_TEXT, TURN_END, BaseModel, Cache
from torch import Tensor

_USER_TOKENS = 100  # a longer question is dropped
_TOP_K, _TOP_P = 64, 0.95


@torch.no_grad()
def conversations(
    model: BaseModel,
    openings: list[list[int]],
    is_complete: list[bool],
    answer_start: list[int],
    temperatures: list[float],
    positions: int,
    seed: int,
) -> list[np.ndarray]:
    """Completes a batch of conversations; those that came to no end within `positions` are cut there.

    Args:
        model: who writes.
        openings: token ids of each row; all share their first tokens (the system prompt).
        is_complete: whether the row's opening is a whole prompt; else the model ends the user's turn itself.
        answer_start: the tokens between a user's turn and the answer.
        temperatures: of the answers; questions are drawn at 1.
        positions: tokens in all.
        seed: of the draws.

    Returns:
        uint16 token ids of each row that got an answer.
    """
    device, batch = model.device, len(openings)
    shared = 0
    while all(len(o) > shared + 1 and o[shared] == openings[0][shared] for o in openings):
        shared += 1
    tokens = torch.zeros(batch, positions + len(answer_start) + 1, dtype=torch.long)
    for row, opening in enumerate(openings):
        tokens[row, : len(opening)] = torch.tensor(opening)
    tokens = tokens.to(device)
    given = torch.tensor([len(o) for o in openings], device=device)  # positions before this are not drawn
    opened = given.clone()
    answering = torch.tensor(is_complete, device=device)
    heat = torch.tensor(temperatures, device=device)
    length = torch.zeros(batch, dtype=torch.long, device=device)  # 0: not ended
    dropped = torch.zeros(batch, dtype=torch.bool, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    cache = Cache(batch, positions, device)
    hidden = model.hidden(tokens[:, :shared], cache)
    for at in range(shared, positions):
        drawn = _draw(model.logits(hidden[:, -1]), torch.where(answering, heat, 1.0), generator)
        is_given = at < given
        tokens[:, at] = torch.where(is_given, tokens[:, at], drawn)
        ends = ~is_given & ((drawn == TURN_END) | (drawn == END_OF_TEXT)) & (length == 0) & ~dropped
        turns = ends & ~answering & (drawn == TURN_END)
        dropped |= (ends & ~answering & ~turns) | (~answering & (at - opened > _USER_TOKENS))
        length = torch.where(ends & answering, at + 1, length)
        for i, token in enumerate(answer_start):
            tokens[:, at + 1 + i] = torch.where(turns, token, tokens[:, at + 1 + i])
        given = torch.where(turns, at + 1 + len(answer_start), given)
        answering |= turns
        if at % 16 == 0 and ((length > 0) | dropped).float().mean() > 0.9:
            break
        hidden = model.hidden(tokens[:, at : at + 1], cache)
    length = torch.where((length == 0) & answering & ~dropped, at, length).tolist()
    rows = tokens.cpu().numpy().astype(np.uint16)
    return [rows[i, :n] for i, n in enumerate(length) if n > shared + 8]


def _draw(logits: Tensor, temperature: Tensor, generator: torch.Generator) -> Tensor:
    values, ids = logits.float().topk(_TOP_K, -1)
    p = (values / temperature.clamp(min=1e-3)[:, None]).softmax(-1)
    p = p * ((p.cumsum(-1) - p) < _TOP_P)
    return ids.gather(1, torch.multinomial(p, 1, generator=generator))[:, 0]


def openings_for(
    prompts: dict[str, list[list[int]]], batch: int, seed: int
) -> Iterator[tuple[list[list[int]], list[bool]]]:
    """Batches of openings without end: 3/4 free or started questions, 1/4 whole prompts.

    prompts: "starts" (openings that end inside the user's turn) and "questions" (whole prompts).
    """
    draw = random.Random(seed)
    while True:
        whole = [bool(prompts["questions"]) and draw.random() < 0.25 for _ in range(batch)]
        yield [draw.choice(prompts["questions" if w else "starts"]) for w in whole], whole
