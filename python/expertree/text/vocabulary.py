"""The vocabulary of a GGUF file: tokens, their kinds, the special ids and which of them end a generation.

The rules are llama.cpp's (`llama_vocab::impl::load`): files are made for them, including the tokens it recognises by
their text because converters often leave the metadata out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from expertree.errors import ModelFormatError

__all__ = ["Kind", "Vocabulary", "read_flag", "read_strings", "read_text"]

# Token texts may hold any bytes; inside Python they are str with undecodable bytes as lone surrogates.
_LOSSLESS = "surrogateescape"


class Kind:
    """Bits of what a token is; one whose kind was overridden by its text has several. Plain ints: there are 10^5."""

    UNDEFINED: Final = 0
    UNKNOWN: Final = 1
    UNUSED: Final = 2
    NORMAL: Final = 4
    CONTROL: Final = 8
    USER_DEFINED: Final = 16
    BYTE: Final = 32
    HIDDEN: Final = CONTROL | UNKNOWN
    SPECIAL: Final = CONTROL | UNKNOWN | USER_DEFINED


# GGUF token types 0..6.
_KIND_OF_TYPE = (
    Kind.UNDEFINED,
    Kind.NORMAL,
    Kind.UNKNOWN,
    Kind.CONTROL,
    Kind.USER_DEFINED,
    Kind.UNUSED,
    Kind.BYTE,
)

# Texts that end a generation wherever they occur in a vocabulary.
_END_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "[e~[",
)
# Fill-in-the-middle tokens: (metadata key, texts in order of preference, ends a generation).
_FILL_TEXTS: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    (
        "fim_pre_token_id",
        (
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<\uff5cfim\u2581begin\uff5c>",
            "<PRE>",
            "\u2581<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ),
        False,
    ),
    (
        "fim_suf_token_id",
        (
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<\uff5cfim\u2581hole\uff5c>",
            "<SUF>",
            "\u2581<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ),
        False,
    ),
    (
        "fim_mid_token_id",
        (
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<\uff5cfim\u2581end\uff5c>",
            "<MID>",
            "\u2581<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ),
        False,
    ),
    ("fim_pad_token_id", ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"), True),
    ("fim_rep_token_id", ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"), True),
    ("fim_sep_token_id", ("<|file_sep|>",), True),
)
_OLD_FILL_KEYS = {
    "fim_pre_token_id": "prefix_token_id",
    "fim_suf_token_id": "suffix_token_id",
    "fim_mid_token_id": "middle_token_id",
}
# gpt-oss: always part of the visible text, so that channels can be told apart.
_VISIBLE_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
_BYTE_TEXT = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass
class Vocabulary:
    """Tokens and special ids.

    Attributes:
        texts: token texts as stored, `n_vocab` of them; undecodable bytes are lone surrogates.
        kinds: `Kind` bits per token.
        ids: text to id; the last of several equal texts wins.
        scores: float32 [n_vocab], zeros where the file has none.
        bos_id, eos_id, unknown_id: special ids, None where there is none.
        eog_ids: every id that ends a generation.
        guarded: control and unknown tokens, by the file or by their text: what a user's text must not become.
        byte_ids: id of the token `<0xNN>` for each byte value, or None.
    """

    texts: list[str]
    kinds: list[int]
    ids: dict[str, int]
    scores: np.ndarray[Any, np.dtype[np.float32]]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    eog_ids: frozenset[int]
    guarded: frozenset[int]
    byte_ids: list[int | None]

    @classmethod
    def from_metadata(
        cls,
        meta: Mapping[str, Any],
        *,
        default_bos: int | None,
        default_eos: int | None,
        default_unknown: int | None,
    ) -> Vocabulary:
        """Read `tokenizer.ggml.*`.

        Raises:
            ModelFormatError: a key is missing or of another type or length than the token list asks for.
        """
        texts = read_strings(meta, "tokenizer.ggml.tokens", required=True)
        texts = [text or f"[EMPTY_{i}]" for i, text in enumerate(texts)]
        ids = dict(zip(texts, range(len(texts)), strict=True))
        kinds = _read_kinds(meta, len(texts))
        scores = _read_numbers(meta, "tokenizer.ggml.scores", len(texts), np.float32)
        special = {
            "bos_token_id": default_bos,
            "eos_token_id": default_eos,
            "unknown_token_id": default_unknown,
            "eot_token_id": None,
            "eom_token_id": None,
        }
        for key, default in special.items():
            special[key] = _read_id(meta, key, default, len(texts))
        guarded = {token for token, kind in enumerate(kinds) if kind & Kind.HIDDEN}
        eog_ids = _find_ends(meta, texts, kinds, ids, [special[k] for k in special if k.startswith("eo")])
        guarded.update(token for token, kind in enumerate(kinds) if kind & Kind.HIDDEN)
        byte_ids: list[int | None] = [ids.get(f"<0x{byte:02X}>") for byte in range(256)]
        return cls(
            texts,
            kinds,
            ids,
            scores,
            special["bos_token_id"],
            special["eos_token_id"],
            special["unknown_token_id"],
            eog_ids,
            frozenset(guarded),
            byte_ids,
        )

    def byte_of(self, token: int) -> int:
        """The byte that a token of kind BYTE stands for; -1 if its text is not `<0xNN>`."""
        match = _BYTE_TEXT.fullmatch(self.texts[token])
        return int(match[1], 16) if match else -1


def read_text(value: Any, key: str) -> str:
    """A GGUF string as str, undecodable bytes as lone surrogates."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", _LOSSLESS)
    raise ModelFormatError(f"{key}: expected a string, found {type(value).__name__}")


def read_strings(meta: Mapping[str, Any], key: str, *, required: bool) -> list[str]:
    """A GGUF array of strings; empty if it is missing and not required."""
    value = meta.get(key)
    if value is None:
        if required:
            raise ModelFormatError(f"{key}: missing; the file has no vocabulary")
        return []
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ModelFormatError(f"{key}: expected an array of strings, found {type(value).__name__}")
    return [item if type(item) is str else read_text(item, key) for item in value]


def read_flag(meta: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """A GGUF bool (integers 0 and 1 are taken too)."""
    value = meta.get(key)
    if value is None:
        return default
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise ModelFormatError(f"{key}: expected true or false, found {value!r}")


def _read_numbers(meta: Mapping[str, Any], key: str, n: int, dtype: type) -> np.ndarray[Any, Any]:
    value = meta.get(key)
    if value is None:
        return np.zeros(n, dtype)
    try:
        numbers = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ModelFormatError(f"{key}: expected an array of numbers") from error
    if numbers.ndim != 1 or numbers.dtype.kind not in "iuf":
        raise ModelFormatError(f"{key}: expected an array of numbers, found {type(value).__name__}")
    if len(numbers) < n:
        raise ModelFormatError(f"{key}: expected {n} entries (one per token), found {len(numbers)}")
    return numbers[:n].astype(dtype)


def _read_kinds(meta: Mapping[str, Any], n: int) -> list[int]:
    key = "tokenizer.ggml.token_type"
    if meta.get(key) is None:
        return [Kind.NORMAL] * n
    types = _read_numbers(meta, key, n, np.int64).tolist()
    return [_KIND_OF_TYPE[t] if 0 <= t < len(_KIND_OF_TYPE) else Kind.UNDEFINED for t in types]


def _read_id(meta: Mapping[str, Any], name: str, default: int | None, n: int) -> int | None:
    """A special id; one outside the vocabulary is ignored, as llama.cpp does."""
    key = f"tokenizer.ggml.{name}"
    value = meta.get(key)
    if isinstance(value, np.generic):
        value = value.item()
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ModelFormatError(f"{key}: expected a token id, found {value!r}")
    if value is not None and 0 <= value < n:
        return value
    return default if default is not None and default < n else None


def _find_ends(
    meta: Mapping[str, Any],
    texts: list[str],
    kinds: list[int],
    ids: dict[str, int],
    named: list[int | None],
) -> frozenset[int]:
    """Ids that end a generation; marks tokens known by their text as control tokens in `kinds`."""
    ends: set[int] = set()
    for key, candidates, is_end in _FILL_TEXTS:
        found = _read_id(meta, key, None, len(texts))
        if found is None and key in _OLD_FILL_KEYS:
            found = _read_id(meta, _OLD_FILL_KEYS[key], None, len(texts))
        if found is None:
            found = next((ids[text] for text in candidates if text in ids), None)
            if found is not None:
                kinds[found] |= Kind.CONTROL
        if is_end and found is not None:
            ends.add(found)
    for text in _END_TEXTS:
        if text in ids:
            ends.add(ids[text])
            kinds[ids[text]] |= Kind.CONTROL
    for text in _VISIBLE_TEXTS:
        if text in ids:
            kinds[ids[text]] = Kind.USER_DEFINED
    ends.update(token for token in named if token is not None)
    _spare_inner_ends(ids, kinds, ends)
    return frozenset(ends)


def _spare_inner_ends(ids: dict[str, int], kinds: list[int], ends: set[int]) -> None:
    """Tokens that look like an end and are none in gpt-oss, Solar Open, Gemma 4 and PLaMo."""

    def ending(text: str) -> bool:
        return ids.get(text, -1) in ends

    called = ending("<|call|>") or ending("<|calls|>")
    if ending("<|end|>") and called and (ending("<|return|>") or ending("<|flush|>")):
        ends.discard(ids["<|end|>"])
        kinds[ids["<|end|>"]] = Kind.USER_DEFINED
    if ending("</s>") and (ending("<|tool_response>") or ending("<|plamo:eos|>")):
        ends.discard(ids["</s>"])
        kinds[ids["</s>"]] = Kind.NORMAL
