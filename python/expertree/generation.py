"""From a session's tokens to text: streaming, stop strings, limits, reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from expertree.errors import Cancelled
from expertree.session import Session
from expertree.text import ReasoningSplitter, StopMatcher, StreamDecoder, Tokenizer


@dataclass(frozen=True)
class Generation:
    """What was generated.

    text: the answer. reasoning: what stood inside reasoning tags, None without such tags. tokens: all sampled ids,
    the end-of-text token included. finish_reason: "stop" (end of text or a stop string), "length" (max_tokens or the
    context), "cancelled". stats: tokens, seconds and tokens per second of prefill and decoding, and the seed; with a
    drafter also steps, nodes drafted, selected and accepted, accepted_per_step, and draft_seconds and select_seconds,
    which are part of decode_seconds.
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
    split_reasoning: bool = False
    reasoning_open: bool = False  # the prompt already opened a reasoning section


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
        self._splitter = ReasoningSplitter(inside=options.reasoning_open) if options.split_reasoning else None
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


def run_generation(
    session: Session,
    tokenizer: Tokenizer | None,
    prompt: Sequence[int],
    options: TextOptions,
    stream: Callable[[str], object] | None = None,
) -> Generation:
    """Feeds `prompt` to the session and generates until something ends it.

    `stream` is called with each piece of answer text as soon as it is certain. A cancelled generation returns what
    it has; a cancelled prefill too. Without a tokenizer there are tokens only: no text, no end-of-text.
    """
    before = session.stats
    start = perf_counter()
    sink = None if tokenizer is None else _TextSink(tokenizer, session.tokens + list(prompt), options, stream)
    ends = frozenset() if tokenizer is None or options.ignore_eos else frozenset(tokenizer.eog_ids)
    tokens: list[int] = []
    reason = "length"
    n_before = len(session) + len(prompt)
    try:
        session.prefill(prompt)
        for token in _tokens_of(session, options.max_tokens, sorted(ends)):
            tokens.append(token)
            if token in ends or (sink is not None and sink.feed(token)):
                reason = "stop"
                break
    except Cancelled:
        reason = "cancelled"
    finally:
        # A step may have run past a stop string: the session keeps what plain decoding would have.
        if len(session) > n_before + len(tokens):
            session.truncate(n_before + len(tokens))
        session.remember_costs()
    stats = _statistics(session, before, len(tokens), perf_counter() - start)
    if sink is None:
        return Generation("", tokens, reason, stats)
    sink.finish()
    reasoning = "".join(sink.reasoning) if sink.reasoning or options.reasoning_open else None
    return Generation("".join(sink.content), tokens, reason, stats, reasoning)


def _tokens_of(session: Session, limit: int | None, ends: Sequence[int]) -> Iterator[int]:
    """The session's next tokens one by one, up to a limit or the end of the context. A step may give several."""
    n = 0
    while limit is None or n < limit:
        step = session.step(None if limit is None else limit - n, ends)
        if step is None:
            return
        n += len(step.tokens)
        yield from step.tokens


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
        for name in ("steps", "drafted", "selected", "accepted", "draft_seconds", "select_seconds"):
            stats[name] = after[name] - before[name]
        stats["accepted_per_step"] = stats["accepted"] / stats["steps"] if stats["steps"] else 0.0
    return stats
