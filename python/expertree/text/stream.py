"""Text from a running generation: whole characters only, and cut at stop strings."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from expertree.errors import InvalidRequestError
from expertree.text.tokenizer import Tokenizer

__all__ = ["StopMatcher", "StreamDecoder"]


class StreamDecoder:
    """Token ids to pieces of text. The pieces joined are `tokenizer.decode` of all ids, however they were fed.

    Bytes of an unfinished character are held back until it is complete; `flush` makes one U+FFFD of what is left.

    Args:
        tokenizer: the ids' tokenizer.
        skip_special: leave out control and unknown tokens.
        after: ids that come before, the prompt of a generation: text that goes on in mid-sentence keeps the space it
            starts with. Without them the first id starts a text.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = False, after: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._after_special = len(after) == 0 or tokenizer.is_special(after[-1])
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        """The text that these ids complete; "" if none.

        Raises:
            InvalidRequestError: an id is not in the vocabulary.
        """
        data = bytearray()
        for token in ids:
            data += self._tokenizer.piece(token, after_special=self._after_special, skip_special=self._skip_special)
            self._after_special = self._tokenizer.is_special(token)
        return self._utf8.decode(bytes(data))

    def flush(self) -> str:
        """U+FFFD if a character was left unfinished, else ""; the decoder then starts anew after the same ids."""
        return self._utf8.decode(b"", final=True)


class StopMatcher:
    """Passes text on until a stop string appears, wherever it is split.

    Text that may turn out to be the beginning of a stop string is held back. Of several stop strings the one that is
    complete first counts; of those that are complete together, the longest.

    Args:
        stops: strings, none of them empty.

    Attributes:
        stopped: the stop string that was found, or None. Nothing is passed on after it.

    Raises:
        InvalidRequestError: a stop string is empty.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in stops):
            raise InvalidRequestError(f"stop: expected a list of strings that are not empty, found {stops!r}")
        self._stops = list(stops)
        self._held = ""
        self.stopped: str | None = None

    def feed(self, text: str) -> str:
        """The part of the text so far that is certain now and was not passed on before."""
        if self.stopped is not None:
            return ""
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.stopped = min(found)
            self._held = ""
            return text[:at]
        n_held = self._count_held(text)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def flush(self) -> str:
        """What was held back, once it is known that no more text comes."""
        held, self._held = self._held, ""
        return held

    def _count_held(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=0) - 1
        for n in range(min(longest, len(text)), 0, -1):
            end = text[-n:]
            if any(stop.startswith(end) for stop in self._stops):
                return n
        return 0
