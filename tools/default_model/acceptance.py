"""How many tokens a verified step gives at temperature 0, simulated on text that the target wrote greedily: from every
position the drafter's tree is grown as in EAGLE-2 (Li et al. 2024) and the written continuation is looked up in it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from base_model import COMPUTE, HEAD_DIM, HEADS, KV_HEADS, WIDTH, BaseModel, rotate
from draft_heads import EagleHead
from torch import Tensor
from train_heads import Heads, observe, padded

DEPTH, TOP_K, NODES = 4, 8, 32


@dataclass
class Acceptance:
    """steps, tokens: of walks over whole texts, the bonus token counted. scored: the nodes by tenth of their score."""

    steps: int = 0
    tokens: int = 0
    per_depth: list[int] = field(default_factory=lambda: [0] * DEPTH)
    scored: np.ndarray = field(default_factory=lambda: np.zeros((10, 3)))  # nodes, sum of scores, accepted nodes

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / max(1, self.steps)

    @property
    def calibration_error(self) -> float:
        """Expected calibration error of the scores over the nodes of all trees."""
        nodes, score, right = self.scored.T
        return float((np.abs(score - right)).sum() / max(1.0, nodes.sum()))

    def walk(self, accepted: Tensor, first: int) -> None:
        """accepted: [positions] accepted draft tokens of a step that starts there; the text is walked from `first`."""
        at = first
        while at < len(accepted):
            n = int(accepted[at])
            self.steps, self.tokens = self.steps + 1, self.tokens + n + 1
            for depth in range(n):
                self.per_depth[depth] += 1
            at += n + 1


@torch.no_grad()
def eagle_acceptance(heads: Heads, model: BaseModel, sequence: np.ndarray, prompt: int, into: Acceptance) -> None:
    """sequence: a prompt of `prompt` tokens and the target's greedy continuation."""
    eagle, device = heads.eagle, model.device
    tokens, _ = padded([sequence], device)
    features, _, _ = observe(model, tokens)
    n = tokens.shape[1] - 2
    place = torch.arange(n, device=device)
    embedding = model.weights["token_embd.weight"]
    past: list[tuple[Tensor, Tensor]] = []
    out = eagle.step(embedding[tokens[:, 1 : 1 + n]], eagle.first_state(features[:, :n]), place, past)[0]
    base_keys, base_values = (x[0, ::1] for x in past[0])  # [HEADS, n, HEAD_DIM]
    # Frontier: TOP_K nodes of each start; truth: whether the path so far is the written text.
    score, child = eagle.logits(out).softmax(-1).topk(TOP_K, -1)
    ids = heads.vocabulary[child]
    truth = ids == _written(tokens, place, 2)[:, None]
    all_scores, all_truth, all_depth = [score], [truth], [torch.ones_like(ids)]
    state = out[:, None].expand(n, TOP_K, WIDTH)
    chain: list[tuple[Tensor, Tensor]] = []
    for depth in range(2, DEPTH + 1):
        z = eagle.inputs(embedding[ids], state)
        out, keys, values = _tree_step(eagle, z, state, place + depth - 1, base_keys, base_values, chain)
        p, child = eagle.logits(out).softmax(-1).topk(TOP_K, -1)
        joint = (score[..., None] * p).flatten(1)  # [n, TOP_K * TOP_K]
        right = (heads.vocabulary[child] == _written(tokens, place, depth + 1)[:, None, None]) & truth[..., None]
        all_scores.append(joint)
        all_truth.append(right.flatten(1))
        all_depth.append(torch.full_like(child.flatten(1), depth))
        score, best = joint.topk(TOP_K, -1)
        parent = best // TOP_K
        ids = heads.vocabulary[child].flatten(1).gather(1, best)
        truth = right.flatten(1).gather(1, best)
        state = out.gather(1, parent[..., None].expand(-1, -1, WIDTH))
        at = parent[..., None, None].expand(-1, -1, HEADS, HEAD_DIM)
        chain = [(k.gather(1, at), v.gather(1, at)) for k, v in [*chain, (keys, values)]]
    _count(torch.cat(all_scores, 1), torch.cat(all_truth, 1), torch.cat(all_depth, 1), prompt, into)


def _tree_step(
    eagle: EagleHead, z: Tensor, state: Tensor, positions: Tensor, base_keys: Tensor, base_values: Tensor, chain: list
) -> tuple[Tensor, Tensor, Tensor]:
    """z: [n, nodes, 2 * WIDTH]. A node sees the text up to its start, its ancestors in `chain` and itself."""
    n, nodes, _ = z.shape
    cos, sin = (table.to(z.device)[positions] for table in eagle.rope)

    def split(weight: Tensor, heads: int) -> Tensor:
        return F.linear(z, weight.to(COMPUTE)).view(n, nodes, heads, HEAD_DIM).permute(1, 2, 0, 3)

    q = rotate(split(eagle.q, HEADS), cos, sin)  # [nodes, HEADS, n, HEAD_DIM]
    k = rotate(split(eagle.k, KV_HEADS), cos, sin).repeat_interleave(HEADS // KV_HEADS, 1)
    v = split(eagle.v, KV_HEADS).repeat_interleave(HEADS // KV_HEADS, 1)
    own_key, own_value = k.permute(2, 0, 1, 3), v.permute(2, 0, 1, 3)  # [n, nodes, HEADS, HEAD_DIM]
    scores = (q @ base_keys.transpose(-1, -2)).float() / math.sqrt(HEAD_DIM)
    scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool, device=z.device).triu(1), -1e9)
    path = [*chain, (own_key, own_value)]
    own = [(q * key.permute(1, 2, 0, 3)).sum(-1, keepdim=True).float() / math.sqrt(HEAD_DIM) for key, _ in path]
    p = torch.cat([scores, *own], -1).softmax(-1).to(COMPUTE)
    mixed = p[..., :n] @ base_values
    for i, (_, value) in enumerate(path):
        mixed = mixed + p[..., n + i, None] * value.permute(1, 2, 0, 3)
    return eagle.finish(state, mixed.permute(2, 0, 1, 3).reshape(n, nodes, HEADS * HEAD_DIM)), own_key, own_value


@torch.no_grad()
def medusa_acceptance(heads: Heads, model: BaseModel, sequence: np.ndarray, prompt: int, into: Acceptance) -> None:
    """As eagle_acceptance; the heads guess depth by depth from the same state, whatever the path."""
    tokens, _ = padded([sequence], model.device)
    _, hidden, _ = observe(model, tokens)
    n = tokens.shape[1] - 2
    place = torch.arange(n, device=model.device)
    rows = model.weights["token_embd.weight"][heads.vocabulary]
    score, truth = None, None
    all_scores, all_truth, all_depth = [], [], []
    for depth, state in enumerate(heads.medusa.states(hidden[0, :n]), 1):
        p, child = F.linear(state, rows).float().softmax(-1).topk(TOP_K, -1)
        right = heads.vocabulary[child] == _written(tokens, place, depth + 1)[:, None]
        if score is not None:
            p = (score[..., None] * p[:, None]).flatten(1)
            right = (truth[..., None] & right[:, None]).flatten(1)
        all_scores.append(p)
        all_truth.append(right)
        all_depth.append(torch.full_like(right, depth, dtype=torch.long))
        score, best = p.topk(TOP_K, -1)
        truth = right.gather(1, best)
    _count(torch.cat(all_scores, 1), torch.cat(all_truth, 1), torch.cat(all_depth, 1), prompt, into)


def _written(tokens: Tensor, place: Tensor, ahead: int) -> Tensor:
    """The token `ahead` places after each start; -1 past the end."""
    at = place + ahead
    return torch.where(at < tokens.shape[1], tokens[0, at.clamp(max=tokens.shape[1] - 1)], -1)


def _count(scores: Tensor, truth: Tensor, depth: Tensor, prompt: int, into: Acceptance) -> None:
    kept_scores, kept = scores.topk(min(NODES, scores.shape[1]), -1)
    kept_truth = truth.gather(1, kept)
    accepted = (depth.gather(1, kept) * kept_truth).amax(1)
    first = max(prompt - 1, 0)
    into.walk(accepted, first)
    s, t = kept_scores[first:].flatten().cpu().numpy(), kept_truth[first:].flatten().cpu().numpy()
    bins = np.minimum((s * 10).astype(int), 9)
    for column, values in enumerate((np.ones_like(s), s, t.astype(float))):
        into.scored[:, column] += np.bincount(bins, values, 10)
