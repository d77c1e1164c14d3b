"""A profile as a recorded run (`expertree.comparison.speculation_trace`), which the replayer takes.

At every position of the text stands the tree that was verified there; below an accepted node that is the part of its
step's tree that hangs on it. Nodes that were drafted and not verified routed nothing and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from expertree.comparison.speculation_trace import RecordedSequence, SpeculationTrace, TraceCosts
from expertree.errors import InvalidRequestError
from expertree.profile.tables import Doubles, Ints

if TYPE_CHECKING:
    from expertree.profile.profile import Profile

_CURVE_ROWS = (1, 2, 3, 5, 9, 17, 33, 64)


def speculation_trace(profile: Profile) -> SpeculationTrace:
    """Raises InvalidRequestError when the profile holds no decoding, or none of a model with experts."""
    facts = profile.facts
    model = facts["model"]
    if not model["n_moe_layers"]:
        raise InvalidRequestError(f"{model['name']}: a dense model routes nothing, so there is nothing to replay")
    sequences = [made for session in range(len(facts["sessions"])) for made in _sequences(profile, session)]
    if not sequences:
        raise InvalidRequestError("the profile holds no decoding step that ran a row; profile some more tokens")
    drafted = next((s for s in facts["sessions"] if s["draft"]), facts["sessions"][0])
    return SpeculationTrace(
        model=model["name"],
        draft=drafted["draft"] or "none",
        predict=drafted["predict"] or "none",
        temperature=float(facts["options"].get("temperature") or 0.0),
        seed=int(facts["options"].get("seed") or 0),
        n_experts=model["n_experts"],
        n_used=model["n_experts_used"],
        n_vocab=model["n_vocab"],
        expert_bytes=list(model["expert_bytes"]),
        other_bytes=model["other_bytes"],
        costs=trace_costs(profile),
        sequences=sequences,
    )


def trace_costs(profile: Profile) -> TraceCosts:
    """Prices as the run measured them. A pass besides its experts: a straight line over the rows of its steps; where
    all of them ran equally many, over those of its prompts, too."""
    costs, steps = profile.facts["costs"], profile.steps
    ran = steps.decoding()
    if np.unique(steps.rows[ran]).size < 2:
        ran |= steps.of_kind("prefill")
    seconds = np.where(steps.of_kind("prefill"), steps.wall, steps.measured)
    run = costs["run_base_seconds"] * steps.experts_touched + costs["run_row_seconds"] * steps.rows * (
        profile.facts["model"]["n_moe_layers"] * profile.facts["model"]["n_experts_used"]
    )
    base = np.maximum(0.0, seconds - steps.seconds("wait") - run)[ran]
    at_one, per_row = _line(steps.rows[ran].astype(np.float64), base)
    return TraceCosts(
        read_bytes_per_second=costs["read_bytes_per_second"],
        run_base_seconds=costs["run_base_seconds"],
        run_row_seconds=costs["run_row_seconds"],
        rows=list(_CURVE_ROWS),
        base_seconds=[at_one + per_row * (n - 1) for n in _CURVE_ROWS],
    )


def _line(rows: Doubles, seconds: Doubles) -> tuple[float, float]:
    """Seconds of one row and of each further one, from medians by number of rows."""
    counts = np.unique(rows)
    if not counts.size:
        return 0.0, 0.0
    medians = np.array([np.median(seconds[rows == n]) for n in counts])
    if counts.size == 1:
        return float(medians[0]), 0.0
    weights = np.sqrt([np.count_nonzero(rows == n) for n in counts])
    slope, one = np.polyfit(counts - 1.0, medians, 1, w=weights)
    return max(0.0, float(one)), max(0.0, float(slope))


def _sequences(profile: Profile, session: int) -> Iterator[RecordedSequence]:
    """The session's texts: each begins with a prompt, and goes on while one step follows another."""
    s = profile.steps
    text = _Text(profile, session)
    expected = -1
    for i in np.flatnonzero(s.session == session).tolist():
        follows = int(s.position[i]) == expected
        expected = int(s.position[i] + s.tokens[i])
        if s.of_kind("prefill")[i] or s.of_kind("evaluate")[i] or not follows:
            yield from text.take()
        if s.of_kind("prefill")[i]:
            text.prompt(i)
        elif s.of_kind("decode", "speculate")[i]:
            text.step(i)
    yield from text.take()


class _Text:
    """Collects one sequence."""

    def __init__(self, profile: Profile, session: int) -> None:
        self._profile = profile
        self._facts = profile.facts["sessions"][session]
        routing = profile.routing
        self._row_begin = np.searchsorted(routing.step, np.arange(len(profile.steps) + 1))
        self._node_begin = np.searchsorted(profile.nodes.step, np.arange(len(profile.steps) + 1))
        self._n_taken = 0
        self._clear()

    def _clear(self) -> None:
        shape = self._profile.routing.experts.shape[1:]
        self._prompt: Ints = np.zeros((0, *shape), np.int32)
        self._tokens: list[int] = []
        self._trees: list[tuple[list[int], list[int], list[float], list[int]]] = []  # tokens, parents, scores, rows
        self._seconds: list[float] = []

    def prompt(self, step: int) -> None:
        rows = self._profile.routing.experts[self._row_begin[step] : self._row_begin[step + 1]].astype(np.int32)
        # Rows whose last layer was not run add nothing to what the last row needs there.
        self._prompt = np.where(rows < 0, rows[-1:], rows) if len(rows) else rows

    def step(self, step: int) -> None:
        p = self._profile
        begin, end = int(self._row_begin[step]), int(self._row_begin[step + 1])
        n_verified = int(p.steps.verified[step])
        first, last = self._node_begin[step : step + 2]
        nodes = np.arange(first, last)
        accepted = (nodes[p.nodes.accepted[first:last]] - first).tolist()
        if end - begin > n_verified:  # else nothing ran: the last token had been run already
            root = end - n_verified - 1
            if not self._tokens:
                self._tokens.append(int(p.routing.token[root]))
            self._trees += list(self._trees_of(step, root, accepted))
            self._seconds += [float(p.steps.seconds("draft")[step])] * (1 + len(accepted))
        self._tokens += p.nodes.token[first:last][accepted].tolist()
        self._tokens.append(int(p.steps.last_token[step]))

    def _trees_of(self, step: int, root: int, accepted: Sequence[int]) -> Iterator[Any]:
        """Of the root and of each accepted node: what was verified below it."""
        p, first = self._profile, int(self._node_begin[step])
        verified = np.flatnonzero(p.nodes.verified[first : self._node_begin[step + 1]]).tolist()
        row_of = {-1: root, **{node: root + 1 + i for i, node in enumerate(verified)}}
        for top in (-1, *accepted):
            below = {top: -1}
            top_score = 1.0 if top < 0 else float(p.nodes.score[first + top])
            tokens: list[int] = []
            parents: list[int] = []
            scores: list[float] = []
            for node in verified:
                parent = int(p.nodes.parent[first + node])
                if parent in below:
                    below[node] = len(tokens)
                    tokens.append(int(p.nodes.token[first + node]))
                    parents.append(below[parent])
                    scores.append(min(1.0, float(p.nodes.score[first + node]) / top_score))
            yield tokens, parents, scores, [row_of[node] for node in below]

    def take(self) -> Iterator[RecordedSequence]:
        """What was collected, if a step ran; begins anew."""
        if self._trees:
            rows = [row for tree in self._trees for row in tree[3]]
            routing = self._profile.routing
            label = self._facts["label"] or "session"
            yield RecordedSequence(
                self._facts["category"] or "chat",
                label if self._n_taken == 0 else f"{label}-{self._n_taken + 1}",
                text=np.array(self._tokens, np.int32),
                prompt=np.ascontiguousarray(self._prompt),
                node_begin=np.cumsum([0, *(len(tree[0]) for tree in self._trees)], dtype=np.int64),
                tokens=np.array([t for tree in self._trees for t in tree[0]], np.int32),
                parents=np.array([n for tree in self._trees for n in tree[1]], np.int32),
                scores=np.array([x for tree in self._trees for x in tree[2]], np.float32),
                routed=np.ascontiguousarray(routing.experts[rows], np.int32),
                predicted=np.ascontiguousarray(routing.predicted[rows], np.int32),
                draft_seconds=np.array(self._seconds),
            )
            self._n_taken += 1
        self._clear()
