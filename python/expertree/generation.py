"""From a session's tokens to text: streaming, stop strings, limits, reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from expertree.errors import Cancelled, InvalidRequestError
from expertree.session import Session
from expertree.speculation import Step
from expertree.text import ReasoningForm, StopMatcher, StreamDecoder, Tokenizer


@dataclass(frozen=True)
class Generation:
    """What was generated.

    text: the answer. reasoning: what stood inside reasoning tags or channels, None without them. tokens: all sampled
    ids, the end-of-text token included. finish_reason: "stop" (end of text or a stop string), "length" (max_tokens or
    the context), "cancelled". stats: tokens, seconds and tokens per second of prefill and decoding, and the seed; with
    a drafter also steps, nodes drafted, selected and accepted, accepted_per_step, and draft_seconds and
    select_seconds, which are part of decode_seconds.
    """

    text: str
    tokens: list[int]
    finish_reason: str
    stats: dict[str, Any] = field(default_factory=dict)
    reasoning: str | None = None


@dataclass(frozen=True)
class TextOptions:
    """How tokens become an answer."""

    max_tokens: int | None = 64  # None: until the context is full
    stop: Sequence[str] = ()
    ignore_eos: bool = False
    reasoning: ReasoningForm | None = None  # None: all is answer


class _TextSink:
    """Tokens in; answer text, reasoning and stream callbacks out."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        options: TextOptions,
        stream: Callable[[str], object] | None,
    ) -> None:
        self._decoder = StreamDecoder(tokenizer, skip_special=True, after=prompt)
        self._matcher = StopMatcher(options.stop)
        self._splitter = None if options.reasoning is None else options.reasoning.splitter()
        self._stream = stream
        self.content: list[str] = []
        self.reasoning: list[str] = []

    def feed(self, token: int) -> bool:
        """True when a stop string has come."""
        return self._match(self._decoder.feed([token]))

    def finish(self) -> None:
        if self._matcher.stopped is None:
            self._match(self._decoder.flush())
        self._split(self._matcher.flush(), last=True)

    def _match(self, text: str) -> bool:
        self._split(self._matcher.feed(text))
        return self._matcher.stopped is not None

    def _split(self, text: str, last: bool = False) -> None:
        if self._splitter is None:
            self._emit(text)
            return
        parts = [self._splitter.feed(text)]
        if last:
            parts.append(self._splitter.flush())
        for reasoning, content in parts:
            if reasoning:
                self.reasoning.append(reasoning)
            self._emit(content)

    def _emit(self, text: str) -> None:
        if not text:
            return
        self.content.append(text)
        if self._stream is not None:
            self._stream(text)


class RunningGeneration:
    """A generation under way, fed step by step; whoever runs it calls `close` or `finish` in any case.

    Without a tokenizer there are tokens only: no text, no end-of-text.
    """

    def __init__(
        self,
        session: Session,
        tokenizer: Tokenizer | None,
        prompt: Sequence[int],
        options: TextOptions,
        stream: Callable[[str], object] | None = None,
    ) -> None:
        if stream is not None and not callable(stream):
            raise InvalidRequestError(f"stream is {stream!r}; expected a function that takes a piece of text")
        if tokenizer is None and (options.stop or stream is not None):
            raise InvalidRequestError(
                "stop and stream need text, and the model file has no tokenizer that is known; leave them out and use "
                "the ids of `tokens`, or load the model with pre=NAME where only its pre-tokenizer is unknown"
            )
        self.session = session
        self.is_over = options.max_tokens == 0
        self.end_tokens = [] if tokenizer is None or options.ignore_eos else sorted(tokenizer.eog_ids)
        self._prompt = prompt
        self._options = options
        self._before = session.stats
        self._start = perf_counter()
        self._n_before = len(session) + len(prompt)
        self._sink = None if tokenizer is None else _TextSink(tokenizer, session.tokens + list(prompt), options, stream)
        self._tokens: list[int] = []
        self._reason = "length"

    @property
    def tokens_left(self) -> int | None:
        """None: until the context is full."""
        limit = self._options.max_tokens
        return None if limit is None else limit - len(self._tokens)

    def prefill(self) -> None:
        self.session.prefill(self._prompt)

    def take(self, step: Step | None) -> None:
        """The session's next step; None: the context is full."""
        if step is None:
            self.is_over = True
            return
        for token in step.tokens:
            self._tokens.append(token)
            if token in self.end_tokens or (self._sink is not None and self._sink.feed(token)):
                self._reason = "stop"
                self.is_over = True
                return
        self.is_over = self.tokens_left == 0

    def cancel(self) -> None:
        self._reason = "cancelled"
        self.is_over = True

    def close(self) -> None:
        """The session keeps what plain decoding would have: a step may have run past a stop string."""
        if len(self.session) > self._n_before + len(self._tokens):
            self.session.truncate(self._n_before + len(self._tokens))
        self.session.remember_costs()

    def finish(self) -> Generation:
        self.close()
        stats = _statistics(self.session, self._before, len(self._tokens), perf_counter() - self._start)
        sink = self._sink
        if sink is None:
            return Generation("", self._tokens, self._reason, stats)
        sink.finish()
        form = self._options.reasoning
        reasoning = "".join(sink.reasoning) if sink.reasoning or (form is not None and form.is_open) else None
        return Generation("".join(sink.content), self._tokens, self._reason, stats, reasoning)


def run_generation(
    session: Session,
    tokenizer: Tokenizer | None,
    prompt: Sequence[int],
    options: TextOptions,
    stream: Callable[[str], object] | None = None,
) -> Generation:
    """Feeds `prompt` to the session and generates until something ends it.

    `stream` is called with each piece of answer text as soon as it is certain. A cancelled generation returns what
    it has; a cancelled prefill too.
    """
    run = RunningGeneration(session, tokenizer, prompt, options, stream)
    try:
        run.prefill()
        while not run.is_over:
            run.take(session.step(run.tokens_left, run.end_tokens))
    except Cancelled:
        run.cancel()
    except BaseException:
        run.close()
        raise
    return run.finish()


def _statistics(session: Session, before: dict[str, Any], n_tokens: int, wall: float) -> dict[str, Any]:
    after = session.stats
    stats: dict[str, Any] = {"seed": after["seed"], "seconds": wall}
    n_prefill = after["prefill_tokens"] - before["prefill_tokens"]
    for phase, n in (("prefill", n_prefill), ("decode", n_tokens)):
        seconds = after[f"{phase}_seconds"] - before[f"{phase}_seconds"]
        stats[f"{phase}_tokens"] = n
        stats[f"{phase}_seconds"] = seconds
        stats[f"{phase}_tokens_per_second"] = n / seconds if seconds > 0 else 0.0
    if session.speculates:
        stats["lossless"] = session.lossless
        stats["drafter_bytes"] = after["drafter_bytes"]
        for name in ("steps", "drafted", "selected", "accepted", "draft_seconds", "select_seconds"):
            stats[name] = after[name] - before[name]
        stats["accepted_per_step"] = stats["accepted"] / stats["steps"] if stats["steps"] else 0.0
    return stats
