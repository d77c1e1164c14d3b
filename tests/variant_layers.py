"""Parts of random models that architectures share, with the options that files have for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from variant_model import N_VOCAB, VariantModel


@dataclass
class Shape:
    """What the layers of a model share."""

    n_layers: int
    d: int
    heads: list[int]
    kv_heads: list[int]
    head_dim: list[int]
    value_dim: list[int]
    n_ff: list[int]


def base(
    m: VariantModel, *, free_heads: bool = True, mha: bool = False, n_layers: int | None = None, rot: str = "full"
) -> Shape:
    """Sizes, norm epsilon, rotary embedding. free_heads: width and heads do not depend on each other."""
    layers = n_layers or m.between(1, 5)
    heads = m.pick(1, 2, 3, 4, 6, 8)
    kv = heads if mha else m.pick(*[n for n in range(1, heads + 1) if heads % n == 0])
    head_dim = 256 // heads if m.wide and 256 % heads == 0 else m.pick(8, 12, 16, 20, 32, 48, 64)
    d = heads * head_dim
    if free_heads and m.maybe(0.7):
        d = m.width(32, 48, 64, 96, 100)
    n_ff = m.width(24, 32, 56, 80)
    m.keys |= {
        "block_count": layers,
        "context_length": m.pick(256, 512, 4096),
        "embedding_length": d,
        "feed_forward_length": n_ff,
        "attention.head_count": heads,
        "vocab_size": N_VOCAB,
        "attention.layer_norm_rms_epsilon": m.pick(1e-6, 1e-5, 1e-3),
    }
    if kv != heads or m.maybe():
        m.keys["attention.head_count_kv"] = kv
    if free_heads and (d != heads * head_dim or m.maybe()):
        m.keys["attention.key_length"] = m.keys["attention.value_length"] = head_dim
    rope(m, head_dim, rot)
    return Shape(layers, d, [heads] * layers, [kv] * layers, [head_dim] * layers, [head_dim] * layers, [n_ff] * layers)


def rope(m: VariantModel, head_dim: int, rot: str) -> None:
    if m.maybe(0.8):
        m.keys["rope.freq_base"] = m.pick(500.0, 10000.0, 1e6)
    if rot == "part":
        m.keys["rope.dimension_count"] = m.pick(*[n for n in range(4, head_dim + 1, 4)])
    elif m.maybe():
        m.keys["rope.dimension_count"] = head_dim
    kind = m.pick(None, "none", "linear", "factor", "yarn", "yarn")
    if kind is None:
        return
    if kind == "factor":
        m.keys[m.pick("rope.scaling.factor", "rope.scale_linear")] = m.pick(2.0, 8.0)
        return
    m.keys["rope.scaling.type"] = kind
    m.keys["rope.scaling.factor"] = m.pick(1.0, 2.5, 16.0)
    if kind == "yarn" and m.maybe(0.8):
        m.keys["rope.scaling.original_context_length"] = m.pick(16, 64, 1024)
    if m.maybe(0.3):
        m.keys["rope.scaling.attn_factor"] = m.pick(0.8, 1.25)


def embedding(m: VariantModel, s: Shape, *, tied: bool = True, norm: str = "output_norm", gain: float = 1.0) -> None:
    m.tensors["token_embd.weight"] = m.rng.standard_normal((N_VOCAB, s.d)).astype(np.float32) * np.float32(gain)
    m.norm(norm, s.d)
    if not tied or m.maybe(0.6):
        m.matrix("output", N_VOCAB, s.d, gain=3.0)


def attention(
    m: VariantModel,
    s: Shape,
    i: int,
    *,
    qk_norm: str = "",
    qkv_bias: bool | None = None,
    output_bias: bool | None = False,
    fused: bool | None = None,
    gated: bool = False,
    values: bool = True,
    scales: bool = True,
    qk_norm_optional: bool = False,
) -> None:
    """None: as the seed decides, the same in all layers."""
    b = f"blk.{i}."
    choice = m.choice(1)
    chances = (0.5, 0.3, 0.5, 0.7, 0.5, 0.2)
    biased, packed, out, normed, apart, scaled = (bool(x) for x in choice.random_sample(6) < chances)
    q = s.heads[i] * s.head_dim[i] * (2 if gated else 1)
    k, v = s.kv_heads[i] * s.head_dim[i], s.kv_heads[i] * s.value_dim[i]
    m.norm(b + "attn_norm", s.d)
    if packed if fused is None else fused:
        m.matrix(b + "attn_qkv", q + k + v, s.d)
        if scaled and scales:
            m.tensors[b + "attn_qkv.scale"] = m.rng.uniform(0.5, 1.5, 1).astype(np.float32)
        if (biased if qkv_bias is None else qkv_bias) and not apart:
            m.bias(b + "attn_qkv", q + k + v)
    else:
        apart = True
    for name, rows in (("attn_q", q), ("attn_k", k), ("attn_v", v)):
        if name == "attn_v" and not values:
            continue
        if b + "attn_qkv.weight" not in m.tensors:
            m.matrix(b + name, rows, s.d)
            if scaled and scales:
                m.tensors[f"{b}{name}.scale"] = m.rng.uniform(0.5, 1.5, 1).astype(np.float32)
        if (biased if qkv_bias is None else qkv_bias) and apart:
            m.bias(b + name, rows)
    m.matrix(b + "attn_output", s.d, s.heads[i] * s.value_dim[i])
    if out if output_bias is None else output_bias:
        m.bias(b + "attn_output", s.d)
    if qk_norm and (normed or not qk_norm_optional):
        m.norm(b + "attn_q_norm", s.head_dim[i] if qk_norm == "head" else q)
        m.norm(b + "attn_k_norm", s.head_dim[i] if qk_norm == "head" else k)


def dense(
    m: VariantModel, s: Shape, i: int, suffix: str = "", n_ff: int | None = None, *, biased: bool = False
) -> None:
    width = n_ff or s.n_ff[i]
    if biased and m.choice(3).random_sample() < 0.5:
        for name, rows in (("gate", width), ("up", width), ("down", s.d)):
            m.bias(f"blk.{i}.ffn_{name}", rows)
    m.matrix(f"blk.{i}.ffn_gate{suffix}", width, s.d)
    m.matrix(f"blk.{i}.ffn_up{suffix}", width, s.d)
    m.matrix(f"blk.{i}.ffn_down{suffix}", s.d, width)


def expert_keys(m: VariantModel, *, groups: bool = True, most_used: int | None = None) -> tuple[int, int]:
    """Experts, and how many are used."""
    n = m.pick(2, 4, 6, 8, 12, 16, 24)
    used = m.between(1, min(n, most_used or n))
    m.keys |= {"expert_count": n, "expert_used_count": used}
    options = [g for g in range(2, n // 2 + 1) if n % g == 0]
    if groups and options and m.maybe(0.4):
        count = m.pick(*options)
        fitting = [u for u in range(1, count) if u * (n // count) >= used]
        if fitting:
            m.keys |= {"expert_group_count": count, "expert_group_used_count": m.pick(*fitting)}
    return n, used


def routing_keys(m: VariantModel, functions: tuple[int | None, ...] = (1, 2, 3)) -> None:
    kind = m.pick(*functions)
    if kind is not None:
        m.keys["expert_gating_func"] = kind
    if m.maybe(0.7):
        m.keys["expert_weights_norm"] = m.maybe()
    if m.maybe(0.6):
        m.keys["expert_weights_scale"] = m.pick(0.0, 1.0, 2.5)


def experts(
    m: VariantModel,
    s: Shape,
    i: int,
    n: int,
    width: int,
    *,
    bias: bool | None = None,
    merged: bool | None = False,
    scales: bool = False,
) -> None:
    """bias: of the selection; merged: gate and up in one tensor. None: as the seed decides."""
    b = f"blk.{i}."
    choice = m.choice(2)
    has_bias, has_merged, has_scales = (bool(x) for x in choice.random_sample(3) < 0.5)
    m.matrix(b + "ffn_gate_inp", n, s.d, gain=2.0)
    if has_merged if merged is None else merged:
        m.matrix(b + "ffn_gate_up_exps", 2 * width, s.d, n)
    else:
        m.matrix(b + "ffn_gate_exps", width, s.d, n)
        m.matrix(b + "ffn_up_exps", width, s.d, n)
        if scales and has_scales:
            m.tensors[b + "ffn_gate_exps.scale"] = m.rng.uniform(0.5, 1.5, n).astype(np.float32)
            m.tensors[b + "ffn_up_exps.scale"] = m.rng.uniform(0.5, 1.5, n).astype(np.float32)
    m.matrix(b + "ffn_down_exps", s.d, width, n)
    if scales and has_scales:
        m.tensors[b + "ffn_down_exps.scale"] = m.rng.uniform(0.5, 1.5, n).astype(np.float32)
    if has_bias if bias is None else bias:
        m.bias(b + "exp_probs_b", n, size=0.2)


def windows(m: VariantModel, s: Shape, *, must_list: bool = False) -> list[bool]:
    """sliding_window_pattern as flags, which are returned; or as a period, or its default: none are."""
    if not must_list and m.maybe():
        if m.maybe():
            m.keys["attention.sliding_window_pattern"] = m.pick(0, 2, 3)
        return []
    flags = [m.maybe() for _ in range(s.n_layers)]
    flags[0] = flags[0] or not any(flags)  # a window somewhere
    m.keys["attention.sliding_window_pattern"] = flags
    return flags


def long_factors(m: VariantModel, s: Shape) -> None:
    m.keys["rope.scaling.type"] = "longrope"
    m.keys["rope.scaling.original_context_length"] = m.pick(64, 300)
    m.tensors["rope_factors_long.weight"] = m.rng.uniform(1, 8, s.head_dim[0] // 2).astype(np.float32)
    m.tensors["rope_factors_short.weight"] = m.rng.uniform(1, 2, s.head_dim[0] // 2).astype(np.float32)


def leading(m: VariantModel, s: Shape) -> int:
    """leading_dense_block_count."""
    lead = m.between(0, s.n_layers)
    if lead or m.maybe():
        m.keys["leading_dense_block_count"] = lead
    return lead


def default_width(m: VariantModel, s: Shape, used: int) -> int:
    """expert_feed_forward_length, or its default."""
    if m.maybe(0.6):
        m.keys["expert_feed_forward_length"] = width = m.width(8, 24, 40)
        return width
    return max(1, s.n_ff[0] // used)


def with_nextn(m: VariantModel, s: Shape) -> int:
    """Blocks in all: with a chance one more behind the last layer, which predicts a further token."""
    if not m.nextn:
        return s.n_layers
    b = f"blk.{s.n_layers}.nextn."
    m.keys |= {"block_count": s.n_layers + 1, "nextn_predict_layers": 1}
    for sizes in (s.heads, s.kv_heads, s.head_dim, s.value_dim, s.n_ff):
        sizes.append(sizes[0])
    m.norm(b + "enorm", s.d)
    m.norm(b + "hnorm", s.d)
    m.matrix(b + "eh_proj", s.d, 2 * s.d)
    if m.maybe(0.7):
        m.norm(b + "shared_head_norm", s.d)
    if m.maybe(0.4):
        m.matrix(b + "shared_head_head", N_VOCAB, s.d, gain=3.0)
    if m.maybe(0.4):
        m.matrix(b + "embed_tokens", N_VOCAB, s.d, gain=float(np.sqrt(s.d)))
    return s.n_layers + 1
