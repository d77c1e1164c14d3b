"""The live view of a chat: figures below an answer while it comes, and a line after it where there is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from expertree.cli.conversation import Conversation
from expertree.cli.live_figures import LiveFigures, read_counts
from expertree.cli.status_line import StatusLine

_LEAST_INTERVAL = 0.1  # seconds between two drawings


class LiveView:
    """Args:
    conversation: whose answers.
    line: where the figures go.
    say: shows a line, for terminals that cannot keep one at the bottom, files and pipes.
    """

    def __init__(
        self, conversation: Conversation, line: StatusLine, say: Callable[[str], object], is_on: bool = False
    ) -> None:
        self._line = line
        self._say = say
        self.is_on = is_on
        self._drawn = 0.0
        model = conversation.model
        self._figures = LiveFigures(lambda: read_counts(conversation.n_tokens, conversation.stats, model.experts))

    def toggle(self) -> None:
        self.is_on = not self.is_on
        if not self.is_on:
            self._say("the live view is off")
        elif self._line.is_possible:
            self._say("the live view is on: the last line shows the next answer's figures")
        else:
            self._say("the live view is on: this terminal cannot keep a line in place, so figures follow each answer")

    @property
    def toolbar(self) -> str:
        """Figures of the last answer, for below the prompt; "" when there is nothing to show."""
        return self._figures.summary() if self.is_on else ""

    @contextmanager
    def answer(self) -> Iterator[None]:
        """Around an answer."""
        if not self.is_on:
            yield
            return
        self._figures.begin()
        self._drawn = 0.0
        try:
            with self._line.removed_when_stopped():
                self._draw()
                yield
        finally:
            self._line.remove()

    def update(self) -> None:
        """When text has come."""
        if self.is_on:
            self._figures.take()
            if perf_counter() - self._drawn >= _LEAST_INTERVAL:
                self._draw()

    def finish(self) -> None:
        """After an answer: its figures, where no line showed them."""
        if self.is_on and not self._line.is_possible and (summary := self._figures.summary()):
            self._say(f"live: {summary}")

    def _draw(self) -> None:
        self._drawn = perf_counter()
        self._line.show(self._figures.line(self._line.columns - 1))
