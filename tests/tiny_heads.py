"""Tiny random draft heads for tiny models, written by the tests themselves, and what they compute, in numpy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from expertree._core import _testing
from numpy_model import rms_norm, silu, softmax
from tiny_model import add_metadata, finish

Tensors = dict[str, np.ndarray | None]


def write_gguf(path: Path, arch: str, keys: dict[str, Any], tensors: Tensors, form: str = "F32") -> Path:
    """Matrices of float32 in a block format; None leaves a key or tensor out."""
    writer = gguf.GGUFWriter(path, arch)
    add_metadata(writer, {key: value for key, value in keys.items() if value is not None})
    for name, values in tensors.items():
        if values is None:
            continue
        if values.ndim == 2 and values.dtype == np.float32 and form != "F32":
            raw = np.asarray(_testing.quantize(form, values)).reshape(len(values), -1)
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[form])
        else:
            writer.add_tensor(name, np.ascontiguousarray(values))
    finish(writer)
    return path


@dataclass
class TinyEagle:
    """An EAGLE-3 head for a TinyModel of width n_embd."""

    n_embd: int = 64
    n_target: int = 64
    n_layers: int = 4  # of the target
    n_vocab: int = 96
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16
    n_ff: int = 96
    taps: tuple[int, ...] = (1, 2, 3)
    ids: tuple[int, ...] | None = tuple(range(2, 80, 2)) + tuple(range(81, 96))  # draft vocabulary; None: all
    absolute: bool = False  # how d2t is written
    norm_before_fc: bool = True
    norm_before_residual: bool = False
    own_embedding: bool = False
    own_output: bool = True
    hidden_norm: bool = False  # the older name of attn_norm_2
    form: str = "F32"
    rope_base: float = 1000.0
    seed: int = 0
    keys: dict[str, Any] = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)

    def metadata(self) -> dict[str, Any]:
        return {
            "eagle3.block_count": 1,
            "eagle3.context_length": 512,
            "eagle3.embedding_length": self.n_embd,
            "eagle3.feed_forward_length": self.n_ff,
            "eagle3.attention.head_count": self.n_heads,
            "eagle3.attention.head_count_kv": self.n_kv_heads,
            "eagle3.attention.key_length": self.head_dim,
            "eagle3.attention.value_length": self.head_dim,
            "eagle3.attention.layer_norm_rms_epsilon": 1e-5,
            "eagle3.rope.freq_base": self.rope_base,
            "eagle3.target_layers": list(self.taps),
            "eagle3.target_hidden_size": self.n_target,
            "eagle3.norm_before_residual": self.norm_before_residual,
            "eagle3.norm_before_fc": self.norm_before_fc,
            **self.keys,
        }

    def float_tensors(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(self.seed)
        d, hd = self.n_embd, self.head_dim

        def matrix(rows: int, k: int, gain: float = 1.0) -> np.ndarray:
            return (gain * rng.standard_normal((rows, k)) / np.sqrt(k)).astype(np.float32)

        def norm(n: int) -> np.ndarray:
            return (1 + 0.2 * rng.standard_normal(n)).astype(np.float32)

        n_draft = self.n_vocab if self.ids is None else len(self.ids)
        b = "blk.0."
        tensors = {
            "enc.output_norm.weight": norm(len(self.taps) * self.n_target),
            "fc.weight": matrix(d, len(self.taps) * self.n_target),
            "output_norm.weight": norm(d),
            "output.weight": matrix(n_draft, d, 2.0),
            "token_embd.weight": matrix(self.n_vocab, d, 8.0),
            b + "attn_norm.weight": norm(d),
            b + "attn_norm_2.weight": norm(d),
            b + "ffn_norm.weight": norm(d),
            b + "attn_q.weight": matrix(self.n_heads * hd, 2 * d, 2.0),
            b + "attn_k.weight": matrix(self.n_kv_heads * hd, 2 * d, 2.0),
            b + "attn_v.weight": matrix(self.n_kv_heads * hd, 2 * d, 2.0),
            b + "attn_output.weight": matrix(d, self.n_heads * hd),
            b + "ffn_gate.weight": matrix(self.n_ff, d),
            b + "ffn_up.weight": matrix(self.n_ff, d),
            b + "ffn_down.weight": matrix(d, self.n_ff),
        }
        return tensors

    def written_tensors(self) -> Tensors:
        tensors: Tensors = dict(self.float_tensors())
        if not self.norm_before_fc:
            del tensors["enc.output_norm.weight"]
        if not self.own_embedding:
            del tensors["token_embd.weight"]
        if not self.own_output:
            del tensors["output.weight"]
        if self.hidden_norm:
            tensors["blk.0.hidden_norm.weight"] = tensors.pop("blk.0.attn_norm_2.weight")
        if self.ids is not None:
            ids = np.array(self.ids)
            tensors["d2t"] = (ids if self.absolute else ids - np.arange(len(ids))).astype(np.int64)
        return {**tensors, **self.tensors}

    def write(self, path: Path) -> Path:
        return write_gguf(path, "eagle3", self.metadata(), self.written_tensors(), self.form)


class NumpyEagle:
    """The head in float64, node by node: no cache, no batches. embedding, output: the target's matrices."""

    def __init__(self, spec: TinyEagle, embedding: np.ndarray, output: np.ndarray) -> None:
        self.spec = spec
        self.w = {name: values.astype(np.float64) for name, values in spec.float_tensors().items()}
        self.embedding = self.w["token_embd.weight"] if spec.own_embedding else embedding.astype(np.float64)
        self.output = self.w["output.weight"] if spec.own_output else output.astype(np.float64)
        self.ids = np.arange(spec.n_vocab) if spec.ids is None else np.array(spec.ids)

    def inputs(self, token: int, state: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [
                rms_norm(self.embedding[token], self.w["blk.0.attn_norm.weight"]),
                rms_norm(state, self.w["blk.0.attn_norm_2.weight"]),
            ]
        )

    def first_state(self, features: np.ndarray) -> np.ndarray:
        """features: (taps * n_target,)"""
        x = features.astype(np.float64)
        if self.spec.norm_before_fc:
            x = rms_norm(x, self.w["enc.output_norm.weight"])
        return x @ self.w["fc.weight"].T

    def turned(self, x: np.ndarray, position: int) -> np.ndarray:
        """Neighbouring pairs of each head."""
        half = self.spec.head_dim // 2
        turn = np.exp(1j * position * self.spec.rope_base ** (-np.arange(half) / half))
        pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)

    def projections(self, token: int, state: np.ndarray, position: int) -> tuple[np.ndarray, ...]:
        z = self.inputs(token, state)
        q, k, v = ((self.w[f"blk.0.attn_{p}.weight"] @ z).reshape(-1, self.spec.head_dim) for p in "qkv")
        return self.turned(q, position), self.turned(k, position), v

    def path_output(self, path: list[tuple[int, np.ndarray]]) -> np.ndarray:
        """Output of the last of (token, state) pairs, which all before it are seen by."""
        s = self.spec
        rows = [self.projections(token, state, i) for i, (token, state) in enumerate(path)]
        group = s.n_heads // s.n_kv_heads
        q = rows[-1][0]
        k, v = (np.repeat(np.stack([row[i] for row in rows]), group, 1) for i in (1, 2))
        p = softmax(np.einsum("hd,jhd->hj", q, k) / np.sqrt(s.head_dim))
        mixed = self.w["blk.0.attn_output.weight"] @ np.einsum("hj,jhd->hd", p, v).reshape(-1)
        token, state = path[-1]
        residual = self.inputs(token, state)[s.n_embd :] if s.norm_before_residual else state
        x = residual + mixed
        h = rms_norm(x, self.w["blk.0.ffn_norm.weight"])
        gate, up, down = (self.w[f"blk.0.ffn_{part}.weight"] for part in ("gate", "up", "down"))
        return x + down @ (silu(gate @ h) * (up @ h))

    def logits(self, output: np.ndarray) -> np.ndarray:
        return self.output @ rms_norm(output, self.w["output_norm.weight"])


@dataclass
class OracleNode:
    token: int
    parent: int  # index into the pool; -1: the root
    depth: int
    score: float


def eagle_tree(
    head: NumpyEagle, tokens: list[int], features: np.ndarray, root: int, limits: tuple[int, int, int]
) -> list[OracleNode]:
    """EAGLE-2 growth, spelled out. features: (len(tokens), taps * n_target). The kept nodes, best first."""
    max_nodes, max_depth, top_k = limits
    prefix = [(token, head.first_state(f)) for token, f in zip([*tokens[1:], root], features, strict=True)]
    pool: list[OracleNode] = []
    paths: dict[int, list[tuple[int, np.ndarray]]] = {-1: prefix}
    frontier = [-1]
    for depth in range(1, max_depth + 1):
        fresh = []
        for node in frontier:
            if node >= 0:
                parent = pool[node].parent
                state = head.path_output(paths[parent])
                paths[node] = [*paths[parent], (pool[node].token, state)]
            p = softmax(head.logits(head.path_output(paths[node])))
            for column in np.argsort(-p, kind="stable")[:top_k]:
                above = pool[node].score if node >= 0 else 1.0
                fresh.append(len(pool))
                pool.append(OracleNode(int(head.ids[column]), node, depth, above * p[column]))
        frontier = sorted(fresh, key=lambda i: -pool[i].score)[:top_k]
    order = sorted(range(len(pool)), key=lambda i: -pool[i].score)[:max_nodes]
    place = {node: i for i, node in enumerate(order)}
    return [OracleNode(pool[i].token, place.get(pool[i].parent, -1), pool[i].depth, pool[i].score) for i in order]


@dataclass
class TinyMedusa:
    n_embd: int = 64
    n_vocab: int = 96
    n_heads: int = 3
    ids: tuple[int, ...] | None = tuple(range(1, 90, 3))
    form: str = "F32"
    seed: int = 0
    keys: dict[str, Any] = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)

    def float_tensors(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(self.seed)
        tensors = {}
        for i in range(self.n_heads):
            weight = 2 * rng.standard_normal((self.n_embd, self.n_embd)) / np.sqrt(self.n_embd)
            tensors[f"head.{i}.weight"] = weight.astype(np.float32)
            tensors[f"head.{i}.bias"] = rng.standard_normal(self.n_embd).astype(np.float32)
        return tensors

    def write(self, path: Path) -> Path:
        keys = {"medusa.head_count": self.n_heads, "medusa.embedding_length": self.n_embd, **self.keys}
        tensors: Tensors = dict(self.float_tensors())
        if self.ids is not None:
            tensors["draft_ids"] = np.array(self.ids, np.int32)
        return write_gguf(path, "medusa", keys, {**tensors, **self.tensors}, self.form)


def write_predictor(path: Path, weight: np.ndarray, bias: np.ndarray, layers: int, experts: int, **keys: Any) -> Path:
    metadata = {
        "expert-predictor.moe_layer_count": layers,
        "expert-predictor.expert_count": experts,
        "expert-predictor.features": "eagle3",
        **{f"expert-predictor.{name}": value for name, value in keys.items()},
    }
    return write_gguf(path, "expert-predictor", metadata, {"predictor.weight": weight, "predictor.bias": bias})
