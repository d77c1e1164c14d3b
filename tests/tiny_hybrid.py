"""Tiny models with recurrent layers: their keys and tensors, and the same mathematics in float64 numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tiny_model import TinyModel

DELTA_NET = ("qwen35", "qwen35moe", "qwen3next")
SHORT_CONV = ("lfm2moe",)
SHORT_TAPS = 3


@dataclass
class DeltaSizes:
    """Of the gated delta net, and which layers have attention instead."""

    n_taps: int = 4
    state_size: int = 16
    n_key_heads: int = 2
    n_value_heads: int = 4
    interval: int = 2  # every interval-th layer has attention
    recurrent_layers: list[Any] | None = None  # by block, as the file has it, instead
    merged_in: bool = False  # tensor ssm_in of the first qwen3next files
    sections: tuple[int, ...] = (2, 2, 2, 0)

    @property
    def n_keys(self) -> int:
        return self.n_key_heads * self.state_size

    @property
    def n_values(self) -> int:
        return self.n_value_heads * self.state_size

    @property
    def n_channels(self) -> int:
        return 2 * self.n_keys + self.n_values


def is_recurrent(spec: TinyModel, layer: int) -> bool:
    """Whether a layer of the tiny model has no attention."""
    if spec.arch not in (*DELTA_NET, *SHORT_CONV) or layer >= spec.n_layers:
        return False
    if spec.delta.recurrent_layers is not None:
        return bool(spec.delta.recurrent_layers[layer])
    return (layer + 1) % spec.delta.interval != 0


def hybrid_keys(spec: TinyModel) -> dict[str, Any]:
    """Metadata of the recurrent layers and of their models' attention."""
    if spec.arch in SHORT_CONV:
        return {
            "lfm2moe.shortconv.l_cache": SHORT_TAPS,
            "lfm2moe.leading_dense_block_count": 1,
            "lfm2moe.expert_feed_forward_length": spec.n_ff,
            "lfm2moe.expert_gating_func": 2,
            "lfm2moe.attention.head_count_kv": [
                0 if is_recurrent(spec, i) else spec.n_kv_heads for i in range(spec.n_layers)
            ],
        }
    if spec.arch not in DELTA_NET:
        return {}
    s = spec.delta
    keys: dict[str, Any] = {
        "ssm.conv_kernel": s.n_taps,
        "ssm.state_size": s.state_size,
        "ssm.group_count": s.n_key_heads,
        "ssm.time_step_rank": s.n_value_heads,
        "ssm.inner_size": s.n_values,
        "rope.dimension_count": n_rot(spec),
    }
    if s.recurrent_layers is not None:
        keys["attention.recurrent_layers"] = s.recurrent_layers
    elif s.interval != 4:  # the default
        keys["full_attention_interval"] = s.interval
    if spec.arch != "qwen3next":
        keys["rope.dimension_sections"] = list(s.sections)
    return {f"{spec.arch}.{key}": value for key, value in keys.items()}


def n_rot(spec: TinyModel) -> int:
    """Leading elements of a head that turn."""
    return 12 if spec.arch in DELTA_NET else spec.head_dim


def mixer_tensors(spec: TinyModel, b: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Tensors of one recurrent layer, b its prefix, as float32."""
    d, s = spec.n_embd, spec.delta
    if spec.arch in SHORT_CONV:
        short = {
            f"{b}shortconv.in_proj.weight": rng.standard_normal((3 * d, d)) / np.sqrt(d),
            f"{b}shortconv.out_proj.weight": rng.standard_normal((d, d)) / np.sqrt(d),
            f"{b}shortconv.conv.weight": 0.6 * rng.standard_normal((d, SHORT_TAPS)),
        }
        return {name: values.astype(np.float32) for name, values in short.items()}
    shapes = {"attn_qkv": (s.n_channels, d), "attn_gate": (s.n_values, d), "ssm_out": (d, s.n_values)}
    if spec.arch == "qwen3next":
        shapes["ssm_ba"] = (2 * s.n_value_heads, d)
    else:
        shapes |= {"ssm_alpha": (s.n_value_heads, d), "ssm_beta": (s.n_value_heads, d)}
    tensors = {name: rng.standard_normal(shape) / np.sqrt(shape[-1]) for name, shape in shapes.items()}
    tensors["ssm_conv1d"] = 0.5 * rng.standard_normal((s.n_channels, s.n_taps))
    tensors["ssm_norm"] = 1 + 0.1 * rng.standard_normal(s.state_size)
    if s.merged_in:  # per key head its query, key, values and gates
        qkv, gate = tensors.pop("attn_qkv"), tensors.pop("attn_gate")
        parts = [*np.split(qkv, [s.n_keys, 2 * s.n_keys]), gate]
        by_head = [part.reshape(s.n_key_heads, -1, d) for part in parts]
        tensors["ssm_in"] = np.concatenate(by_head, 1).reshape(-1, d)
    named = {f"{b}{name}.weight": values for name, values in tensors.items()}
    named[b + "ssm_dt.bias"] = rng.standard_normal(s.n_value_heads)
    named[b + "ssm_a"] = -np.exp(rng.standard_normal(s.n_value_heads) - 1)
    return {name: values.astype(np.float32) for name, values in named.items()}


def nextn_tensors(spec: TinyModel, b: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """What an MTP block has beside a layer's tensors, b its prefix, as float32."""
    d = spec.n_embd
    tensors = {"eh_proj": rng.standard_normal((d, 2 * d)) / np.sqrt(2 * d)}
    tensors |= {name: 1 + 0.1 * rng.standard_normal(d) for name in ("enorm", "hnorm", "shared_head_norm")}
    return {f"{b}nextn.{name}.weight": values.astype(np.float32) for name, values in tensors.items()}


def still_pairs(spec: TinyModel) -> np.ndarray:
    """Which of the n_rot / 2 pairs do not turn: those that the sections leave to a position that text has not."""
    pairs, sections = np.arange(n_rot(spec) // 2), spec.delta.sections
    if spec.arch not in DELTA_NET or spec.arch == "qwen3next":
        return np.zeros(len(pairs), bool)
    place = pairs % sum(sections)
    return place >= 3 * np.array(sections)[place % 3]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def causal_convolution(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x (rows, channels), w (channels, taps), the last tap for the row itself: (rows, channels)."""
    taps = w.shape[1]
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    return np.asarray(sum(padded[t : t + len(x)] * w[:, t] for t in range(taps)))


def delta_net(spec: TinyModel, w: dict[str, np.ndarray], h: np.ndarray, b: str) -> np.ndarray:
    """One gated delta net layer: h (rows, n_embd) normalised input -> (rows, n_embd), token by token."""
    s = spec.delta
    n, group = len(h), s.n_value_heads // s.n_key_heads
    if s.merged_in:
        by_head = (h @ w[b + "ssm_in.weight"].T).reshape(n, s.n_key_heads, -1)
        sizes = np.cumsum([s.state_size, s.state_size, group * s.state_size])
        q, k, v, z = (part.reshape(n, -1) for part in np.split(by_head, sizes, axis=2))
        mixed = np.concatenate([q, k, v], 1)
    else:
        mixed, z = h @ w[b + "attn_qkv.weight"].T, h @ w[b + "attn_gate.weight"].T
    mixed = causal_convolution(mixed, w[b + "ssm_conv1d.weight"])
    mixed = mixed * sigmoid(mixed)
    q, k, v = np.split(mixed, [s.n_keys, 2 * s.n_keys], axis=1)
    q, k = (x.reshape(n, s.n_key_heads, s.state_size) for x in (q, k))
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-5) for x in (q, k))
    v = v.reshape(n, s.n_value_heads, s.state_size)
    if spec.arch == "qwen3next":
        both = (h @ w[b + "ssm_ba.weight"].T).reshape(n, s.n_key_heads, 2, group)
        beta, alpha = both[:, :, 0].reshape(n, -1), both[:, :, 1].reshape(n, -1)
        q, k = np.repeat(q, group, 1), np.repeat(k, group, 1)
    else:
        beta, alpha = h @ w[b + "ssm_beta.weight"].T, h @ w[b + "ssm_alpha.weight"].T
        q, k = np.tile(q, (1, group, 1)), np.tile(k, (1, group, 1))
    decay = np.exp(np.log1p(np.exp(alpha + w[b + "ssm_dt.bias"])) * w[b + "ssm_a"])
    state = np.zeros((s.n_value_heads, s.state_size, s.state_size))  # value by key
    out = np.zeros((n, s.n_value_heads, s.state_size))
    for t in range(n):
        state = state * decay[t][:, None, None]
        step = sigmoid(beta[t])[:, None] * (v[t] - np.einsum("hvk,hk->hv", state, k[t]))
        state = state + np.einsum("hv,hk->hvk", step, k[t])
        out[t] = np.einsum("hvk,hk->hv", state, q[t]) / np.sqrt(s.state_size)
    out = out / np.sqrt((out * out).mean(-1, keepdims=True) + 1e-5) * w[b + "ssm_norm.weight"]
    return np.asarray((out.reshape(n, -1) * z * sigmoid(z)) @ w[b + "ssm_out.weight"].T)


def short_convolution(w: dict[str, np.ndarray], h: np.ndarray, b: str) -> np.ndarray:
    """One LFM2 convolution layer: h (rows, n_embd) normalised input -> (rows, n_embd)."""
    before, after, x = np.split(h @ w[b + "shortconv.in_proj.weight"].T, 3, axis=1)
    return np.asarray(
        (after * causal_convolution(before * x, w[b + "shortconv.conv.weight"])) @ w[b + "shortconv.out_proj.weight"].T
    )


def mixer(spec: TinyModel, w: dict[str, np.ndarray], h: np.ndarray, b: str) -> np.ndarray:
    """A layer without attention."""
    return short_convolution(w, h, b) if spec.arch in SHORT_CONV else delta_net(spec, w, h, b)
