"""Several sessions of one model, a pass for all of them at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from expertree import _core
from expertree.errors import Cancelled, InvalidRequestError, UnsupportedError
from expertree.generation import Generation, RunningGeneration
from expertree.session import Session, to_ids
from expertree.speculation import Step

if TYPE_CHECKING:
    from expertree.model import Model

MOST_SESSIONS = int(_core.MOST_SESSIONS)
DEFAULT_ROWS = 64


class Engine:
    """Steps sessions of a model together.

    >>> sessions = [model.session(draft="auto", seed=i) for i in range(4)]
    >>> for session, prompt in zip(sessions, prompts):
    ...     session.prefill(prompt)
    >>> engine = expertree.Engine(model)
    >>> while any(step is not None for step in engine.step(sessions)): ...

    Each session gets the tokens that it would get alone. In one pass an expert is read once and its weights are gone
    through once, whichever sessions use it, and a selector that looks at costs sees that.

    Args:
        model: of all sessions.
        max_rows: rows of one pass, over all sessions; each session has one in any case. Nodes of least score go first.
    """

    def __init__(self, model: Model, *, max_rows: int = DEFAULT_ROWS) -> None:
        from expertree.model import Model

        if not isinstance(model, Model):
            raise InvalidRequestError(f"model is {model!r}; expected an expertree.Model")
        if not isinstance(max_rows, int) or not MOST_SESSIONS <= max_rows < 2**31:
            raise InvalidRequestError(f"max_rows is {max_rows!r}; expected a whole number, at least {MOST_SESSIONS}")
        self._model = model
        self._max_rows = max_rows

    @property
    def model(self) -> Model:
        return self._model

    def step(
        self,
        sessions: Sequence[Session],
        *,
        max_tokens: int | Sequence[int | None] | None = None,
        end_tokens: Sequence[int] = (),
        return_errors: bool = False,
    ) -> list[Any]:
        """Appends the next tokens to each session, at least one.

        Args:
            sessions: 1 to 8, each once. They may differ in everything: drafters, samplers, contexts.
            max_tokens: at most so many; one number for all, or one for each session.
            end_tokens: a session's step ends after any of these.
            return_errors: give a session's exception in place of its step instead of raising it.

        Returns:
            A `Step` for each session, None where the context is full.

        Raises:
            InvalidRequestError: no sessions, too many, one twice, or one of another model; nothing was done.
            Error: what a session raised, the first one's. That session is as it was, the others have made their step.
            KeyboardInterrupt: each session is as it was or has made its step, as its `tokens` say.
        """
        if not isinstance(sessions, Sequence):
            raise InvalidRequestError(f"sessions is {sessions!r}; expected a list of sessions")
        chosen = list(sessions)
        for session in chosen:
            if not isinstance(session, Session) or session.model is not self._model:
                raise InvalidRequestError(f"{session!r} is no session of this engine's model")
        limits = list(max_tokens) if isinstance(max_tokens, Sequence) else [max_tokens] * len(chosen)
        if len(limits) != len(chosen):
            raise InvalidRequestError(f"{len(limits)} values of max_tokens for {len(chosen)} sessions")
        self._model._ask_policy()
        try:
            outcomes = _core.step_together([s._core for s in chosen], limits, list(end_tokens), self._max_rows)
        except TypeError as error:
            raise InvalidRequestError(
                f"max_tokens={max_tokens!r}, end_tokens={end_tokens!r}: expected whole numbers"
            ) from error
        steps: list[Any] = []
        first_error: Exception | None = None
        for outcome in outcomes:
            try:
                record = outcome.take()
                steps.append(None if record is None else Step(record.tokens, record))
            except Exception as error:
                steps.append(error)
                first_error = first_error or error
        if first_error is not None and not return_errors:
            raise first_error
        return steps

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        *,
        max_tokens: int | None = 64,
        stop: str | Sequence[str] | None = None,
        ignore_eos: bool = False,
        **settings: Any,
    ) -> list[Generation]:
        """Continues many prompts, up to 8 at a time; the next one begins where one ends.

        Each answer is the one that `Model.generate` gives with the same settings, which also says what they are. A
        drafter, selector or predictor must be given by name, for each session has its own.

        Raises:
            what `Model.generate` raises, of the first prompt that fails.
        """
        from expertree.model import text_options

        if not isinstance(prompts, (Sequence, np.ndarray)) or isinstance(prompts, (str, bytes)):
            raise InvalidRequestError(f"prompts is {prompts!r}; expected a list of prompts, [prompt] for a single one")
        options = text_options(max_tokens, stop, ignore_eos=ignore_eos)
        for name in ("draft", "select", "predict"):
            if not isinstance(settings.get(name), (str, type(None))):
                raise InvalidRequestError(f"{name}={settings[name]!r}: an object serves one session; give a name")
        tokenizer = None
        try:
            tokenizer = self._model.tokenizer
        except UnsupportedError:
            if any(isinstance(prompt, str) for prompt in prompts):
                raise
        waiting = deque(enumerate(prompts))
        running: list[tuple[int, RunningGeneration]] = []
        done: dict[int, Generation] = {}
        try:
            while waiting or running:
                while waiting and len(running) < MOST_SESSIONS:
                    place, prompt = waiting.popleft()
                    if isinstance(prompt, str):
                        prompt = self._model.tokenizer.encode(prompt, add_special=True, parse_special=True)
                    ids = to_ids(prompt)
                    run = RunningGeneration(self._model.session(**settings), tokenizer, ids.tolist(), options)
                    running.append((place, run))
                    run.prefill()
                active = [run for _, run in running if not run.is_over]
                if active:
                    self._advance(active)
                for place, run in [entry for entry in running if entry[1].is_over]:
                    done[place] = run.finish()
                running = [entry for entry in running if not entry[1].is_over]
        finally:
            for _, run in running:
                run.close()
        return [done[place] for place in sorted(done)]

    def _advance(self, runs: Sequence[RunningGeneration]) -> None:
        steps = self.step(
            [run.session for run in runs],
            max_tokens=[run.tokens_left for run in runs],
            end_tokens=runs[0].end_tokens,
            return_errors=True,
        )
        for run, step in zip(runs, steps, strict=True):
            if isinstance(step, Cancelled):
                run.cancel()
            elif isinstance(step, Exception):
                raise step
            else:
                run.take(step)
