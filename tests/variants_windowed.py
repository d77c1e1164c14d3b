"""Random models of architectures with windows."""

from __future__ import annotations

import numpy as np
from variant_layers import attention, base, dense, embedding, expert_keys, experts, leading, routing_keys, windows
from variant_model import VariantModel


def draw_gpt_oss(m: VariantModel) -> None:
    s = base(m)
    embedding(m, s, tied=False)
    m.keys["attention.sliding_window"] = m.pick(3, 8, 20, 128)
    windows(m, s)
    if m.maybe(0.3):
        m.keys["rope.freq_base_swa"] = 2000.0
    n, _ = expert_keys(m)
    m.keys["expert_feed_forward_length"] = width = m.width(16, 40)
    for i in range(s.n_layers):
        b = f"blk.{i}."
        attention(m, s, i, output_bias=True)
        m.bias(b + "attn_sinks", s.heads[i], size=1.0, ending=".weight")
        m.norm(b + "post_attention_norm", s.d)
        experts(m, s, i, n, width, bias=False)
        m.bias(b + "ffn_gate_inp", n)
        m.bias(b + "ffn_gate_exps", n, width)
        m.bias(b + "ffn_up_exps", n, width)
        m.bias(b + "ffn_down_exps", n, s.d)


def draw_gemma3(m: VariantModel) -> None:
    s = base(m, n_layers=62 if m.maybe(0.1) else m.between(1, 8))
    embedding(m, s)
    if m.maybe(0.8):
        m.keys["attention.sliding_window"] = m.pick(0, 3, 9, 20)
        windows(m, s)
        if m.maybe():
            m.keys["rope.freq_base_swa"] = m.pick(1000.0, 10000.0)
    if m.maybe(0.4):
        m.keys["final_logit_softcapping"] = m.pick(0.0, 5.0, 30.0)
    for i in range(s.n_layers):
        attention(m, s, i, qk_norm="head")
        m.norm(f"blk.{i}.post_attention_norm", s.d)
        m.norm(f"blk.{i}.ffn_norm", s.d)
        m.norm(f"blk.{i}.post_ffw_norm", s.d)
        dense(m, s, i)


def draw_gemma4(m: VariantModel) -> None:
    s = base(m, n_layers=m.between(2, 6))
    full, small = m.width(16, 32, 40), m.pick(8, 16, 24)
    m.keys["attention.key_length"] = m.keys["attention.value_length"] = full
    m.keys["attention.key_length_swa"] = m.keys["attention.value_length_swa"] = small
    m.keys["rope.dimension_count"] = full
    m.keys["rope.dimension_count_swa"] = small
    m.keys["attention.sliding_window"] = m.pick(3, 9, 20)
    m.keys["embedding_length_per_layer_input"] = 0
    flags = windows(m, s, must_list=True)
    flags[0] = True
    flags[-1] = False  # rope_freqs belongs to a layer that sees everything
    m.keys["attention.sliding_window_pattern"] = flags
    if m.maybe():
        m.keys["rope.freq_base_swa"] = m.pick(1000.0, 10000.0)
    if m.maybe():
        m.keys["final_logit_softcapping"] = m.pick(5.0, 30.0)
    s.head_dim = [small if flag else full for flag in flags]
    s.value_dim = s.head_dim
    if m.maybe(0.3):
        s.heads = [m.pick(2, 4, 6) for _ in flags]
        m.keys["attention.head_count"] = list(s.heads)
        s.kv_heads = [2] * s.n_layers
        m.keys["attention.head_count_kv"] = 2
    elif m.maybe():
        heads = s.heads[0]
        divisors = [n for n in range(1, heads + 1) if heads % n == 0]
        s.kv_heads = [m.pick(*divisors) for _ in flags]
        m.keys["attention.head_count_kv"] = list(s.kv_heads)
    if m.maybe():
        s.n_ff = [m.width(24, 40) for _ in flags]
        m.keys["feed_forward_length"] = list(s.n_ff)
    embedding(m, s)
    m.tensors["rope_freqs.weight"] = m.rng.uniform(1, 8, full // 2).astype(np.float32)
    moe = m.maybe(0.7)
    n = expert_keys(m)[0] if moe else 0
    if moe:
        m.keys["expert_feed_forward_length"] = m.expert_width
    for i in range(s.n_layers):
        b = f"blk.{i}."
        attention(m, s, i, qk_norm="head", qkv_bias=False, fused=m.maybe(0.2), values=m.maybe(0.7))
        m.norm(b + "post_attention_norm", s.d)
        m.norm(b + "ffn_norm", s.d)
        m.norm(b + "post_ffw_norm", s.d)
        dense(m, s, i)
        if m.maybe():
            m.tensors[b + "layer_output_scale.weight"] = m.rng.uniform(0.3, 1.5, 1).astype(np.float32)
        if not moe or m.maybe(0.2):
            continue
        experts(m, s, i, n, m.expert_width, bias=False, merged=None, scales=True)
        m.tensors[b + "ffn_gate_inp.scale"] = m.rng.uniform(0.5, 2, s.d).astype(np.float32)
        for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
            m.norm(b + name, s.d)


def draw_llama4(m: VariantModel) -> None:
    s = base(m, n_layers=m.between(4, 6))  # llama.cpp needs one without rotary embedding
    embedding(m, s)
    n, _ = expert_keys(m)
    if m.maybe(0.2):
        n = 128
        m.keys |= {"expert_count": n, "expert_used_count": 1}
        m.keys.pop("expert_group_count", None)
        m.keys.pop("expert_group_used_count", None)
    step = m.pick(1, 2, 3)
    m.keys |= {"interleave_moe_layer_step": step, "expert_feed_forward_length": m.expert_width}
    if m.maybe(0.4):
        m.keys["attention.sliding_window"] = 8192
    if m.maybe(0.3):
        m.keys["rope.freq_base_swa"] = 3000.0
    windows(m, s)
    if m.maybe(0.6):
        m.tensors["rope_freqs.weight"] = m.rng.uniform(1, 8, s.head_dim[0] // 2).astype(np.float32)
    for i in range(s.n_layers):
        attention(m, s, i, qkv_bias=None)
        m.norm(f"blk.{i}.ffn_norm", s.d)
        if (i + 1) % step == 0:
            experts(m, s, i, n, m.expert_width, bias=False)
            dense(m, s, i, "_shexp", m.expert_width)
        else:
            dense(m, s, i)


def draw_smallthinker(m: VariantModel) -> None:
    s = base(m, n_layers=m.between(2, 6))
    embedding(m, s)
    if m.maybe(0.7):
        m.keys["attention.sliding_window"] = m.pick(0, 64, 4096)
        windows(m, s)
        if m.maybe():
            m.keys["rope.freq_base_swa"] = m.pick(1000.0, 30000.0)
    n, _ = expert_keys(m)
    m.keys |= {"expert_feed_forward_length": m.expert_width, "expert_gating_func": m.pick(1, 2, 3)}
    for i in range(s.n_layers):
        attention(m, s, i)
        m.norm(f"blk.{i}.ffn_norm", s.d)
        experts(m, s, i, n, m.expert_width, bias=False)


def draw_exaone(m: VariantModel) -> None:
    s = base(m, n_layers=m.between(1, 6))
    embedding(m, s, tied=False)
    m.keys["attention.sliding_window"] = m.pick(3, 9, 128)
    windows(m, s)
    if m.maybe(0.3):
        m.keys["rope.freq_base_swa"] = 2000.0
    n, _ = expert_keys(m)
    lead = leading(m, s)
    m.keys["expert_feed_forward_length"] = m.expert_width
    if m.maybe():
        m.keys["expert_shared_count"] = 1
    shared = m.pick(0, m.width(16, 40))
    if shared or m.maybe():
        m.keys["expert_shared_feed_forward_length"] = shared
    routing_keys(m)
    if m.maybe(0.3):
        m.tensors["rope_freqs.weight"] = m.rng.uniform(1, 8, s.head_dim[0] // 2).astype(np.float32)
    for i in range(s.n_layers):
        attention(m, s, i, qk_norm="head")
        m.norm(f"blk.{i}.ffn_norm", s.d)
        if i < lead:
            dense(m, s, i)
            continue
        experts(m, s, i, n, m.expert_width)
        dense(m, s, i, "_shexp", shared or m.expert_width)


def draw_mimo2(m: VariantModel) -> None:
    s = base(m, n_layers=m.between(1, 6), rot="part")
    if m.maybe():
        s.value_dim = [m.pick(8, 16, 24)] * s.n_layers
    m.keys |= {"attention.key_length": s.head_dim[0], "attention.value_length": s.value_dim[0]}
    embedding(m, s, tied=False)
    m.keys["attention.sliding_window"] = m.pick(3, 9, 128)
    windows(m, s, must_list=True)
    if m.maybe():
        m.keys["rope.freq_base_swa"] = m.pick(1000.0, 10000.0)
    if m.maybe(0.4):
        m.keys["attention.value_scale"] = m.pick(0.0, 0.7, 1.0)
    if m.maybe():
        divisors = [n for n in range(1, s.heads[0] + 1) if s.heads[0] % n == 0]
        s.kv_heads = [m.pick(*divisors) for _ in range(s.n_layers)]
        m.keys["attention.head_count_kv"] = list(s.kv_heads)
    n, _ = expert_keys(m)
    m.keys["expert_feed_forward_length"] = m.expert_width
    for i in range(s.n_layers):
        attention(m, s, i, qkv_bias=False, scales=False)
        if m.maybe(0.4):
            m.bias(f"blk.{i}.attn_sinks", s.heads[i], size=1.0, ending=".weight")
        m.norm(f"blk.{i}.ffn_norm", s.d)
        if m.maybe(0.3):
            dense(m, s, i)
        else:
            experts(m, s, i, n, m.expert_width)
