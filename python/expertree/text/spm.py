"""SentencePiece encoding (`tokenizer.ggml.model` = "llama") with the `sentencepiece` package.

The GGUF file's tokens and scores are written into a SentencePiece BPE model, whose merge rule is the one llama.cpp
follows: join the neighbours whose union is the token of the highest score, leftmost first. llama.cpp lets any token
take part, whatever its kind, so every token is given to the library as a normal one. Only the 256 byte tokens are
declared as such, for speed; where a file lacks some of them, unknown characters are resolved here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import sentencepiece

from expertree.errors import InvalidRequestError, ModelFormatError
from expertree.text.vocabulary import Kind, Vocabulary

__all__ = ["SpmEncoder"]

_WORD_SPACE = "\u2581"
_NUL = "\U0010fffe"  # The library allows no NUL in a token.
_UNDECODABLE = re.compile("([\udc80-\udcff]+)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNKNOWN = 2  # Piece type; normal is 1, byte 6.
_MODEL_TYPE_BPE = 2


class SpmEncoder:
    """Text to ids. A text may hold undecodable bytes as lone surrogates U+DC80..U+DCFF; they become byte tokens.

    A byte without a byte token becomes the unknown token; without one it is left out.

    Raises:
        ModelFormatError: the library refuses the vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._n_vocab = len(vocabulary.texts)
        unknown = vocabulary.unknown_id
        self._unknown = unknown if unknown is not None and vocabulary.kinds[unknown] & Kind.UNKNOWN else None
        self._byte_ids = [
            token if token is not None else vocabulary.ids.get(chr(byte)) if byte < 0x80 else None
            for byte, token in enumerate(vocabulary.byte_ids)
        ]
        self._has_nul = "\0" in vocabulary.ids
        all_bytes = None not in vocabulary.byte_ids and not _byte_token_can_be_merged(vocabulary)
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=_model_proto(vocabulary, all_bytes))
        except Exception as error:
            raise ModelFormatError(f"tokenizer.ggml.tokens: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Ids of a stretch of text without special tokens; a leading space is the caller's business."""
        if _SURROGATE.search(text) is None:
            return self._encode_valid(text)
        ids: list[int] = []
        for piece in _UNDECODABLE.split(text):
            if _UNDECODABLE.match(piece):
                ids.extend(self._encode_bytes(bytes(ord(char) - 0xDC00 for char in piece)))
            elif piece:
                ids.extend(self._encode_valid(_SURROGATE.sub("\ufffd", piece)))
        return ids

    def _encode_valid(self, text: str) -> list[int]:
        text = text.replace(" ", _WORD_SPACE)
        if self._has_nul:
            text = text.replace("\0", _NUL)
        try:
            ids: list[int] = self._processor.encode(text, out_type=int)
            if max(ids, default=0) < self._n_vocab:
                return ids
            return self._resolve_unknown(ids, self._processor.encode(text, out_type=str))
        except Exception as error:
            raise InvalidRequestError(f"text of {len(text)} characters cannot be tokenized: {error}") from error

    def _resolve_unknown(self, tokens: list[int], pieces: list[str]) -> list[int]:
        """Bytes for the unknown pieces; the library joins neighbouring unknown characters into one."""
        ids: list[int] = []
        for token, piece in zip(tokens, pieces, strict=True):
            if token < self._n_vocab:
                ids.append(token)
            else:
                ids.extend(self._encode_bytes(piece.encode()))
        return ids

    def _encode_bytes(self, data: bytes) -> Iterator[int]:
        for byte in data:
            token = self._byte_ids[byte]
            token = self._unknown if token is None else token
            if token is not None:
                yield token


def _byte_token_can_be_merged(vocabulary: Vocabulary) -> bool:
    """Whether the literal text `<0xNN>` could come together from smaller tokens."""
    for byte in range(256):
        text = f"<0x{byte:02X}>"
        for cut in range(1, len(text)):
            if all(len(part) == 1 or part in vocabulary.ids for part in (text[:cut], text[cut:])):
                return True
    return False


def _model_proto(vocabulary: Vocabulary, byte_fallback: bool) -> bytes:
    """A serialized SentencePiece `ModelProto`: pieces, trainer spec, normalizer spec.

    One piece is added behind the vocabulary: the library's unknown piece, which stands for whatever it cannot encode.
    """
    n = len(vocabulary.texts)
    byte_tokens = set(vocabulary.byte_ids) if byte_fallback else set()
    texts = vocabulary.texts
    if len(vocabulary.ids) < n or _SURROGATE.search("".join(texts)) is not None:
        # A later token has this text, or no valid text holds it: out of reach.
        texts = [
            _unreachable(token) if vocabulary.ids[text] != token or _SURROGATE.search(text) else text
            for token, text in enumerate(texts)
        ]
    scores = vocabulary.scores.astype("<f4").tobytes()
    pieces = [
        _piece(text.replace("\0", _NUL).encode(), scores[4 * token : 4 * token + 4], token in byte_tokens)
        for token, text in enumerate(texts)
    ]
    unknown = _bytes_field(1, _unreachable(n).encode()) + _varint_field(3, _UNKNOWN)
    trainer = _varint_field(3, _MODEL_TYPE_BPE) + _varint_field(35, int(byte_fallback))
    for name_field in (45, 46, 47, 48):  # unk, bos, eos, pad: the pieces the library would look up by name.
        trainer += _bytes_field(name_field, _unreachable(n).encode())
    normalizer = _bytes_field(1, b"identity") + b"".join(_varint_field(field, 0) for field in (3, 4, 5))
    return b"".join(pieces) + _bytes_field(1, unknown) + _bytes_field(2, trainer) + _bytes_field(3, normalizer)


def _unreachable(token: int) -> str:
    """A text that no merge leads to."""
    return f"\U0010ffff\U0010ffff{token}"


def _piece(text: bytes, score: bytes, is_byte: bool) -> bytes:
    """A `SentencePiece` message: text, score as four bytes, type."""
    tail = b"\x15" + score + (b"\x18\x06" if is_byte else b"\x18\x01")
    n = len(text)
    if n < 100:  # Both lengths fit one byte.
        return b"%c%c%c%c%b%b" % (0x0A, n + 9, 0x0A, n, text, tail)
    return _bytes_field(1, _bytes_field(1, text) + tail)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _bytes_field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value
