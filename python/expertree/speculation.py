"""Drafting: its settings, what a step tells about it, and plugs of one's own.

Whatever drafts and selects, the text is the one that plain decoding gives with the same seed.

>>> session = model.session(draft="ngram", select="residency", temperature=0.7, seed=1)
>>> session.prefill(tokens)
>>> for step in session:
...     print(step.tokens, len(step.tree), step.selected)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from expertree import _core
from expertree.errors import InvalidRequestError
from expertree.shipped_drafting import draft_name, predictor_name

DEFAULT_SELECTOR = "residency"
DEFAULT_PREDICTOR = "last"

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class DraftTree:
    """A tree of n drafted tokens below the sequence's last token, the root. Parents come before their children.

    tokens: int32 (n,). parents: int32 (n,), -1 for the root. depths: int32 (n,), 1 for the root's children. scores:
    float32 (n,), the drafter's probability that all of the path down to the node is accepted. experts: int32
    (1 + n, MoE layers, experts used per token), predicted for the root and each node; None where nothing is known.
    """

    tokens: Ids
    parents: Ids
    depths: Ids
    scores: npt.NDArray[np.float32]
    experts: Ids | None = None

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class StepCost:
    """What a step took. Seconds; expert counts are over all layers.

    predicted: of verifying, before it was done. draft: proposing the tree and learning from what was accepted.
    select: predicting experts and selecting nodes. verify: the pass and sampling. wait: of it, for experts being read.
    rows: run through the model, the last token's included; 0 when that had been run already. experts: used by them,
    each once. hits, misses, bytes_read: of experts in memory meanwhile, another session's step included. plain_misses:
    those that decoding the step's tokens one by one would have had, as reckoned when a drafter is there. Where sessions
    shared the pass (`Engine.step`): how many of them, pass_rows and pass_experts of all, and verify and wait are theirs
    together.
    """

    predicted: float
    draft: float
    select: float
    verify: float
    wait: float
    rows: int
    experts: int
    hits: int
    misses: int
    bytes_read: int
    plain_misses: float
    sessions: int = 1
    pass_rows: int = 0
    pass_experts: int = 0


@dataclass(frozen=True)
class Step:
    """One step of the sampling loop. tokens: accepted token ids, in order; without drafting there is one."""

    tokens: list[int]
    _record: Any = field(default=None, repr=False, compare=False)

    @property
    def tree(self) -> DraftTree:
        """What was drafted; empty without drafting."""
        return DraftTree(*self._record.tree)

    @property
    def selected(self) -> list[int]:
        """The nodes of the tree that were verified, rising."""
        return list(self._record.selected)

    @property
    def accepted(self) -> list[int]:
        """The nodes of the accepted path; `tokens` are theirs and one more."""
        return list(self._record.accepted)

    @property
    def cost(self) -> StepCost:
        r = self._record
        return StepCost(
            predicted=r.predicted_seconds,
            draft=r.draft_seconds,
            select=r.select_seconds,
            verify=r.verify_seconds,
            wait=r.wait_seconds,
            rows=r.n_rows,
            experts=r.n_experts,
            hits=r.expert_hits,
            misses=r.expert_misses,
            bytes_read=r.bytes_read,
            plain_misses=r.plain_misses,
            sessions=r.n_sequences,
            pass_rows=r.n_pass_rows,
            pass_experts=r.n_pass_experts,
        )


@dataclass(frozen=True)
class DraftLimits:
    """How large a tree may be. top_k: children per node that is expanded, and nodes expanded per depth."""

    nodes: int = 32
    depth: int = 4
    top_k: int = 8


class Drafter:
    """Proposes trees. A subclass gives `draft`; one object serves one session."""

    tap_layers: Sequence[int] = ()  # ask for the inputs of these layers
    last_hidden: bool = False  # ask for the normalised output of the last layer

    def draft(self, history: Ids, limits: DraftLimits) -> tuple[Sequence[int], Sequence[int], Sequence[float]]:
        """A tree below the last token of `history` (all tokens of the session): tokens, parents, scores.

        parents: the index of an earlier node, -1 for the root. scores: the probability that the path down to the node
        is accepted, above 0, at most the parent's. Empty lists are a fine answer.
        """
        raise NotImplementedError

    def observe(
        self,
        tokens: Ids,
        first_position: int,
        taps: npt.NDArray[np.float32] | None,
        last_hidden: npt.NDArray[np.float32] | None,
    ) -> None:
        """The next tokens (n,) that were run and kept; taps (n, layers asked for, n_embd); last_hidden (n, n_embd)."""

    def truncate(self, length: int) -> None:
        """What was observed from this position on is gone."""

    def _draft(self, history: Ids, nodes: int, depth: int, top_k: int) -> tuple[list[int], list[int], list[float]]:
        tokens, parents, scores = self.draft(history, DraftLimits(nodes, depth, top_k))
        return [int(t) for t in tokens], [int(p) for p in parents], [float(s) for s in scores]


class Selector:
    """Chooses the nodes of a tree that are worth verifying. A subclass gives `select`."""

    lossless: bool = True

    def select(self, tree: DraftTree, cost: Any) -> Sequence[int]:
        """Indices of nodes, closed under parents; none is plain decoding.

        cost: prices in seconds for the time of this call. step_seconds(nodes), base_seconds(n_rows),
        run_seconds(layer, expert, n_rows), read_seconds(layer, expert), iteration_seconds(n_rows), draft_seconds().
        """
        raise NotImplementedError

    def observe(
        self, tree: DraftTree, selected: Ids, accepted: Ids, draft_seconds: float, verify_seconds: float
    ) -> None:
        """How a step went."""

    def wants_draft(self) -> bool:
        """Asked before drafting; False makes the step a plain one."""
        return True

    def _select(self, tree: tuple[Any, ...], cost: Any) -> list[int]:
        return sorted({int(node) for node in self.select(DraftTree(*tree), cost)})

    def _observe(self, tree: tuple[Any, ...], *rest: Any) -> None:
        self.observe(DraftTree(*tree), *rest)


class Predictor:
    """Guesses which experts drafted tokens will use. A subclass gives `predict`."""

    def predict(self, root_token: int, tree: DraftTree) -> npt.NDArray[Any] | None:
        """Experts of the root and of each node, (1 + n, MoE layers, experts used per token), distinct in each layer;
        None while nothing is known."""
        raise NotImplementedError

    def observe(self, tokens: Ids, experts: Ids) -> None:
        """The experts (n, MoE layers, experts used) that n kept tokens did use."""

    def _predict(self, root: int, tree: tuple[Any, ...], n_layers: int, n_experts: int, n_used: int) -> Any:
        drafted = DraftTree(*tree)
        predicted = self.predict(root, drafted)
        if predicted is None:
            return None
        ids = np.asarray(predicted)
        expected = (1 + len(drafted), n_layers, n_used)
        if ids.shape != expected or ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= n_experts:
            raise InvalidRequestError(
                f"predictor {type(self).__name__} gave {ids.dtype} of shape {ids.shape}; expected expert ids from 0 to "
                f"{n_experts - 1} of shape {expected}"
            )
        return ids.ravel().tolist()


@dataclass(frozen=True)
class ScriptedDrafter:
    """Drafts of a known quality, for benchmarks and tests: the true continuation, corrupted.

    truth: all tokens of the sequence, prompt included, as a plain run of the same request gave them. rates: the chance
    that the true token is among the children of a true node, by depth, the last one for all below. spread: the child of
    rank j is the true one with chance proportional to spread**j; 0 drafts chains, more may lose a true token of low
    rank when the tree is cut to its best nodes. score_noise: standard deviation of what is added to
    the logarithms of the probabilities. seconds_per_depth: charged for each depth drafted.
    """

    truth: Sequence[int]
    rates: Sequence[float] = (0.7,)
    spread: float = 0.3
    score_noise: float = 0.0
    seconds_per_depth: float = 0.0
    seed: int = 0

    def to_core(self) -> _core.ScriptedOptions:
        options = _core.ScriptedOptions()
        for name, value in vars(self).items():
            try:
                setattr(options, name, list(value) if name in ("truth", "rates") else value)
            except TypeError as error:
                raise InvalidRequestError(
                    f"scripted drafter: {name} is {value!r}, which is of the wrong type"
                ) from error
        return options


Drafting = str | Drafter | ScriptedDrafter


@dataclass(frozen=True)
class Speculation:
    """What a session is asked to draft with; see `Model.session`."""

    draft: Drafting | Sequence[Drafting]
    select: str | Selector = DEFAULT_SELECTOR
    predict: str | Predictor | None = DEFAULT_PREDICTOR
    limits: DraftLimits = DraftLimits()

    def apply(self, session: _core.Session) -> None:
        """Sets the session up.

        Raises:
            InvalidRequestError: an unknown name, a value out of range, or a plug of the wrong type.
        """
        parts = [part.to_core() if isinstance(part, ScriptedDrafter) else part for part in self._drafters]
        if not parts:
            raise InvalidRequestError("draft is an empty list; give at least one drafter, or None")
        for name, value, kinds in (
            *(("draft", part, (str, Drafter, _core.ScriptedOptions)) for part in parts),
            ("select", self.select, (str, Selector)),
            ("predict", self.predict, (str, Predictor, type(None))),
        ):
            if not isinstance(value, kinds):
                raise InvalidRequestError(
                    f"{name} is {value!r}; expected a name, or an object of a class derived from "
                    f"expertree.{kinds[1].__name__}"
                )
        limits = self.limits
        for name, value in (
            ("draft_nodes", limits.nodes),
            ("draft_depth", limits.depth),
            ("draft_top_k", limits.top_k),
        ):
            if not isinstance(value, int) or not -(2**31) <= value < 2**31:
                raise InvalidRequestError(f"{name} is {value!r}; expected a whole number")
        draft = parts if len(parts) > 1 else parts[0]
        _core.set_speculation(session, draft, self.select, self.predict, limits.nodes, limits.depth, limits.top_k)
        if not session.lossless:
            warnings.warn(
                f"selector {self.select!r} is lossy: the text is not what the model says by itself. It is there for "
                "comparisons; any other selector keeps the text",
                stacklevel=2,
            )

    @property
    def is_named(self) -> bool:
        """Whether another session can have the same: names only, no objects."""
        plugs = (*self._drafters, self.select, self.predict)
        return all(plug is None or isinstance(plug, (str, ScriptedDrafter)) for plug in plugs)

    @property
    def _drafters(self) -> list[Any]:
        return list(self.draft) if isinstance(self.draft, (list, tuple)) else [self.draft]


def speculation_from(
    draft: Drafting | Sequence[Drafting] | None,
    select: str | Selector | None,
    predict: str | Predictor | None,
    limits: DraftLimits,
    metadata: Callable[[], Mapping[str, Any]],
) -> Speculation | None:
    """None without a drafter. metadata: gives the model's, where a name depends on it.

    Raises:
        InvalidRequestError: a selector or predictor without a drafter.
    """
    if isinstance(draft, str):
        draft = draft_name(draft, metadata)
    elif isinstance(draft, (list, tuple)):
        draft = [draft_name(part, metadata) or part if isinstance(part, str) else part for part in draft]
    if draft is None:
        for name, value in (("select", select), ("predict", predict)):
            if value is not None:
                raise InvalidRequestError(f"{name}={value!r} needs a drafter: give draft, for example draft='ngram'")
        return None
    return Speculation(
        draft,
        DEFAULT_SELECTOR if select is None else select,
        predictor_name(predict, draft, metadata) if predict is None or isinstance(predict, str) else predict,
        limits,
    )
