"""A session: the sampling loop, one step at a time, and trees evaluated by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from expertree import _core
from expertree.errors import InvalidRequestError
from expertree.sampling import SamplingParams, draw_seed
from expertree.speculation import Speculation, Step

if TYPE_CHECKING:
    from expertree.model import Model


_REMEMBERED_SESSIONS = 4096


def new_session_facts(n_ctx: int) -> dict[str, Any]:
    """Of a session without a drafter."""
    return {"label": "", "category": "", "draft": None, "select": None, "predict": None, "n_ctx": n_ctx}


def to_ids(tokens: Sequence[int] | npt.NDArray[Any], what: str = "tokens") -> npt.NDArray[np.int32]:
    """Token ids or row numbers as a contiguous int32 array (n,).

    Raises:
        InvalidRequestError: not one-dimensional whole numbers, or outside int32.
    """
    try:
        ids = np.asarray(tokens)
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError(f"{what} must be a flat list of whole numbers: {error}") from error
    if ids.size == 0:
        return np.zeros(0, np.int32)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InvalidRequestError(f"{what} must be a flat list of whole numbers; got shape {ids.shape} of {ids.dtype}")
    if ids.min() < -(2**31) or ids.max() >= 2**31:
        raise InvalidRequestError(f"{what} holds {int(ids.max())}, which is no 32-bit number")
    return np.ascontiguousarray(ids, dtype=np.int32)


class Session:
    """A growing sequence on one model. Made by `Model.session`.

    Iterating yields `Step`s until the context is full; the caller decides when to stop:

    >>> session = model.session(temperature=0.7, seed=1)
    >>> session.prefill(tokens)
    >>> for step in session:
    ...     print(step.tokens)
    """

    def __init__(
        self, model: Model, n_ctx: int, sampling: SamplingParams, speculation: Speculation | None = None
    ) -> None:
        self._model = model
        self._speculation = speculation
        self.seed = draw_seed() if sampling.seed is None else sampling.seed
        self._core = _core.Session(model._core, n_ctx, sampling.to_core(self.seed))
        self._facts = self._register()
        self._learned_key: str | None = None
        if speculation is not None and speculation.is_named:
            self._learned_key = f"{speculation.draft} {speculation.select} {sampling}"
        self._begin_drafting()

    def _begin_drafting(self) -> None:
        """With what the model's earlier sessions have learned, for `remember_costs` takes the place of that."""
        if self._speculation is None:
            return
        self._speculation.apply(self._core)
        if self._model._step_costs is not None:
            _core.restore_costs(self._core, self._model._step_costs)
        if self._learned_key in self._model._selector_states:
            _core.restore_selector(self._core, self._model._selector_states[self._learned_key])

    def _register(self) -> dict[str, Any]:
        facts = new_session_facts(self.n_ctx)
        if self._speculation is not None:
            for name in ("draft", "select", "predict"):
                plug = getattr(self._speculation, name)
                facts[name] = plug if plug is None or isinstance(plug, str) else type(plug).__name__
        sessions = self._model._sessions
        sessions[int(self._core.id)] = facts
        while len(sessions) > _REMEMBERED_SESSIONS:
            del sessions[next(iter(sessions))]
        return facts

    def set_label(self, label: str, category: str = "") -> None:
        """Names the session in profiles."""
        self._facts.update(label=label, category=category)

    @property
    def model(self) -> Model:
        return self._model

    @property
    def n_ctx(self) -> int:
        """Positions that the sequence may grow to."""
        return int(self._core.n_ctx)

    @property
    def tokens(self) -> list[int]:
        """All token ids so far."""
        return list(self._core.tokens)

    @property
    def stats(self) -> dict[str, Any]:
        """prefill_tokens, decode_tokens, prefill_seconds, decode_seconds, seed; steps, and of all their trees nodes
        drafted, selected and accepted; draft_seconds and select_seconds, which are part of decode_seconds;
        drafter_bytes, memory of the drafter's weights (which other sessions share) and state; lossless, False when the
        selector changes the text."""
        return {**self._core.stats, "seed": self.seed, "lossless": self.lossless}

    @property
    def speculates(self) -> bool:
        """Whether it has a drafter."""
        return bool(self._core.speculates)

    @property
    def lossless(self) -> bool:
        """Whether the text is the model's own; False with the selector `moespec` alone."""
        return bool(self._core.lossless)

    def __len__(self) -> int:
        return int(self._core.n_tokens)

    def prefill(self, tokens: Sequence[int] | npt.NDArray[Any]) -> None:
        """Appends tokens to the sequence.

        Raises:
            InvalidRequestError: no tokens, an id outside the vocabulary, or more than the context holds.
            Cancelled: `cancel` was called. The session is as it was in every case.
        """
        self._model._ask_policy()
        self._core.prefill(to_ids(tokens))

    def step(self, max_tokens: int | None = None, end_tokens: Sequence[int] = ()) -> Step | None:
        """Appends the next tokens, at least one; None when the context is full.

        With a drafter that is as many as the model agrees with, and one more; else the next one. They are the tokens
        that as many plain steps would have given.

        Args:
            max_tokens: at most so many.
            end_tokens: the step ends after any of these.

        Raises:
            InvalidRequestError: the session is empty, or a plug gave something that makes no sense.
            Cancelled: `cancel` was called. The session is as it was in every case.
        """
        self._model._ask_policy()
        try:
            record = self._core.step(max_tokens, end_tokens)
        except TypeError as error:
            raise InvalidRequestError(
                f"max_tokens={max_tokens!r}, end_tokens={end_tokens!r}: expected whole numbers"
            ) from error
        return None if record is None else Step(record.tokens, record)

    def remember_costs(self) -> None:
        """Tells the model what steps were found to cost and drafts to bring, for its next session that drafts."""
        if self.speculates:
            self._model._step_costs = _core.cost_profile(self._core)
            if self._learned_key is not None:
                self._model._selector_states[self._learned_key] = _core.selector_state(self._core)

    def __iter__(self) -> Iterator[Step]:
        while (step := self.step()) is not None:
            yield step

    @overload
    def evaluate(
        self, tokens: Sequence[int] | npt.NDArray[Any], parents: Sequence[int] | npt.NDArray[Any] | None = None
    ) -> npt.NDArray[np.float32]: ...

    @overload
    def evaluate(
        self,
        tokens: Sequence[int] | npt.NDArray[Any],
        parents: Sequence[int] | npt.NDArray[Any] | None = None,
        *,
        hidden: bool,
    ) -> Any: ...

    def evaluate(
        self,
        tokens: Sequence[int] | npt.NDArray[Any],
        parents: Sequence[int] | npt.NDArray[Any] | None = None,
        *,
        hidden: bool = False,
    ) -> Any:
        """Runs a tree of tokens on top of the sequence; its rows stay pending until `commit` or `rollback`.

        Args:
            tokens: (n,) token ids.
            parents: (n,) index of each row's parent, an earlier row; -1 continues the sequence. None: a chain.
            hidden: also give hidden states.

        Returns:
            Logits, float32 (n, n_vocab): row i is what follows the path from the sequence down to row i. With `hidden`
            a pair: these, and the normalised output of the last layer that they come from, float32 (n, n_embd).
        """
        ids = to_ids(tokens)
        above = np.arange(-1, ids.size - 1, dtype=np.int32) if parents is None else to_ids(parents, "parents")
        logits, _, states = self._core.evaluate(ids, above, hidden=hidden)
        return (logits, states) if hidden else logits

    def commit(self, path: Sequence[int] | npt.NDArray[Any]) -> None:
        """Keeps the pending rows of `path` (each the child of the one before) and drops the others."""
        self._core.commit(to_ids(path, "path"))

    def rollback(self) -> None:
        """Drops all pending rows."""
        self._core.rollback()

    def truncate(self, length: int) -> None:
        """Forgets all tokens from `length` on.

        Raises:
            InvalidRequestError: no whole number, or outside the sequence.
        """
        try:
            self._core.truncate(length)
        except TypeError as error:
            raise InvalidRequestError(
                f"cannot go back to {length!r} tokens; expected a whole number from 0 to {len(self)}"
            ) from error

    def branch(self) -> Session:
        """An independent copy: same tokens, state, sampler and seed.

        A drafter that was given by name is made anew and learns the tokens when the copy is first used (one that looks
        at hidden states has them run again); a drafter, selector or predictor object stays with this session, and the
        copy decodes plainly.
        """
        copy = object.__new__(Session)
        copy._model = self._model
        copy.seed = self.seed
        copy._core = self._core.branch()
        copy._speculation = self._speculation if self._speculation is not None and self._speculation.is_named else None
        copy._learned_key = self._learned_key
        copy._begin_drafting()
        copy._facts = copy._register()
        return copy

    def set_sampling(self, sampling: SamplingParams) -> None:
        """Changes the sampler from the next token on. Raises InvalidRequestError for another type or a
        setting out of range; the sampler and the seed stay then."""
        if not isinstance(sampling, SamplingParams):
            raise InvalidRequestError(f"sampling is {sampling!r}; expected a SamplingParams")
        seed = draw_seed() if sampling.seed is None else sampling.seed
        self._core.set_sampler(sampling.to_core(seed))
        self.seed = seed

    def cancel(self) -> None:
        """Makes the running call raise `Cancelled` within one layer's time. May be called from any thread."""
        self._core.cancel()
