"""Random models of every architecture: shapes, options and optional tensors drawn from a seed.

`draw(NAME, seed)` decides everything by the seed: layers, heads, KV heads, head sizes, rotary embedding and its scaling,
windows, experts and their routing, scales, biases, tied output. What llama.cpp cannot run is not drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tiny_model import add_metadata, finish

N_VOCAB = 64


@dataclass
class VariantModel:
    """Keys without the architecture's prefix; tensors float32, fastest dimension last."""

    arch: str
    seed: int
    keys: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    n_ctx: int = 256  # to run with
    nextn: bool = False  # with a block behind the last layer that predicts a further token
    wide: bool = False  # sizes are multiples of 32 or 256, for block formats

    def __post_init__(self) -> None:
        # The legacy generator: its numbers never change.
        self.rng = np.random.RandomState(self.seed)
        self.expert_width = self.width(16, 24, 40)  # of most families

    # Choices.
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
        choice = np.random.RandomState(self.seed + 97).random_sample(5) < 0.2
        keys = dict(self.keys)
        for listed, key in zip(choice, (*by_layer, "expert_feed_forward_length"), strict=True):
            if listed and isinstance(keys.get(key), int):
                keys[key] = [keys[key]] * keys["block_count"]
        return keys

    def write(self, path: Path) -> Path:
        """Writes the file and returns its path."""
        writer = gguf.GGUFWriter(path, self.arch)
        add_metadata(writer, {f"{self.arch}.{key}": value for key, value in self.written_keys().items()})
        writer.add_string("tokenizer.ggml.model", "none")
        for name, values in self.tensors.items():
            writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
        finish(writer)
        return path


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
    choice = np.random.RandomState(m.seed + 7919)
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
    if biased and np.random.RandomState(m.seed + 31).random_sample() < 0.5:
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
    choice = np.random.RandomState(m.seed + 104729)
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


def windows(m: VariantModel, s: Shape, *, must_list: bool = False, default: bool = True) -> list[bool]:
    """sliding_window_pattern as flags, or as a period; which layers have windows (unknown, all False, with a period)."""
    if not must_list and m.maybe():
        if m.maybe() or not default:
            m.keys["attention.sliding_window_pattern"] = m.pick(0, 2, 3)
        return [False] * s.n_layers
    flags = [m.maybe() for _ in range(s.n_layers)]
    flags[0] = flags[0] or not any(flags)  # a window somewhere
    m.keys["attention.sliding_window_pattern"] = flags
    return flags


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


def default_width(m: VariantModel, s: Shape, used: int) -> int:
    """expert_feed_forward_length, or its default."""
    if m.maybe(0.6):
        m.keys["expert_feed_forward_length"] = width = m.width(8, 24, 40)
        return width
    return max(1, s.n_ff[0] // used)


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
    lead = m.between(0, s.n_layers)
    if lead or m.maybe():
        m.keys["leading_dense_block_count"] = lead
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
    lead = m.between(0, s.n_layers)
    if lead or m.maybe():
        m.keys["leading_dense_block_count"] = lead
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
    if m.maybe(0.3):
        m.keys["rope.dimension_sections"] = [1, 1, pairs, 0]
    n, used = expert_keys(m)
    lead = m.between(0, s.n_layers)
    if lead or m.maybe():
        m.keys["leading_dense_block_count"] = lead
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


def long_factors(m: VariantModel, s: Shape) -> None:
    m.keys["rope.scaling.type"] = "longrope"
    m.keys["rope.scaling.original_context_length"] = m.pick(64, 300)
    m.tensors["rope_factors_long.weight"] = m.rng.uniform(1, 8, s.head_dim[0] // 2).astype(np.float32)
    m.tensors["rope_factors_short.weight"] = m.rng.uniform(1, 2, s.head_dim[0] // 2).astype(np.float32)


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


def draw_minimax_m2(m: VariantModel) -> None:
    s = base(m, rot="part")
    embedding(m, s, tied=False)
    n, _ = expert_keys(m)
    m.keys |= {"expert_feed_forward_length": s.n_ff[0], "expert_gating_func": m.pick(1, 2, 3)}
    for i in range(s.n_layers):
        attention(m, s, i, qk_norm="whole", qkv_bias=False)
        m.norm(f"blk.{i}.ffn_norm", s.d)
        experts(m, s, i, n, s.n_ff[i], bias=True)


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


def draw_ernie(m: VariantModel) -> None:
    s = base(m)
    embedding(m, s)
    n, _ = expert_keys(m)
    lead = m.between(0, s.n_layers)
    if lead or m.maybe():
        m.keys["leading_dense_block_count"] = lead
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


def leading(m: VariantModel, s: Shape) -> int:
    """leading_dense_block_count."""
    lead = m.between(0, s.n_layers)
    if lead or m.maybe():
        m.keys["leading_dense_block_count"] = lead
    return lead


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


DRAWN: dict[str, Callable[[VariantModel], None]] = {
    "llama": draw_llama,
    "qwen2": draw_qwen2,
    "qwen3": draw_qwen3,
    "qwen2moe": draw_qwen2moe,
    "qwen3moe": draw_qwen3moe,
    "olmoe": draw_olmoe,
    "qwen35": draw_delta_net,
    "qwen35moe": draw_delta_net,
    "qwen3next": draw_delta_net,
    "lfm2moe": draw_lfm2moe,
    "gpt-oss": draw_gpt_oss,
    "deepseek2": draw_deepseek2,
    "glm4moe": draw_glm4moe,
    "granitemoe": draw_granitemoe,
    "phimoe": draw_phimoe,
    "gemma3": draw_gemma3,
    "gemma4": draw_gemma4,
    "minimax-m2": draw_minimax_m2,
    "llama4": draw_llama4,
    "ernie4_5-moe": draw_ernie,
    "hunyuan-moe": draw_hunyuan,
    "bailingmoe2": draw_bailingmoe2,
    "dots1": draw_shared,
    "deepseek": draw_shared,
    "smallthinker": draw_smallthinker,
    "grok": draw_grok,
    "exaone-moe": draw_exaone,
    "mimo2": draw_mimo2,
    "dbrx": draw_dbrx,
}


def draw(arch: str, seed: int, *, wide: bool = False, nextn: bool = False) -> VariantModel:
    """The model of a seed."""
    model = VariantModel(arch, seed, wide=wide, nextn=nextn)
    DRAWN[arch](model)
    return model
