"""Random models of architectures whose routing, scales or attention are special."""

from __future__ import annotations

from variant_layers import (
    attention,
    base,
    dense,
    embedding,
    expert_keys,
    experts,
    leading,
    routing_keys,
    with_nextn,
)
from variant_model import VariantModel


def draw_deepseek2(m: VariantModel) -> None:
    heads, n_rot, nope = m.pick(1, 2, 4, 6), m.pick(4, 8, 12), m.pick(4, 8, 20)
    value, rank, q_rank = m.pick(8, 12, 20), m.pick(12, 16, 40), m.pick(0, 16, 24)
    lite = m.maybe(0.15)
    s = base(m, n_layers=m.pick(26, 27) if lite else None)
    s.heads = [heads] * s.n_layers
    split = m.maybe()
    for key in ("attention.key_length", "attention.value_length", "attention.head_count_kv"):
        m.keys.pop(key, None)
    m.keys |= {"attention.head_count": heads, "rope.dimension_count": n_rot, "attention.kv_lora_rank": rank}
    m.keys["attention.q_lora_rank"] = q_rank
    q_rank = 0 if lite else q_rank
    if split:
        m.keys |= {"attention.head_count_kv": 1, "attention.key_length": rank + n_rot, "attention.value_length": rank}
        m.keys |= {"attention.key_length_mla": nope + n_rot, "attention.value_length_mla": value}
    else:
        m.keys |= {"attention.key_length": nope + n_rot, "attention.value_length": value}
        m.keys["attention.head_count_kv"] = heads
    if m.maybe():
        m.keys["rope.scaling.yarn_log_multiplier"] = m.pick(0.1, 0.0707, 0.04)
    if m.maybe(0.3):
        m.keys |= {"attention.temperature_scale": 0.1, "attention.temperature_length": m.pick(8, 32)}
    embedding(m, s)
    n, _ = expert_keys(m)
    lead = leading(m, s)
    m.keys["expert_feed_forward_length"] = width = m.width(16, 24)
    m.keys["expert_shared_count"] = shared = m.pick(1, 2)
    routing_keys(m, (None, 0, 1, 2, 3))
    for i in range(s.n_layers):
        b = f"blk.{i}."
        m.norm(b + "attn_norm", s.d)
        if q_rank:
            m.matrix(b + "attn_q_a", q_rank, s.d)
            m.norm(b + "attn_q_a_norm", q_rank)
            m.matrix(b + "attn_q_b", heads * (nope + n_rot), q_rank)
        else:
            m.matrix(b + "attn_q", heads * (nope + n_rot), s.d)
        m.matrix(b + "attn_kv_a_mqa", rank + n_rot, s.d)
        m.norm(b + "attn_kv_a_norm", rank)
        if split:
            m.matrix(b + "attn_k_b", rank, nope, heads)
            m.matrix(b + "attn_v_b", value, rank, heads)
        else:
            m.matrix(b + "attn_kv_b", heads * (nope + value), rank)
        m.matrix(b + "attn_output", s.d, heads * value)
        m.norm(b + "ffn_norm", s.d)
        if i < lead:
            dense(m, s, i)
        else:
            experts(m, s, i, n, width, merged=None)
            dense(m, s, i, "_shexp", width * shared)


def draw_glm4moe(m: VariantModel) -> None:
    s = base(m, rot="part")
    embedding(m, s)
    pairs = int(m.keys["rope.dimension_count"]) // 2
    if m.maybe(0.3) and not m.nextn:  # llama.cpp's MTP graph lacks them
        m.keys["rope.dimension_sections"] = [1, 1, pairs, 0]
    n, used = expert_keys(m)
    lead = leading(m, s)
    width = m.width(16, 24)
    m.keys["expert_feed_forward_length"] = m.pick(width, width, 0)
    if m.keys["expert_feed_forward_length"] == 0:
        width = max(1, s.n_ff[0] // used)
    m.keys["expert_shared_count"] = shared = m.pick(1, 2)
    routing_keys(m, (None, 0, 1, 2, 3))
    for i in range(with_nextn(m, s)):
        attention(m, s, i, qk_norm="head", qk_norm_optional=True)
        m.norm(f"blk.{i}.post_attention_norm", s.d)
        if i < lead:
            dense(m, s, i)
            continue
        experts(m, s, i, n, width, bias=True)
        dense(m, s, i, "_shexp", width * shared)


def draw_minimax_m2(m: VariantModel) -> None:
    s = base(m, rot="part")
    embedding(m, s, tied=False)
    n, _ = expert_keys(m)
    m.keys |= {"expert_feed_forward_length": s.n_ff[0], "expert_gating_func": m.pick(1, 2, 3)}
    for i in range(s.n_layers):
        attention(m, s, i, qk_norm="whole", qkv_bias=False)
        m.norm(f"blk.{i}.ffn_norm", s.d)
        experts(m, s, i, n, s.n_ff[i], bias=True)


def draw_ernie(m: VariantModel) -> None:
    s = base(m)
    embedding(m, s)
    n, _ = expert_keys(m)
    lead = leading(m, s)
    m.keys |= {"interleave_moe_layer_step": 1, "expert_feed_forward_length": m.expert_width}
    shared = m.pick(0, m.width(24, 48))
    if shared or m.maybe():
        m.keys["expert_shared_feed_forward_length"] = shared
    for i in range(s.n_layers):
        attention(m, s, i, output_bias=None)
        m.norm(f"blk.{i}.ffn_norm", s.d)
        if i < lead:
            dense(m, s, i)
            continue
        experts(m, s, i, n, m.expert_width)
        if shared:
            dense(m, s, i, "_shexp", shared)


def draw_hunyuan(m: VariantModel) -> None:
    s = base(m)
    embedding(m, s)
    n, _ = expert_keys(m)
    m.keys["expert_feed_forward_length"] = s.n_ff[0]
    shared = m.pick(0, m.width(24, 48))
    if shared or m.maybe():
        m.keys["expert_shared_feed_forward_length"] = shared
    for i in range(s.n_layers):
        attention(m, s, i, qk_norm="head")
        m.norm(f"blk.{i}.ffn_norm", s.d)
        experts(m, s, i, n, s.n_ff[i], bias=False)
        dense(m, s, i, "_shexp", shared or s.n_ff[i])


def draw_bailingmoe2(m: VariantModel) -> None:
    s = base(m, free_heads=False, rot="part")
    embedding(m, s, tied=False)
    n, _ = expert_keys(m)
    lead = leading(m, s)
    m.keys["expert_feed_forward_length"] = m.expert_width
    m.keys["expert_shared_count"] = count = m.pick(1, 2)
    shared = m.expert_width
    if m.maybe():
        m.keys["expert_shared_feed_forward_length"] = shared = 40
    routing_keys(m)
    for i in range(s.n_layers):
        attention(m, s, i, qk_norm="head", fused=True, qkv_bias=False)
        m.norm(f"blk.{i}.ffn_norm", s.d)
        if i < lead:
            dense(m, s, i)
            continue
        experts(m, s, i, n, m.expert_width)
        dense(m, s, i, "_shexp", shared * count)


def draw_shared(m: VariantModel) -> None:
    """dots1 and deepseek."""
    dots = m.arch == "dots1"
    s = base(m, free_heads=dots, mha=dots)
    embedding(m, s, tied=not dots)
    n, _ = expert_keys(m)
    lead = leading(m, s)
    m.keys["expert_feed_forward_length"] = width = m.width(16, 24)
    m.keys["expert_shared_count"] = count = m.pick(1, 2)
    if dots:
        routing_keys(m)
    elif m.maybe():
        m.keys["expert_weights_scale"] = m.pick(0.0, 1.5)
    for i in range(s.n_layers):
        attention(m, s, i, qk_norm="head" if dots else "")
        m.norm(f"blk.{i}.ffn_norm", s.d)
        if i < lead:
            dense(m, s, i)
            continue
        experts(m, s, i, n, width, bias=None if dots else False)
        dense(m, s, i, "_shexp", width * count)


def draw_grok(m: VariantModel) -> None:
    s = base(m, free_heads=False)
    embedding(m, s)
    n, _ = expert_keys(m)
    for key, value in (
        ("logit_scale", 0.7),
        ("embedding_scale", 5.0),
        ("attention.output_scale", 0.2),
        ("attn_logit_softcapping", 3.0),
        ("router_logit_softcapping", 3.0),
        ("final_logit_softcapping", 5.0),
        ("attention.temperature_length", 8),
        ("rope.scaling.yarn_beta_fast", 20.0),
        ("rope.scaling.yarn_beta_slow", 2.0),
    ):
        if m.maybe(0.6):
            m.keys[key] = value
    if m.maybe(0.3):
        m.keys["rope.scaling.yarn_ext_factor"] = m.pick(0.0, 1.0)
    if m.maybe(0.3):
        m.keys["rope.scaling.yarn_attn_factor"] = m.pick(1.0, 1.2)
    width = s.n_ff[0]
    if m.maybe():
        m.keys["expert_feed_forward_length"] = width = m.expert_width
    beside = m.maybe()
    name = m.pick("layer_output_norm", "post_ffw_norm")
    for i in range(s.n_layers):
        attention(m, s, i)
        m.norm(f"blk.{i}.attn_output_norm", s.d)
        m.norm(f"blk.{i}.ffn_norm", s.d)
        m.norm(f"blk.{i}.{name}", s.d)
        experts(m, s, i, n, width, bias=False)
        if beside:
            dense(m, s, i)


def draw_dbrx(m: VariantModel) -> None:
    s = base(m, free_heads=False)
    m.keys["attention.layer_norm_epsilon"] = m.keys.pop("attention.layer_norm_rms_epsilon")
    m.keys["attention.clamp_kqv"] = m.pick(0.0, 0.5, 8.0)
    embedding(m, s, tied=False)
    n, _ = expert_keys(m)
    for i in range(s.n_layers):
        attention(m, s, i, fused=True, qkv_bias=False)
        m.norm(f"blk.{i}.attn_output_norm", s.d)
        experts(m, s, i, n, s.n_ff[i], bias=False)
