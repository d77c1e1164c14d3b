"""Text to token ids and back, from the metadata of a GGUF file; the same ids as llama.cpp.

Two kinds of model are known: "gpt2" (byte-level BPE; also "gemma4", BPE on raw UTF-8) and "llama" (SentencePiece).
Undecodable bytes in the input become byte tokens, so they survive encode and decode; other lone surrogates become
U+FFFD. Unlike llama.cpp's `detokenize`, `decode` never tidies spaces before punctuation.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from expertree.errors import InvalidRequestError, UnsupportedError
from expertree.text.bpe import BpeEncoder, byte_alphabet
from expertree.text.pretokenizers import find_pretokenizer
from expertree.text.special_tokens import SpecialTokens
from expertree.text.spm import SpmEncoder
from expertree.text.vocabulary import Kind, Vocabulary, read_flag, read_strings, read_text

__all__ = ["Tokenizer"]

_WORD_SPACE = "\u2581"
_GPT2_DEFAULT_ID = 11
_BYTE_OF_CHAR = {char: bytes([byte]) for byte, char in enumerate(byte_alphabet())}


class Tokenizer:
    """A model's tokenizer. Immutable; may be used from several threads.

    Attributes:
        n_vocab: number of tokens.
        bos_id, eos_id: None where the model has none.
        eog_ids: every id that ends a generation (end of text, of turn, of message).
        add_bos, add_eos: whether `encode(..., add_special=True)` puts them at the ends.
        chat_template: source of the file's chat template, or None.
        speaks_channels: answers come in gpt-oss's channels: the vocabulary has its tokens, the template uses them.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        encoder: BpeEncoder | SpmEncoder,
        pieces: _Pieces,
        *,
        add_space_prefix: bool,
        add_bos: bool,
        add_eos: bool,
        chat_template: str | None,
        strip_after: frozenset[int],
    ) -> None:
        """Use `from_metadata`."""
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._pieces = pieces
        self._add_space_prefix = add_space_prefix
        self.n_vocab = len(vocabulary.texts)
        self.bos_id, self.eos_id, self.eog_ids = vocabulary.bos_id, vocabulary.eos_id, vocabulary.eog_ids
        self.add_bos = add_bos and self.bos_id is not None
        self.add_eos = add_eos and self.eos_id is not None
        self.chat_template = chat_template
        # A vocabulary may have the tokens unused, and a template may merely name one.
        self.speaks_channels = "<|channel|>" in (chat_template or "") and all(
            text in vocabulary.ids for text in ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
        )
        marked = [(t, k) for t, k in enumerate(vocabulary.kinds) if k & Kind.SPECIAL]
        self._hidden = frozenset(t for t, k in marked if k & Kind.HIDDEN)
        self._special = frozenset(t for t, _ in marked)
        texts = vocabulary.texts
        rules = {"strip_after": strip_after, "guarded": vocabulary.guarded}
        self._all_special = SpecialTokens(((texts[t], t) for t, _ in marked), **rules)
        self._user_special = SpecialTokens(((texts[t], t) for t, k in marked if not k & Kind.HIDDEN), **rules)

    @classmethod
    def from_metadata(cls, meta: Mapping[str, Any], *, pre: str | None = None) -> Tokenizer:
        """Build the tokenizer that a GGUF file describes.

        Args:
            meta: GGUF keys (`tokenizer.ggml.*`, `tokenizer.chat_template`, `general.name`) to plain values.
            pre: name of the pre-tokenizer to use whatever the file says.

        Raises:
            UnsupportedError: the tokenizer model or the pre-tokenizer is unknown.
            ModelFormatError: a key is missing, of a wrong type, or too short.
        """
        model = read_text(meta.get("tokenizer.ggml.model", ""), "tokenizer.ggml.model")
        template = meta.get("tokenizer.chat_template")
        rest: dict[str, Any] = {
            "add_eos": read_flag(meta, "tokenizer.ggml.add_eos_token", default=False),
            "chat_template": None if template is None else read_text(template, "tokenizer.chat_template"),
        }
        if model == "llama":
            return cls._from_spm(meta, rest)
        if model in ("gpt2", "gemma4"):
            return cls._from_bpe(meta, model, pre, rest)
        raise UnsupportedError(
            f"tokenizer.ggml.model: {model!r} is not supported; known are 'gpt2' and 'gemma4' (BPE) and 'llama' "
            "(SentencePiece). Pass token ids instead of text, or convert the model again"
            if model
            else "tokenizer.ggml.model: missing; the file has no tokenizer. Pass token ids instead of text"
        )

    @classmethod
    def _from_spm(cls, meta: Mapping[str, Any], rest: dict[str, Any]) -> Tokenizer:
        vocabulary = Vocabulary.from_metadata(meta, default_bos=1, default_eos=2, default_unknown=0)
        return cls(
            vocabulary,
            SpmEncoder(vocabulary),
            _Pieces(vocabulary, raw_utf8=True),
            add_space_prefix=read_flag(meta, "tokenizer.ggml.add_space_prefix", default=True),
            add_bos=read_flag(meta, "tokenizer.ggml.add_bos_token", default=True),
            strip_after=_phi3_strip(meta, vocabulary),
            **rest,
        )

    @classmethod
    def _from_bpe(cls, meta: Mapping[str, Any], model: str, pre: str | None, rest: dict[str, Any]) -> Tokenizer:
        name = pre or _pretokenizer_name(meta, model)
        pretokenizer = find_pretokenizer(name)
        default = _GPT2_DEFAULT_ID if model == "gpt2" else None
        vocabulary = Vocabulary.from_metadata(
            meta,
            default_bos=default if pretokenizer.default_bos or name == "gemma4" else None,
            default_eos=default,
            default_unknown=None,
        )
        merges = read_strings(meta, "tokenizer.ggml.merges", required=name != "kimi-k2")
        add_bos = read_flag(meta, "tokenizer.ggml.add_bos_token", default=pretokenizer.add_bos)
        return cls(
            vocabulary,
            BpeEncoder(vocabulary, merges, pretokenizer),
            _Pieces(vocabulary, raw_utf8=pretokenizer.raw_utf8),
            add_space_prefix=False,
            add_bos=add_bos or name == "gemma4",
            strip_after=_phi3_strip(meta, vocabulary),
            **rest,
        )

    def encode(
        self,
        text: str | bytes,
        *,
        add_special: bool = False,
        parse_special: bool = False,
        literal: frozenset[int] = frozenset(),
    ) -> list[int]:
        """Token ids of `text`.

        Args:
            text: str, or bytes that should be UTF-8; nothing in them is an error.
            add_special: put the ids at the ends that the model wants there (`add_bos`, `add_eos`).
            parse_special: text that spells a control token becomes that token; otherwise it stays plain text.
                User-defined tokens are found either way.
            literal: indices into `text` of characters that may not be part of a control token (`control_texts`).
        """
        if not isinstance(text, (str, bytes, bytearray, memoryview)):
            raise InvalidRequestError(f"text is {text!r}; expected str or bytes")
        if not isinstance(text, str):
            text = bytes(text).decode("utf-8", "surrogateescape")
        special = self._all_special if parse_special else self._user_special
        ids: list[int] = []
        if add_special and self.add_bos and self.bos_id is not None:
            ids.append(self.bos_id)
        after_special = True
        for piece in special.split(text, literal):
            if isinstance(piece, int):
                ids.append(piece)
                after_special = True
            else:
                ids.extend(self._encoder.encode(" " + piece if self._add_space_prefix and after_special else piece))
                after_special = False
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD.

        `decode(encode(text)) == text` for valid text, with `parse_special` too.

        Args:
            ids: token ids.
            skip_special: leave out control and unknown tokens.

        Raises:
            InvalidRequestError: an id is not in the vocabulary, or they are no ids.
        """
        out = bytearray()
        after_special = True
        try:
            for token in ids:
                out += self.piece(token, after_special=after_special, skip_special=skip_special)
                after_special = self.is_special(token)
        except TypeError as error:
            raise InvalidRequestError(f"ids is {ids!r}; expected a list of token ids") from error
        return out.decode("utf-8", "replace")

    def piece(self, token: int, *, after_special: bool, skip_special: bool = False) -> bytes:
        """What one token adds to a decoded text.

        Args:
            token: the id.
            after_special: the token is the first, or follows a special token; then the space that `encode` put
                before it is taken away again.
            skip_special: nothing for control and unknown tokens.
        """
        piece = self.token_bytes(token)
        if token in self._hidden:
            return b"" if skip_special else piece
        strip = after_special and self._add_space_prefix and token not in self._special
        return piece[1:] if strip and piece[:1] == b" " else piece

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; the text of control tokens.

        Raises:
            InvalidRequestError: the id is not in the vocabulary.
        """
        if not 0 <= token < self.n_vocab:
            raise InvalidRequestError(f"token id {token} is not in the vocabulary of {self.n_vocab} tokens")
        return self._pieces[token]

    def is_control(self, token: int) -> bool:
        """Whether the token is a control token, never part of ordinary text."""
        return 0 <= token < self.n_vocab and bool(self._vocabulary.kinds[token] & Kind.CONTROL)

    def is_special(self, token: int) -> bool:
        """Whether the token is cut out of text as a whole: control, unknown and user-defined tokens."""
        return token in self._special

    def control_texts(self) -> list[str]:
        """Texts of tokens that a user's text must not become: control and unknown ones.

        Those of gpt-oss's channels are among them, though llama.cpp treats them as user-defined.
        """
        return [self._vocabulary.texts[token] for token in sorted(self._vocabulary.guarded)]


def _pretokenizer_name(meta: Mapping[str, Any], model: str) -> str:
    if model == "gemma4":
        return "gemma4"
    name = read_text(meta.get("tokenizer.ggml.pre") or "", "tokenizer.ggml.pre")
    if not name:
        warnings.warn(
            "tokenizer.ggml.pre: missing; using 'default', which may cut words another way than the model was trained "
            "on and make its answers worse. Pass pre=NAME if you know the right one",
            stacklevel=4,
        )
    return name or "default"


def _phi3_strip(meta: Mapping[str, Any], vocabulary: Vocabulary) -> frozenset[int]:
    """Phi-3's special tokens swallow the white space behind them; llama.cpp knows the model by its name."""
    name = meta.get("general.name")
    if name is None or not any(known in read_text(name, "general.name").lower() for known in ("phi-3", "phi3")):
        return frozenset()
    kept = ("<unk>", "<s>", "<|endoftext|>")
    texts = vocabulary.texts
    return frozenset(t for t, kind in enumerate(vocabulary.kinds) if kind & Kind.SPECIAL and texts[t] not in kept)


class _Pieces:
    """The bytes of each token, made when asked for. Unused and undefined tokens stand for nothing."""

    def __init__(self, vocabulary: Vocabulary, *, raw_utf8: bool) -> None:
        self._vocabulary = vocabulary
        self._raw_utf8 = raw_utf8
        self._made: dict[int, bytes] = {}

    def __getitem__(self, token: int) -> bytes:
        piece = self._made.get(token)
        if piece is None:
            piece = self._made[token] = self._make(token)
        return piece

    def _make(self, token: int) -> bytes:
        text, kind = self._vocabulary.texts[token], self._vocabulary.kinds[token]
        if kind & Kind.SPECIAL:
            return text.encode("utf-8", "surrogateescape")
        if kind & Kind.NORMAL and self._raw_utf8:
            return text.replace(_WORD_SPACE, " ").encode("utf-8", "surrogateescape")
        if kind & Kind.NORMAL:
            return b"".join(_BYTE_OF_CHAR.get(c) or c.encode("utf-8", "surrogateescape") for c in text)
        byte = self._vocabulary.byte_of(token) if kind & Kind.BYTE else -1
        return bytes([byte]) if byte >= 0 else b""
