"""Tokenizer metadata of the conformance models, from their GGUF files or from vocabularies.json.gz."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@functools.cache
def _stored() -> dict[str, dict[str, Any]]:
    stored: dict[str, dict[str, Any]] = json.loads(gzip.decompress((HERE / "vocabularies.json.gz").read_bytes()))
    return stored


@functools.cache
def metadata_of(model: str) -> dict[str, Any]:
    """GGUF keys to plain values. Shared: copy before changing."""
    path = HERE / f"{model}.gguf"
    if not path.exists():
        return _stored()[model]
    from conformance.extract_vocabularies import read_metadata

    return read_metadata(path)


def byte_level_metadata(*control: str, user_defined: tuple[str, ...] = ()) -> dict[str, Any]:
    """A byte-level BPE vocabulary of the 256 bytes, a few merges and the given special tokens."""
    from expertree.text.bpe import byte_alphabet

    merges = ["h e", "l l", "\u0120 t", "he l", "i m", "e n", "en d", "i n"]
    tokens = byte_alphabet() + [merge.replace(" ", "") for merge in merges]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*tokens, *control, *user_defined],
        "tokenizer.ggml.token_type": [1] * len(tokens) + [3] * len(control) + [4] * len(user_defined),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens),
    }


def sentencepiece_metadata(pieces: dict[str, float], *, with_bytes: bool = True, **keys: Any) -> dict[str, Any]:
    """A SentencePiece vocabulary: `<unk>`, `<s>`, `</s>`, byte tokens, then `pieces` with their scores."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256) if with_bytes]
    n_bytes = len(tokens) - 3
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*tokens, *pieces],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * n_bytes + [1] * len(pieces),
        "tokenizer.ggml.scores": [0.0] * len(tokens) + list(pieces.values()),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    } | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
