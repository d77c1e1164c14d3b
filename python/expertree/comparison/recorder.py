"""Records runs for `speculation_trace`: drafts at every position of a text and verifies all of every tree."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from expertree.comparison.drafts import Draft
from expertree.comparison.speculation_trace import RecordedSequence, SpeculationTrace, TraceCosts
from expertree.errors import InvalidRequestError
from expertree.expert_plan import layer_slots
from expertree.model import Model
from expertree.session import Session
from expertree.speculation import DraftTree, Selector

CURVE_ROWS = (1, 2, 3, 5, 9, 17, 33)
_CURVE_POSITIONS = 6


class _Nothing(Selector):
    """Every step is a plain one, with a tree to look at."""

    def select(self, tree: DraftTree, cost: Any) -> Sequence[int]:
        return []


def plain_text(model: Model, prompt: Sequence[int], n_tokens: int, end: Sequence[int], **sampling: Any) -> list[int]:
    """All tokens of a plain run, the prompt included; it ends with one of `end`."""
    session = model.session(**sampling)
    session.prefill(prompt)
    while len(session) < len(prompt) + n_tokens and session.tokens[-1] not in (
        end if len(session) > len(prompt) else ()
    ):
        if session.step() is None:
            break
    return session.tokens


def true_text(
    model: Model, draft: Draft, prompt: Sequence[int], n_tokens: int, end: Sequence[int], **sampling: Any
) -> list[int]:
    """What a scripted drafter is told for a run of n_tokens, the same for all runs; [] for other drafters."""
    overrun = draft.limits.depth + 1  # a step may go further than n_tokens
    return plain_text(model, prompt, n_tokens + 2 * overrun, end, **sampling) if draft.needs_truth else []


class Recorder:
    """Records sequences of one model with one drafter.

    Raises:
        InvalidRequestError: a dense model; it routes nothing.
    """

    def __init__(self, model: Model, draft: Draft, *, temperature: float = 0.0, seed: int = 0) -> None:
        if model._core.experts is None:
            raise InvalidRequestError(f"{model.path}: a dense model routes nothing, so there is nothing to record")
        self._model = model
        self._draft = draft
        self._sampling: dict[str, Any] = {"temperature": temperature, "seed": seed}

    def record(
        self, category: str, name: str, prompt: Sequence[int], n_tokens: int, end: Sequence[int] = ()
    ) -> RecordedSequence:
        """n_tokens positions after the prompt, fewer when the text ends. The text goes on for as long as a step may."""
        overrun = self._draft.limits.depth + 1
        model, limits = self._model, self._draft.limits
        truth = true_text(model, self._draft, prompt, n_tokens, end, **self._sampling)
        drafting = model.session(
            draft=self._draft.drafter(truth),
            select=_Nothing(),
            predict=self._draft.predict,
            draft_nodes=limits.nodes,
            draft_depth=limits.depth,
            draft_top_k=limits.top_k,
            **self._sampling,
        )
        judge = model.session(**self._sampling)
        drafting.prefill(prompt)
        routed_prompt = _evaluate(judge, prompt, np.arange(-1, len(prompt) - 1))
        judge.commit(range(len(prompt)))
        text = _next(drafting, end)
        if not text:
            raise InvalidRequestError(f"prompt {name!r} fills the context of {model.n_ctx} tokens; give more (--ctx)")
        trees: list[DraftTree] = []
        routed: list[npt.NDArray[np.int32]] = []
        predicted: list[npt.NDArray[np.int32]] = []
        seconds: list[float] = []
        while len(trees) < n_tokens and text[-1] not in end:
            step = drafting.step()
            if step is None:
                break
            tree = step.tree
            rows = _evaluate(judge, [text[-1], *tree.tokens.tolist()], [-1, *(p + 1 for p in tree.parents.tolist())])
            judge.commit([0])
            trees.append(tree)
            routed.append(rows)
            predicted.append(np.full_like(rows, -1) if tree.experts is None else tree.experts)
            seconds.append(step.cost.draft)
            text += step.tokens
        while text[-1] not in end and len(text) < len(trees) + overrun + 1:
            more = _next(drafting, end)
            if not more:
                break
            text += more
        if len(text) <= len(trees):
            trees, routed, predicted, seconds = trees[:-1], routed[:-1], predicted[:-1], seconds[:-1]
        if not trees:
            raise InvalidRequestError(f"prompt {name!r}: the answer ends at once; leave this prompt out")
        return RecordedSequence(
            category,
            name,
            text=np.array(text, np.int32),
            prompt=routed_prompt,
            node_begin=np.cumsum([0, *(len(tree) for tree in trees)], dtype=np.int64),
            tokens=np.concatenate([tree.tokens for tree in trees]),
            parents=np.concatenate([tree.parents for tree in trees]),
            scores=np.concatenate([tree.scores for tree in trees]),
            routed=np.concatenate(routed),
            predicted=np.concatenate(predicted),
            draft_seconds=np.array(seconds),
        )

    def trace(self, sequences: list[RecordedSequence], costs: TraceCosts | None = None) -> SpeculationTrace:
        model = self._model
        tensors = model._core.file.tensors
        layers = layer_slots(tensors, 1)
        weights = sum(t.size_bytes for t in tensors)
        embedding = next(t.size_bytes for t in tensors if t.name == "token_embd.weight")
        is_tied = all(t.name != "output.weight" for t in tensors)
        experts = sum(layer.n_experts * layer.file_bytes for layer in layers)
        return SpeculationTrace(
            model=model.path.name,
            draft=self._draft.label,
            predict=self._draft.predict_label,
            temperature=self._sampling["temperature"],
            seed=self._sampling["seed"],
            n_experts=model.n_experts,
            n_used=model.n_experts_used,
            n_vocab=model.n_vocab,
            expert_bytes=[layer.file_bytes for layer in layers],
            other_bytes=weights - experts - (0 if is_tied else embedding),
            costs=measure_costs(model, sequences[:1]) if costs is None else costs,
            sequences=sequences,
        )


class Curve:
    """What passes of n rows use and take, where the rows are the root and the n - 1 first nodes of recorded trees.

    experts: per layer, mean. seconds: median, with whatever of the experts is in memory at the time.
    """

    def __init__(self, rows: list[int], experts: list[float], seconds: list[float], base: list[float]) -> None:
        self.rows, self.experts, self.seconds, self.base = rows, experts, seconds, base


def measure_curve(
    model: Model, sequence: RecordedSequence, prompt: Sequence[int], progress: Callable[[], object] = lambda: None
) -> Curve:
    """U(k) and C(k) on this machine, right now."""
    pager = model._core.experts
    session = model.session()
    session.prefill(prompt)
    positions = np.linspace(0, sequence.n_positions - 1, min(_CURVE_POSITIONS, sequence.n_positions)).astype(int)
    times: dict[int, list[float]] = {}
    bases: dict[int, list[float]] = {}
    experts: dict[int, list[float]] = {}
    for position in sorted(set(positions.tolist())):
        session.truncate(len(prompt))
        if position > 0:
            session.prefill(sequence.text[:position].tolist())
        root = int(sequence.text[position])
        begin, end = (int(i) for i in sequence.node_begin[position : position + 2])
        for n in CURVE_ROWS:
            if n > end - begin + 1:
                continue
            rows = [root, *sequence.tokens[begin : begin + n - 1].tolist()]
            parents = [-1, *(p + 1 for p in sequence.parents[begin : begin + n - 1].tolist())]
            if n == 1:  # what truncating left to be run again, and what was not in memory
                _evaluate(session, rows, parents)
                session.rollback()
            waited = pager.stats["wait_seconds"]
            start = time.perf_counter()
            routed = _evaluate(session, rows, parents)
            seconds = time.perf_counter() - start
            waited = pager.stats["wait_seconds"] - waited
            session.rollback()
            n_used = sum(np.unique(routed[:, layer]).size for layer in range(routed.shape[1]))
            run = pager.costs["run_base_seconds"] * n_used + pager.costs["run_row_seconds"] * routed.size
            times.setdefault(n, []).append(seconds)
            bases.setdefault(n, []).append(max(0.0, seconds - waited - run))
            experts.setdefault(n, []).append(n_used / routed.shape[1])
        progress()
    counts = sorted(times)
    return Curve(
        counts,
        [float(np.mean(experts[n])) for n in counts],
        [float(np.median(times[n])) for n in counts],
        [float(np.median(bases[n])) for n in counts],
    )


def measure_costs(model: Model, sequences: Sequence[RecordedSequence]) -> TraceCosts:
    """The recording machine's own prices; the sequences' first positions are run again for it."""
    costs = model._core.experts.costs
    curve = measure_curve(model, sequences[0], sequences[0].text[:1].tolist())
    return TraceCosts(
        read_bytes_per_second=costs["read_bytes_per_second"],
        run_base_seconds=costs["run_base_seconds"],
        run_row_seconds=costs["run_row_seconds"],
        rows=curve.rows,
        base_seconds=curve.base,
    )


def _evaluate(session: Session, tokens: Sequence[int], parents: Any) -> npt.NDArray[np.int32]:
    """What rows use, int32 (rows, MoE layers, experts used); the rows stay pending."""
    _, (ids, _), _ = session._core.evaluate(np.array(tokens, np.int32), np.array(parents, np.int32), True)
    return np.ascontiguousarray(ids.transpose(1, 0, 2))


def _next(session: Session, end: Sequence[int]) -> list[int]:
    step = session.step(end_tokens=end)
    return [] if step is None else step.tokens
