"""Byte-pair encoding with the `tokenizers` package, from a GGUF file's own vocabulary, merges and pre-tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

from tokenizers import Regex
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

from expertree.errors import InvalidRequestError, ModelFormatError
from expertree.text.pretokenizers import Pretokenizer
from expertree.text.vocabulary import Vocabulary

__all__ = ["BpeEncoder", "byte_alphabet"]

_WORD_SPACE = "\u2581"
_NEWLINES = re.compile(r"(\n+)")
_UNDECODABLE = re.compile("([\udc80-\udcff]+)")
_SURROGATE = re.compile("[\ud800-\udfff]")


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in for each of the 256 byte values."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    chars = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [chars[byte] for byte in range(256)]


class BpeEncoder:
    """Text to ids. A text may hold undecodable bytes as lone surrogates U+DC80..U+DCFF; they become byte tokens.

    A byte or character for which the vocabulary has no token at all is left out, as in llama.cpp.

    Args:
        vocabulary: the tokens.
        merges: `"left right"` pairs, best first.
        pretokenizer: how words are cut.

    Raises:
        ModelFormatError: a merge is not a pair, or the library refuses the tables.
    """

    def __init__(self, vocabulary: Vocabulary, merges: list[str], pretokenizer: Pretokenizer) -> None:
        self._ids = vocabulary.ids
        self._n_vocab = len(vocabulary.texts)
        self._raw_utf8 = pretokenizer.raw_utf8
        alphabet = byte_alphabet()
        byte_ids = vocabulary.byte_ids if self._raw_utf8 else [vocabulary.ids.get(char) for char in alphabet]
        self._byte_ids: list[int | None] = byte_ids
        pairs = _split_merges(merges)
        table, self._extra = _complete_table(vocabulary.ids, pairs, [] if self._raw_utf8 else alphabet)
        try:
            model = BPE(
                table,
                pairs,
                ignore_merges=pretokenizer.ignore_merges,
                byte_fallback=self._raw_utf8,
                fuse_unk=False,
            )
        except Exception as error:
            raise ModelFormatError(f"tokenizer.ggml.merges: {error}") from error
        self._fast = FastTokenizer(model)
        if not self._raw_utf8:
            steps = [Split(Regex(pattern), "isolated") for pattern in pretokenizer.patterns]
            self._fast.pre_tokenizer = PreTokenizers([*steps, ByteLevel(add_prefix_space=False, use_regex=False)])

    def encode(self, text: str) -> list[int]:
        """Ids of a stretch of text without special tokens."""
        if _SURROGATE.search(text) is None:
            return self._encode_valid(text)
        ids: list[int] = []
        for piece in _UNDECODABLE.split(text):
            if _UNDECODABLE.match(piece):
                ids.extend(self._encode_bytes(bytes(ord(char) - 0xDC00 for char in piece)))
            elif piece:
                ids.extend(self._encode_valid(_SURROGATE.sub("\ufffd", piece)))
        return ids

    def _encode_bytes(self, data: bytes) -> Iterator[int]:
        for byte in data:
            token = self._byte_ids[byte]
            if token is not None:
                yield token

    def _encode_valid(self, text: str) -> list[int]:
        if not self._raw_utf8:
            return self._encode_fast(text)
        ids: list[int] = []
        for piece in _NEWLINES.split(text.replace(" ", _WORD_SPACE)):
            if piece in self._ids and piece[0] == "\n":
                ids.append(self._ids[piece])
            elif piece:
                ids.extend(self._encode_fast(piece))
        return ids

    def _encode_fast(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._fast.encode(text, add_special_tokens=False).ids
        except BaseException as error:
            if type(error).__name__ != "PanicException" and not isinstance(error, Exception):
                raise
            raise InvalidRequestError(f"text of {len(text)} characters cannot be cut into words: {error}") from error
        if not self._extra or max(ids, default=0) < self._n_vocab:
            return ids
        return [inner for token in ids for inner in self._extra.get(token, (token,))]


def _split_merges(merges: list[str]) -> list[tuple[str, str]]:
    """Pairs of the merges, each once, the first place counting."""
    if _SURROGATE.search("".join(merges)) is not None:
        merges = [merge for merge in merges if _SURROGATE.search(merge) is None]
    merges = list(dict.fromkeys(merges))
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if all(len(pair) == 2 and pair[0] and pair[1] for pair in pairs):
        return cast("list[tuple[str, str]]", pairs)
    return [_split_merge(merge) for merge in merges]


def _split_merge(merge: str) -> tuple[str, str]:
    """Both parts; the left one may begin with a space, so the first character never separates."""
    at = merge.find(" ", 1)
    if at < 0 or at + 1 == len(merge):
        raise ModelFormatError(f"tokenizer.ggml.merges: {merge!r} is not two parts and a space between them")
    return merge[:at], merge[at + 1 :]


def _complete_table(
    ids: dict[str, int], pairs: list[tuple[str, str]], alphabet: list[str]
) -> tuple[dict[str, int], dict[int, list[int]]]:
    """Token table for the library, which wants every merge and every byte to be a token.

    Returns:
        The table, and for each id added to it the real ids to put in its place.
    """
    table = ids.copy()
    if _SURROGATE.search("".join(table)) is not None:
        table = {text: token for text, token in table.items() if _SURROGATE.search(text) is None}
    next_id = max(ids.values(), default=-1) + 1
    needed = [char for char in alphabet if char not in table]
    needed += [left + right for left, right in pairs if left + right not in table]
    needed += [part for pair in pairs for part in pair if part not in table]
    extra: dict[int, list[int]] = {}
    for token, text in enumerate(dict.fromkeys(needed), next_id):
        table[text] = token
        extra[token] = [ids[char] for char in text if char in ids]
    return table, extra
