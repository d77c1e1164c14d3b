"""Random models of plain transformers and of those with recurrent layers."""

from __future__ import annotations

import numpy as np
from variant_layers import (
    attention,
    base,
    default_width,
    dense,
    embedding,
    expert_keys,
    experts,
    leading,
    long_factors,
    with_nextn,
)
from variant_model import N_VOCAB, VariantModel


def draw_llama(m: VariantModel) -> None:
    s = base(m)
    embedding(m, s)
    moe = m.maybe()
    n = expert_keys(m)[0] if moe else 0
    if m.maybe(0.3):
        long_factors(m, s)
    elif m.maybe(0.4):
        m.tensors["rope_freqs.weight"] = m.rng.uniform(1, 8, s.head_dim[0] // 2).astype(np.float32)
    for i in range(s.n_layers):
        attention(m, s, i, qkv_bias=None, output_bias=None)
        m.norm(f"blk.{i}.ffn_norm", s.d)
        if moe:
            experts(m, s, i, n, s.n_ff[i], bias=False, scales=True)
        else:
            dense(m, s, i, biased=True)


def draw_qwen2(m: VariantModel) -> None:
    s = base(m, free_heads=False)
    embedding(m, s)
    if m.maybe(0.3):
        m.bias("output", N_VOCAB)
    for i in range(s.n_layers):
        attention(m, s, i)
        m.norm(f"blk.{i}.ffn_norm", s.d)
        dense(m, s, i)


def draw_qwen2moe(m: VariantModel) -> None:
    s = base(m, free_heads=False)
    embedding(m, s, tied=False)
    n, used = expert_keys(m)
    width, shared = default_width(m, s, used), s.n_ff[0]
    if m.maybe(0.6):
        m.keys["expert_shared_feed_forward_length"] = shared = m.width(16, 48)
    for i in range(s.n_layers):
        attention(m, s, i)
        m.norm(f"blk.{i}.ffn_norm", s.d)
        experts(m, s, i, n, width, bias=False)
        dense(m, s, i, "_shexp", shared)
        m.tensors[f"blk.{i}.ffn_gate_inp_shexp.weight"] = m.rng.standard_normal(s.d).astype(np.float32)


def draw_qwen3(m: VariantModel) -> None:
    s = base(m)
    embedding(m, s)
    for i in range(s.n_layers):
        attention(m, s, i, qk_norm="head")
        m.norm(f"blk.{i}.ffn_norm", s.d)
        dense(m, s, i)


def draw_qwen3moe(m: VariantModel) -> None:
    s = base(m)
    embedding(m, s)
    n, used = expert_keys(m)
    width = default_width(m, s, used)
    for i in range(s.n_layers):
        attention(m, s, i, qk_norm="head")
        m.norm(f"blk.{i}.ffn_norm", s.d)
        experts(m, s, i, n, width, bias=False, scales=True)


def draw_olmoe(m: VariantModel) -> None:
    s = base(m, free_heads=False, mha=True)
    embedding(m, s, tied=False)
    n, _ = expert_keys(m)
    for i in range(s.n_layers):
        attention(m, s, i, qk_norm="whole")
        m.norm(f"blk.{i}.ffn_norm", s.d)
        experts(m, s, i, n, s.n_ff[i], bias=False)


def draw_delta_net(m: VariantModel) -> None:
    s = base(m, n_layers=m.between(2, 6), rot="part")
    embedding(m, s)
    moe = m.arch != "qwen35"
    n, width, shared = 0, 0, s.n_ff[0]
    if moe:
        n, used = expert_keys(m)
        width = default_width(m, s, used)
        if m.maybe(0.6):
            m.keys["expert_shared_feed_forward_length"] = shared = m.width(16, 48)
    key_heads, group = m.pick(1, 2, 3, 4), m.pick(1, 2, 3)
    state, taps = m.pick(8, 16, 32), m.pick(2, 3, 4, 5)
    value_heads = key_heads * group
    m.keys |= {
        "ssm.conv_kernel": taps,
        "ssm.state_size": state,
        "ssm.group_count": key_heads,
        "ssm.time_step_rank": value_heads,
        "ssm.inner_size": value_heads * state,
    }
    if m.arch != "qwen3next":
        pairs = int(m.keys["rope.dimension_count"]) // 2
        first, second = m.between(0, pairs), m.between(0, pairs)
        low, high = min(first, second), max(first, second)
        m.keys["rope.dimension_sections"] = [low, high - low, pairs - high, 0]
    if m.maybe():
        recurrent = [m.maybe() for _ in range(s.n_layers)]
        recurrent[0], recurrent[-1] = True, False
        m.keys["attention.recurrent_layers"] = recurrent
    else:
        interval = m.pick(2, 3, 4)
        if interval != 4 or m.maybe() or s.n_layers < 4:
            m.keys["full_attention_interval"] = interval = min(interval, s.n_layers)
        recurrent = [(i + 1) % interval != 0 for i in range(s.n_layers)]
    values, channels = value_heads * state, (2 * key_heads + value_heads) * state
    old_form = m.arch == "qwen3next" and m.maybe(0.4)
    blocks = with_nextn(m, s)
    if blocks > s.n_layers and "attention.recurrent_layers" in m.keys:
        m.keys["attention.recurrent_layers"] = [*recurrent, False]
    for i in range(blocks):
        b = f"blk.{i}."
        if i == s.n_layers or not recurrent[i]:
            attention(m, s, i, qk_norm="head", gated=True, qkv_bias=None)
        else:
            m.norm(b + "attn_norm", s.d)
            if old_form:
                m.matrix(b + "ssm_in", channels + values, s.d)
            else:
                m.matrix(b + "attn_qkv", channels, s.d)
                m.matrix(b + "attn_gate", values, s.d)
            m.tensors[b + "ssm_conv1d.weight"] = (m.rng.standard_normal((channels, taps)) / 2).astype(np.float32)
            m.bias(b + "ssm_dt", value_heads)
            m.tensors[b + "ssm_a"] = -m.rng.uniform(0.05, 1.0, value_heads).astype(np.float32)
            if m.arch == "qwen3next":
                m.matrix(b + "ssm_ba", 2 * value_heads, s.d)
            else:
                m.matrix(b + "ssm_beta", value_heads, s.d)
                m.matrix(b + "ssm_alpha", value_heads, s.d)
            m.norm(b + "ssm_norm", state)
            m.matrix(b + "ssm_out", s.d, values)
            if m.arch != "qwen3next" and m.maybe(0.2):
                for name in ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_out"):
                    m.tensors[f"{b}{name}.scale"] = m.rng.uniform(0.5, 1.5, 1).astype(np.float32)
        m.norm(b + "post_attention_norm", s.d)
        if moe:
            experts(m, s, i, n, width, bias=False, merged=None)
            dense(m, s, i, "_shexp", shared)
            m.tensors[b + "ffn_gate_inp_shexp.weight"] = m.rng.standard_normal(s.d).astype(np.float32)
        else:
            dense(m, s, i)


def draw_lfm2moe(m: VariantModel) -> None:
    s = base(m, free_heads=False, n_layers=m.between(2, 6))
    embedding(m, s, norm="token_embd_norm")
    kv = s.kv_heads[0]
    flags = [m.maybe() for _ in range(s.n_layers)]
    flags[0], flags[-1] = m.pick((True, False), (False, True))
    m.keys["attention.head_count_kv"] = [kv if flag else 0 for flag in flags]
    taps = m.pick(2, 3, 4)
    m.keys["shortconv.l_cache"] = taps
    n, _ = expert_keys(m, groups=False)
    lead = leading(m, s)
    m.keys |= {"expert_feed_forward_length": m.expert_width, "expert_gating_func": m.pick(1, 2)}
    for i in range(s.n_layers):
        b = f"blk.{i}."
        if flags[i]:
            attention(m, s, i, qk_norm="head", qkv_bias=False)
        else:
            m.norm(b + "attn_norm", s.d)
            m.tensors[b + "shortconv.conv.weight"] = m.rng.standard_normal((s.d, taps)).astype(np.float32)
            m.matrix(b + "shortconv.in_proj", 3 * s.d, s.d)
            m.matrix(b + "shortconv.out_proj", s.d, s.d)
        m.norm(b + "ffn_norm", s.d)
        if i < lead:
            dense(m, s, i)
        else:
            experts(m, s, i, n, m.expert_width, bias=True)


def draw_granitemoe(m: VariantModel) -> None:
    s = base(m)
    m.keys["logit_scale"] = m.pick(1.0, 4.0, 0.5)
    for key, value in (("residual_scale", 0.4), ("embedding_scale", 5.0), ("attention.scale", 0.1)):
        if m.maybe(0.6):
            m.keys[key] = m.pick(value, value, 0.0)
    embedding(m, s)
    moe = m.maybe(0.8)
    n = expert_keys(m)[0] if moe else 0
    shared = m.pick(0, m.width(24, 40)) if moe else 0
    if shared or m.maybe(0.3):
        m.keys["expert_shared_feed_forward_length"] = shared
    if m.maybe(0.3):
        long_factors(m, s)
    elif m.maybe(0.3):
        m.tensors["rope_freqs.weight"] = m.rng.uniform(1, 8, s.head_dim[0] // 2).astype(np.float32)
    for i in range(s.n_layers):
        attention(m, s, i, output_bias=None)
        m.norm(f"blk.{i}.ffn_norm", s.d)
        if not moe:
            dense(m, s, i, biased=True)
            continue
        experts(m, s, i, n, s.n_ff[i], bias=False)
        if shared:
            dense(m, s, i, "_shexp", shared)


def draw_phimoe(m: VariantModel) -> None:
    s = base(m, free_heads=False)
    embedding(m, s, tied=False)
    m.bias("output_norm", s.d)
    m.bias("output", N_VOCAB)
    n, _ = expert_keys(m)
    if m.maybe(0.7):
        kind = m.keys.get("rope.scaling.type")
        long_factors(m, s)
        if m.maybe():
            m.keys.pop("rope.scaling.type")
            if kind is not None:
                m.keys["rope.scaling.type"] = kind
    for i in range(s.n_layers):
        attention(m, s, i, output_bias=True)
        m.bias(f"blk.{i}.attn_norm", s.d)
        m.norm(f"blk.{i}.ffn_norm", s.d)
        m.bias(f"blk.{i}.ffn_norm", s.d)
        experts(m, s, i, n, s.n_ff[i], bias=False)
