"""A random model of any architecture: keys and tensors, and the choices that a seed makes."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from expertree._core import _testing
from tiny_model import BLOCK_SIZES, add_metadata, finish, row_pool

N_VOCAB = 64
NARROW = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "NVFP4")
WIDE = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
WIDE += ("IQ4_XS", "TQ1_0", "TQ2_0")


@dataclass
class VariantModel:
    """Keys without the architecture's prefix; tensors float32, fastest dimension last."""

    arch: str
    seed: int
    keys: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    n_ctx: int = 256  # to run with
    nextn: bool = False  # with a block behind the last layer that predicts a further token
    formats: dict[str, str] = field(default_factory=dict)  # by tensor; others are F32
    wide: bool = False  # sizes are multiples of 32 or 256, for block formats

    def __post_init__(self) -> None:
        self.rng = self.choice(0)
        self.expert_width = self.width(16, 24, 40)  # of most families

    def choice(self, tag: int) -> np.random.RandomState:
        """Choices of their own, the same each time. The legacy generator's numbers never change."""
        return np.random.RandomState([zlib.crc32(self.arch.encode()), self.seed, tag])

    def pick(self, *options: Any) -> Any:
        return options[self.rng.randint(len(options))]

    def maybe(self, chance: float = 0.5) -> bool:
        return bool(self.rng.random_sample() < chance)

    def between(self, low: int, high: int) -> int:
        return int(self.rng.randint(low, high + 1))

    def width(self, *options: int) -> int:
        return int(self.pick(*((32, 64, 256) if self.wide else options)))

    # Tensors.
    def matrix(self, name: str, rows: int, columns: int, *stack: int, gain: float = 1.0) -> None:
        shape = (*stack, rows, columns)
        self.tensors[name + ".weight"] = self.rng.standard_normal(shape).astype(np.float32) * np.float32(
            gain / np.sqrt(columns)
        )

    def norm(self, name: str, n: int) -> None:
        self.tensors[name + ".weight"] = (1 + 0.2 * self.rng.standard_normal(n)).astype(np.float32)

    def bias(self, name: str, *shape: int, size: float = 0.3, ending: str = ".bias") -> None:
        self.tensors[name + ending] = (size * self.rng.standard_normal(shape)).astype(np.float32)

    def written_keys(self) -> dict[str, Any]:
        """The keys; some seeds write what may differ by layer as lists."""
        by_layer = ("attention.head_count", "attention.head_count_kv", "feed_forward_length", "expert_used_count")
        choice = self.choice(5).random_sample(5) < 0.2
        keys = dict(self.keys)
        for listed, key in zip(choice, (*by_layer, "expert_feed_forward_length"), strict=True):
            if listed and isinstance(keys.get(key), int):
                keys[key] = [keys[key]] * keys["block_count"]
        return keys

    def draw_formats(self) -> None:
        """A format for most matrices; rows of 256 mostly get one of the formats that need them."""
        choice = self.choice(6)
        for name, values in self.tensors.items():
            if values.ndim < 2 or not name.endswith(".weight") or "conv" in name or choice.random_sample() < 0.1:
                continue
            wide = values.shape[-1] % 256 == 0 and choice.random_sample() < 0.6
            form = str(choice.choice(WIDE if wide else NARROW))
            if values.shape[-1] % BLOCK_SIZES[form] == 0:
                self.formats[name] = form

    def encoded(self, name: str) -> np.ndarray:
        """Random rows in the tensor's format, uint8, not its own: quantising those takes long. Up to 128 all differ."""
        n_rows, n_columns = self.tensors[name].size // self.tensors[name].shape[-1], self.tensors[name].shape[-1]
        pool = row_pool(self.formats[name], n_columns)
        choice = self.choice(zlib.crc32(name.encode()))
        return pool[
            choice.permutation(len(pool))[:n_rows] if n_rows <= len(pool) else choice.randint(0, len(pool), n_rows)
        ]

    def decoded(self, name: str) -> np.ndarray:
        """The tensor as its format holds it, float32."""
        if name not in self.formats:
            return self.tensors[name]
        raw = self.encoded(name)
        return np.asarray(_testing.dequantize(self.formats[name], raw)).reshape(self.tensors[name].shape)

    def write(self, path: Path, *, decode: bool = False) -> Path:
        """Writes the file and returns its path. decode: the same weights, all F32."""
        writer = gguf.GGUFWriter(path, self.arch)
        add_metadata(writer, {f"{self.arch}.{key}": value for key, value in self.written_keys().items()})
        writer.add_string("tokenizer.ggml.model", "none")
        for name, values in self.tensors.items():
            if decode or name not in self.formats:
                writer.add_tensor(name, np.ascontiguousarray(self.decoded(name) if decode else values, np.float32))
                continue
            raw_dtype = gguf.GGMLQuantizationType[self.formats[name]]
            writer.add_tensor(name, self.encoded(name).reshape(*values.shape[:-1], -1), raw_dtype=raw_dtype)
        finish(writer)
        return path
