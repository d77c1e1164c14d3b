"""Writes a MoE model with random weights in the shape of a real one, for measuring speed.

    python tools/make_synthetic_moe.py A out.gguf             # Qwen3-30B-A3B's layers, 6 of them, 2.65 GB
    python tools/make_synthetic_moe.py B out.gguf             # all 48 layers, 18.55 GB
    python tools/make_synthetic_moe.py A out.gguf --layers 2 --format Q8_0 --experts 32
    python tools/make_synthetic_moe.py B out.gguf --routing token

Formats follow llama.cpp's Q4_K_M mix unless --format names one for all matrices. Rows are drawn from a pool of ready
quantised rows, so a large file takes seconds of work and little memory: tensors are written one by one.

--routing context, the default: all matrices give rows of size 1, so what layers add soon outweighs the token's own
embedding; attention averages over the context, neighbouring tokens route more alike the deeper the layer, and experts
are reused. --routing token: embeddings have elements of size 1 and what layers add shrinks by sqrt(2 * layers), as
trained models are initialised; each token routes by itself, almost evenly over the experts: the worst case for reuse.
"""

from __future__ import annotations

import argparse
import functools
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from expertree._core import _testing


@dataclass(frozen=True)
class Shape:
    n_layers: int
    n_embd: int = 2048
    n_heads: int = 32
    n_kv_heads: int = 4
    head_dim: int = 128
    n_experts: int = 128
    n_used: int = 8
    n_ff: int = 768
    n_vocab: int = 151936


SHAPES = {"A": Shape(n_layers=6), "B": Shape(n_layers=48)}
POOL_ROWS = 256


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]  # fastest dimension last
    form: str


def takes_more_bits(layer: int, n_layers: int) -> bool:
    """Layers whose attn_v and ffn_down the Q4_K_M mix stores in Q6_K."""
    return layer < n_layers // 8 or layer >= 7 * n_layers // 8 or (layer - n_layers // 8) % 3 == 2


def tensors_of(s: Shape, form: str | None) -> list[Tensor]:
    """Every tensor in file order."""

    def mix(name: str) -> str:
        return form or name

    tensors = [
        Tensor("token_embd.weight", (s.n_vocab, s.n_embd), mix("Q4_K")),
        Tensor("output_norm.weight", (s.n_embd,), "F32"),
        Tensor("output.weight", (s.n_vocab, s.n_embd), mix("Q6_K")),
    ]
    for i in range(s.n_layers):
        b, better = f"blk.{i}.", "Q6_K" if takes_more_bits(i, s.n_layers) else "Q4_K"
        tensors += [
            Tensor(b + "attn_norm.weight", (s.n_embd,), "F32"),
            Tensor(b + "attn_q.weight", (s.n_heads * s.head_dim, s.n_embd), mix("Q4_K")),
            Tensor(b + "attn_k.weight", (s.n_kv_heads * s.head_dim, s.n_embd), mix("Q4_K")),
            Tensor(b + "attn_v.weight", (s.n_kv_heads * s.head_dim, s.n_embd), mix(better)),
            Tensor(b + "attn_q_norm.weight", (s.head_dim,), "F32"),
            Tensor(b + "attn_k_norm.weight", (s.head_dim,), "F32"),
            Tensor(b + "attn_output.weight", (s.n_embd, s.n_heads * s.head_dim), mix("Q4_K")),
            Tensor(b + "ffn_norm.weight", (s.n_embd,), "F32"),
            Tensor(b + "ffn_gate_inp.weight", (s.n_experts, s.n_embd), "F32"),
            Tensor(b + "ffn_gate_exps.weight", (s.n_experts, s.n_ff, s.n_embd), mix("Q4_K")),
            Tensor(b + "ffn_up_exps.weight", (s.n_experts, s.n_ff, s.n_embd), mix("Q4_K")),
            Tensor(b + "ffn_down_exps.weight", (s.n_experts, s.n_embd, s.n_ff), mix(better)),
        ]
    return tensors


@functools.cache
def row_pool(form: str, k: int, scale: float) -> npt.NDArray[np.uint8]:
    """POOL_ROWS random rows of k elements with standard deviation scale / sqrt(k), uint8 (rows, row bytes)."""
    rows = scale * np.random.default_rng(k).standard_normal((POOL_ROWS, k)) / np.sqrt(k)
    return np.asarray(_testing.quantize(form, rows.astype(np.float32)), np.uint8)


def scale_of(name: str, shape: Shape, routing: str) -> float:
    """Of a matrix's elements, against 1 / sqrt(row length)."""
    if routing == "token" and name == "token_embd.weight":
        return float(np.sqrt(shape.n_embd))
    if routing == "token" and ("attn_output" in name or "ffn_down" in name):
        return float(1 / np.sqrt(2 * shape.n_layers))
    return 1.0


def contents(tensor: Tensor, scale: float, rng: np.random.Generator) -> npt.NDArray[np.generic]:
    """The tensor's values: norms near 1, routers normal, everything else drawn from the pool."""
    if len(tensor.shape) == 1:
        return (1 + 0.05 * rng.standard_normal(tensor.shape)).astype(np.float32)
    if tensor.form == "F32":
        return (rng.standard_normal(tensor.shape) / np.sqrt(tensor.shape[-1])).astype(np.float32)
    n_rows = int(np.prod(tensor.shape[:-1]))
    return row_pool(tensor.form, tensor.shape[-1], scale)[rng.integers(0, POOL_ROWS, n_rows)]


def write(shape: Shape, form: str | None, routing: str, path: Path, seed: int) -> None:
    """Writes the model, one tensor in memory at a time."""
    arch = "qwen3moe"
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("synthetic MoE, random weights")
    for key, value in {
        "block_count": shape.n_layers,
        "context_length": 40960,
        "embedding_length": shape.n_embd,
        "feed_forward_length": shape.n_ff * shape.n_used,
        "attention.head_count": shape.n_heads,
        "attention.head_count_kv": shape.n_kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "expert_count": shape.n_experts,
        "expert_used_count": shape.n_used,
        "expert_feed_forward_length": shape.n_ff,
        "vocab_size": shape.n_vocab,
    }.items():
        writer.add_uint32(f"{arch}.{key}", value)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32(f"{arch}.rope.freq_base", 1e6)
    writer.add_tokenizer_model("no_vocab")  # ids only; what llama.cpp calls a model without a vocabulary
    tensors = tensors_of(shape, form)
    for tensor in tensors:
        kind = gguf.GGMLQuantizationType[tensor.form]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        n_bytes = int(np.prod(tensor.shape)) // block * size
        row = tensor.shape[-1] // block * size
        if tensor.form == "F32":
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), n_bytes)
        else:
            shape_bytes = (*tensor.shape[:-1], row)
            writer.add_tensor_info(tensor.name, shape_bytes, np.dtype(np.uint8), n_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(seed)
    for tensor in tensors:
        writer.write_tensor_data(contents(tensor, scale_of(tensor.name, shape, routing), rng))
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path", type=Path)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--experts", type=int)
    parser.add_argument("--used", type=int)
    parser.add_argument("--vocab", type=int)
    parser.add_argument("--format", help="one format for every matrix instead of the Q4_K_M mix")
    parser.add_argument("--routing", choices=("context", "token"), default="context")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    fields = {"n_layers": args.layers, "n_experts": args.experts, "n_used": args.used, "n_vocab": args.vocab}
    shape = replace(SHAPES[args.shape], **{name: value for name, value in fields.items() if value is not None})
    write(shape, args.format, args.routing, args.path, args.seed)
    print(f"{args.path}: {args.path.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
