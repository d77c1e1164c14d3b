"""Finding special tokens in text.

As in llama.cpp the longest token is looked for first, in the whole text, then the next longest in what is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

__all__ = ["SpecialTokens"]

# Bytes that C's isspace() takes for white space.
_C_SPACE = " \t\n\v\f\r"


class SpecialTokens:
    """A set of token texts that are cut out of a text before words are made of it.

    Args:
        tokens: (text, id) pairs; texts are not empty.
        strip_after: ids that swallow the white space behind them.
        guarded: ids that may not hold blocked characters.
    """

    def __init__(
        self,
        tokens: Iterable[tuple[str, int]],
        *,
        strip_after: frozenset[int] = frozenset(),
        guarded: frozenset[int] = frozenset(),
    ) -> None:
        self._ids = dict(tokens)
        self._guarded = guarded
        self._strip_after = strip_after
        self._lengths: dict[str, list[int]] = {}
        for text in self._ids:
            lengths = self._lengths.setdefault(text[:2], [])
            if len(text) not in lengths:
                lengths.append(len(text))
        first = "".join(sorted({re.escape(text[0]) for text in self._ids}))
        self._first = re.compile(f"[{first}]") if first else None

    def __bool__(self) -> bool:
        return bool(self._ids)

    def occurring(self, text: str) -> list[str]:
        """The tokens that occur in `text`, longest (in bytes) first."""
        if self._first is None:
            return []
        found: set[str] = set()
        for match in self._first.finditer(text):
            start = match.start()
            for prefix in (text[start : start + 2], text[start]):
                for length in self._lengths.get(prefix, ()):
                    candidate = text[start : start + length]
                    if candidate in self._ids:
                        found.add(candidate)
        return sorted(found, key=lambda token: (-len(token.encode("utf-8", "surrogatepass")), self._ids[token]))

    def split(self, text: str, blocked: frozenset[int] = frozenset()) -> list[str | int]:
        """Cut `text` into stretches of text (str) and token ids (int).

        Args:
            text: any text.
            blocked: indices into `text` of characters that no guarded token may contain.
        """
        pieces: list[tuple[int, str | int]] = [(0, text)] if text else []
        for token in self.occurring(text):
            token_id = self._ids[token]
            strip = token_id in self._strip_after
            cut: list[tuple[int, str | int]] = []
            for base, piece in pieces:
                if isinstance(piece, int) or token not in piece:
                    cut.append((base, piece))
                else:
                    spared = blocked if token_id in self._guarded else frozenset()
                    cut.extend(self._cut(base, piece, token, token_id, strip, spared))
            pieces = cut
        return [piece for _, piece in pieces]

    @staticmethod
    def _cut(
        base: int, piece: str, token: str, token_id: int, strip: bool, blocked: frozenset[int]
    ) -> Iterator[tuple[int, str | int]]:
        """Cut every occurrence of one token out of one stretch that starts at index `base` of the text."""
        start, search = 0, 0
        while (at := piece.find(token, search)) >= 0:
            end = at + len(token)
            if blocked and not blocked.isdisjoint(range(base + at, base + end)):
                search = at + 1
                continue
            if at > start:
                yield base + start, piece[start:at]
            yield base + at, token_id
            while strip and end < len(piece) and piece[end] in _C_SPACE:
                end += 1
            start = search = end
        if start < len(piece):
            yield base + start, piece[start:]
