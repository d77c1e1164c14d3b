"""Tiny random models, written by the tests themselves: any architecture, any format, valid or broken on purpose."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from expertree._core import _testing
from tiny_hybrid import DELTA_NET, SHORT_CONV, DeltaSizes, hybrid_keys, is_recurrent, mixer_tensors, nextn_tensors

ARCHITECTURES = ("llama", "mixtral", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "olmoe", *DELTA_NET, *SHORT_CONV)
MOE_ARCHITECTURES = ("mixtral", "qwen2moe", "qwen3moe", "olmoe", "qwen35moe", "qwen3next", "lfm2moe")
RECURRENT_ARCHITECTURES = (*DELTA_NET, *SHORT_CONV)
NEXTN_ARCHITECTURES = DELTA_NET  # that may carry an MTP block
RENORMALISED = ("mixtral", "qwen3moe", "qwen35moe", "qwen3next", "lfm2moe")  # chosen weights, whatever a key says
GATED_EXPERTS = ("qwen2moe", "qwen35moe", "qwen3next")  # beside a shared one behind a sigmoid
FORMATS = [str(row["name"]) for row in _testing.dtype_table()]
BLOCK_SIZES = {str(row["name"]): int(row["block_size"]) for row in _testing.dtype_table()}
WIDE_FORMATS = frozenset(name for name, size in BLOCK_SIZES.items() if size == 256)


@functools.cache
def row_pool(form: str, k: int) -> np.ndarray:
    """128 random rows of k elements in a format, uint8 (128, row bytes)."""
    rows = np.random.default_rng(k).standard_normal((128, k)) / np.sqrt(k)
    return np.asarray(_testing.quantize(form, rows.astype(np.float32)))


def add_metadata(writer: gguf.GGUFWriter, values: dict[str, Any]) -> None:
    """Each in the type that files have for it: numbers are uint32 or float32."""
    for key, value in values.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@dataclass
class TinyModel:
    """What to write. Widths suit blocks of 32; K-quants take n_embd and the feed-forward widths as multiples of 256."""

    arch: str = "qwen3moe"
    format: str = "F32"  # of every matrix but the router
    formats: dict[str, str] = field(default_factory=dict)  # by tensor name ending, for mixes
    n_layers: int = 2
    n_embd: int = 64
    n_heads: int = 4
    n_kv_heads: int = 2
    n_vocab: int = 96
    n_experts: int = 8
    n_used: int = 2
    n_ff: int = 64
    n_ctx: int = 512
    delta: DeltaSizes = field(default_factory=DeltaSizes)
    n_nextn: int = 0  # blocks behind the last layer that predict a further token
    seed: int = 0
    per_expert_tensors: bool = False  # the form of old Mixtral files
    keys: dict[str, Any] = field(default_factory=dict)  # added last; None removes a key
    tensors: dict[str, np.ndarray | None] = field(default_factory=dict)  # replaced or removed tensors

    def __post_init__(self) -> None:
        if WIDE_FORMATS & {self.format, *self.formats.values()}:
            self.n_embd, self.n_ff = 256, 256

    @property
    def gguf_arch(self) -> str:
        return "llama" if self.arch == "mixtral" else self.arch

    @property
    def is_moe(self) -> bool:
        return self.arch in MOE_ARCHITECTURES

    def has_experts(self, layer: int) -> bool:
        """lfm2moe begins with a dense layer."""
        return self.is_moe and not (self.arch in SHORT_CONV and layer == 0)

    @property
    def head_dim(self) -> int:
        # Qwen3's heads are not width / heads.
        return 24 if self.arch in ("qwen3", "qwen3moe", *DELTA_NET) else self.n_embd // self.n_heads

    def metadata(self) -> dict[str, Any]:
        """Keys with Python values; the writer picks uint32 for int and float32 for float."""
        a = self.gguf_arch
        keys: dict[str, Any] = {
            f"{a}.block_count": self.n_layers + self.n_nextn,
            f"{a}.context_length": self.n_ctx,
            f"{a}.embedding_length": self.n_embd,
            f"{a}.feed_forward_length": self.n_ff,
            f"{a}.attention.head_count": self.n_heads,
            f"{a}.attention.head_count_kv": self.n_kv_heads,
            f"{a}.attention.layer_norm_rms_epsilon": 1e-5,
            f"{a}.rope.freq_base": 10000.0,
        }
        if self.head_dim != self.n_embd // self.n_heads:
            keys[f"{a}.attention.key_length"] = self.head_dim
            keys[f"{a}.attention.value_length"] = self.head_dim
        if self.is_moe:
            keys[f"{a}.expert_count"] = self.n_experts
            keys[f"{a}.expert_used_count"] = self.n_used
        if self.arch in ("qwen3moe", *GATED_EXPERTS):
            keys[f"{a}.expert_feed_forward_length"] = self.n_ff
        if self.arch in GATED_EXPERTS:
            keys[f"{a}.expert_shared_feed_forward_length"] = self.n_ff
        if self.n_nextn:
            keys[f"{a}.nextn_predict_layers"] = self.n_nextn
        keys.update(hybrid_keys(self))
        keys.update(self.keys)
        return {k: v for k, v in keys.items() if v is not None}

    def float_tensors(self) -> dict[str, np.ndarray]:
        """All tensors as float32, shape with the fastest dimension last."""
        rng = np.random.default_rng(self.seed)
        d, hd = self.n_embd, self.head_dim
        tensors: dict[str, np.ndarray] = {}

        def matrix(name: str, *shape: int) -> None:
            tensors[name + ".weight"] = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

        def norm(name: str, n: int) -> None:
            tensors[name + ".weight"] = (1 + 0.1 * rng.standard_normal(n)).astype(np.float32)

        def bias(name: str, n: int) -> None:
            tensors[name + ".bias"] = (0.1 * rng.standard_normal(n)).astype(np.float32)

        tensors["token_embd.weight"] = rng.standard_normal((self.n_vocab, d)).astype(np.float32)
        norm("token_embd_norm" if self.arch in SHORT_CONV else "output_norm", d)
        matrix("output", self.n_vocab, d)
        for i in range(self.n_layers + self.n_nextn):
            b = f"blk.{i}."
            if i >= self.n_layers:
                tensors.update(nextn_tensors(self, b, rng))
            norm(b + "attn_norm", d)
            norm(b + ("post_attention_norm" if self.arch in DELTA_NET else "ffn_norm"), d)
            if is_recurrent(self, i):
                tensors.update(mixer_tensors(self, b, rng))
            else:
                matrix(b + "attn_q", self.n_heads * hd * (2 if self.arch in DELTA_NET else 1), d)
                matrix(b + "attn_k", self.n_kv_heads * hd, d)
                matrix(b + "attn_v", self.n_kv_heads * hd, d)
                matrix(b + "attn_output", d, self.n_heads * hd)
            if self.arch in ("qwen2", "qwen2moe"):
                bias(b + "attn_q", self.n_heads * hd)
                bias(b + "attn_k", self.n_kv_heads * hd)
                bias(b + "attn_v", self.n_kv_heads * hd)
            if self.arch in ("qwen3", "qwen3moe", *DELTA_NET, *SHORT_CONV) and not is_recurrent(self, i):
                norm(b + "attn_q_norm", hd)
                norm(b + "attn_k_norm", hd)
            if self.arch == "olmoe":
                norm(b + "attn_q_norm", self.n_heads * hd)
                norm(b + "attn_k_norm", self.n_kv_heads * hd)
            if not self.has_experts(i):
                for part, rows, k in (("gate", self.n_ff, d), ("up", self.n_ff, d), ("down", d, self.n_ff)):
                    matrix(f"{b}ffn_{part}", rows, k)
                continue
            if self.arch in SHORT_CONV:
                bias(b + "exp_probs_b", self.n_experts)
            tensors[b + "ffn_gate_inp.weight"] = rng.standard_normal((self.n_experts, d)).astype(np.float32)
            for part, rows, k in (("gate", self.n_ff, d), ("up", self.n_ff, d), ("down", d, self.n_ff)):
                matrix(f"{b}ffn_{part}_exps", self.n_experts, rows, k)
                if self.arch in GATED_EXPERTS:
                    matrix(f"{b}ffn_{part}_shexp", rows, k)
            if self.arch in GATED_EXPERTS:
                tensors[b + "ffn_gate_inp_shexp.weight"] = rng.standard_normal(d).astype(np.float32)
        if self.per_expert_tensors:
            for name in [n for n in tensors if "_exps." in n]:
                for e, values in enumerate(tensors.pop(name)):
                    tensors[name.replace("_exps.", f".{e}.")] = values
        return tensors

    def format_of(self, name: str, values: np.ndarray) -> str:
        """Norms, biases, convolutions and routers stay F32."""
        if values.ndim < 2 or "ffn_gate_inp" in name or "conv" in name:
            return "F32"
        named = [f for ending, f in self.formats.items() if name.endswith(ending)]
        wanted = named[0] if named else self.format
        if values.shape[-1] % 256 and wanted in WIDE_FORMATS:
            return "Q8_0"
        return wanted if values.shape[-1] % BLOCK_SIZES[wanted] == 0 else "F32"

    def encode(self, name: str, values: np.ndarray, form: str) -> np.ndarray:
        """Rows in a block format. Quantising well takes long, so generated tensors draw ready rows from a pool."""
        n_rows, k = values.size // values.shape[-1], values.shape[-1]
        if name in self.tensors:
            raw = _testing.quantize(form, np.ascontiguousarray(values.reshape(n_rows, k), np.float32))
        else:
            pick = np.random.default_rng([self.seed, *name.encode()]).integers(0, 128, n_rows)
            raw = row_pool(form, k)[pick]
        return np.asarray(raw).reshape(*values.shape[:-1], -1)

    def write(self, path: Path) -> Path:
        """Writes the file and returns its path."""
        writer = gguf.GGUFWriter(path, self.gguf_arch)
        add_metadata(writer, self.metadata())
        tensors: dict[str, np.ndarray | None] = {**self.float_tensors(), **self.tensors}
        for name, values in tensors.items():
            if values is None:
                continue
            form = self.format_of(name, values)
            raw_type = gguf.GGMLQuantizationType[form]
            if form == "F32":
                writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
            else:
                writer.add_tensor(name, self.encode(name, values, form), raw_dtype=raw_type)
        finish(writer)
        return path
