"""A conversation with a model: one session, whose state is kept as far as the next turn's tokens agree with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from expertree.cli.interrupts import cancel_on_interrupt
from expertree.errors import Cancelled, InvalidRequestError
from expertree.generation import run_generation
from expertree.model import Model, encode_messages, sampling_params, text_options
from expertree.session import Session
from expertree.text import ReasoningForm

Message = dict[str, str]


class AnswerSink(Protocol):
    """Where an answer goes while it comes."""

    def reasoning(self, text: str) -> None: ...

    def content(self, text: str) -> None: ...


@dataclass(frozen=True)
class Answer:
    """finish_reason: "stop"; "length" (max_tokens); "context" (full); "cancelled"."""

    content: str
    reasoning: str
    finish_reason: str
    n_tokens: int
    stats: dict[str, Any]


class ContextFull(InvalidRequestError):
    """The conversation does not fit the context; nothing was changed."""


class _Collector:
    """Splits the text of an answer, passes the parts on and keeps them: what came stays, however the answer ends."""

    def __init__(self, sink: AnswerSink, form: ReasoningForm) -> None:
        self._sink = sink
        self._splitter = form.splitter()
        self._reasoning: list[str] = []
        self._content: list[str] = []

    def feed(self, text: str) -> None:
        self._take(self._splitter.feed(text))

    def finish(self) -> tuple[str, str]:
        """(reasoning, content) in all."""
        self._take(self._splitter.flush())
        return "".join(self._reasoning), "".join(self._content)

    def _take(self, parts: tuple[str, str]) -> None:
        reasoning, content = parts
        if reasoning:
            self._reasoning.append(reasoning)
            self._sink.reasoning(reasoning)
        if content:
            self._content.append(content)
            self._sink.content(content)


class Conversation:
    """Turns with one model.

    Args:
        model: it must have a chat template.
        sampling: sampling settings of `Model.session`.
        drafting: its drafting settings.
        max_tokens: at most so many tokens an answer; None ends with the context.
        system: the system message, if any.
        stoppable: Ctrl-C ends an answer and not the program.
    """

    def __init__(
        self,
        model: Model,
        sampling: Mapping[str, Any],
        *,
        drafting: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        system: str | None = None,
        stoppable: bool = False,
    ) -> None:
        self.model = model
        self.system = system
        self._sampling = dict(sampling)
        self._max_tokens = max_tokens
        self._stoppable = stoppable
        self._turns: list[Message] = []
        self._session: Session = model.session(**(drafting or {}), **sampling)
        _ = model.chat_template  # fails here and not at the first turn

    @property
    def n_turns(self) -> int:
        return len(self._turns) // 2

    @property
    def seed(self) -> int:
        return self._session.seed

    @property
    def n_ctx(self) -> int:
        return self._session.n_ctx

    @property
    def n_tokens(self) -> int:
        """Positions of the context used so far. The last token of a full one has none: it is not run."""
        return min(len(self._session), self.n_ctx)

    @property
    def stats(self) -> dict[str, Any]:
        """Of all turns together; see `Session.stats`."""
        return self._session.stats

    def ask(self, text: str, sink: AnswerSink) -> Answer:
        """The answer to the next message. Both are remembered, unless nothing of an answer came.

        Raises:
            ContextFull: they do not fit. After this and any other error the conversation is as it was.
        """
        return self._answer([*self._turns, {"role": "user", "content": text}], sink)

    def regenerate(self, sink: AnswerSink) -> Answer:
        """Another answer, with another seed, in place of the last one."""
        if not self._turns:
            raise InvalidRequestError("there is no answer to replace yet")
        seed = (self._session.seed + 1) % 2**64
        self._session.set_sampling(sampling_params({**self._sampling, "seed": seed}))
        return self._answer(self._turns[:-1], sink)

    def reset(self) -> None:
        """Forgets all turns; the system message stays."""
        self._turns = []
        self._session.truncate(0)

    def _answer(self, turns: list[Message], sink: AnswerSink) -> Answer:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        ids, form = encode_messages(self.model, [*system, *turns])
        if len(ids) >= self.n_ctx:
            raise ContextFull(
                f"this message was not sent: the conversation takes {len(ids):,} tokens; the context of {self.n_ctx:,} "
                "has no room for that and an answer. /reset starts over; --ctx N gives more room"
            )
        answer = self._generate(ids, _Collector(sink, form))
        if answer.content or answer.reasoning or answer.finish_reason != "cancelled":
            reasoning = {"reasoning_content": answer.reasoning} if answer.reasoning else {}
            self._turns = [*turns, {"role": "assistant", "content": answer.content, **reasoning}]
        return answer

    def _generate(self, ids: list[int], collector: _Collector) -> Answer:
        session = self._session
        n_kept = min(_common_length(session.tokens, ids), len(ids) - 1)  # one is left to be run: it gives the logits
        session.truncate(n_kept)
        options = text_options(self._max_tokens, None)
        n_tokens, reason, stats = 0, "cancelled", {"seed": session.seed}
        try:
            if self._stoppable:
                with cancel_on_interrupt():
                    generation = run_generation(session, self.model.tokenizer, ids[n_kept:], options, collector.feed)
            else:
                generation = run_generation(session, self.model.tokenizer, ids[n_kept:], options, collector.feed)
            n_tokens, reason, stats = len(generation.tokens), generation.finish_reason, generation.stats
        except Cancelled:
            pass  # Ctrl-C just before or after the generation
        if reason == "length" and n_tokens != self._max_tokens:
            reason = "context"
        reasoning, content = collector.finish()
        return Answer(content, reasoning, reason, n_tokens, stats)


def _common_length(left: list[int], right: list[int]) -> int:
    """How many tokens two sequences begin with together."""
    n = min(len(left), len(right))
    return next((i for i in range(n) if left[i] != right[i]), n)
