"""Tiny models with recurrent layers: their keys and tensors, and the same mathematics in float64 numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tiny_model import TinyModel

DELTA_NET = ("qwen35", "qwen35moe", "qwen3next")
N_TAPS = 4
STATE_SIZE, N_KEY_HEADS, N_VALUE_HEADS = 16, 2, 4
N_KEYS, N_VALUES = N_KEY_HEADS * STATE_SIZE, N_VALUE_HEADS * STATE_SIZE


def is_recurrent(spec: TinyModel, layer: int) -> bool:
    """Whether a layer of the tiny model has no attention: all but every second one."""
    return spec.arch in DELTA_NET and layer % 2 == 0


def hybrid_keys(spec: TinyModel) -> dict[str, Any]:
    """Metadata of the recurrent layers and of their models' attention."""
    if spec.arch not in DELTA_NET:
        return {}
    keys = {
        "ssm.conv_kernel": N_TAPS,
        "ssm.state_size": STATE_SIZE,
        "ssm.group_count": N_KEY_HEADS,
        "ssm.time_step_rank": N_VALUE_HEADS,
        "ssm.inner_size": N_VALUES,
        "full_attention_interval": 2,
        "rope.dimension_count": n_rot(spec),
    }
    if spec.arch != "qwen3next":
        keys["rope.dimension_sections"] = [2, 2, 2, 0]
    return {f"{spec.arch}.{key}": value for key, value in keys.items()}


def n_rot(spec: TinyModel) -> int:
    """Leading elements of a head that turn."""
    return 12 if spec.arch in DELTA_NET else spec.head_dim


def mixer_tensors(spec: TinyModel, b: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Tensors of one recurrent layer, b its prefix, as float32."""
    d = spec.n_embd
    shapes = {"attn_qkv": (2 * N_KEYS + N_VALUES, d), "attn_gate": (N_VALUES, d), "ssm_out": (d, N_VALUES)}
    if spec.arch == "qwen3next":
        shapes["ssm_ba"] = (2 * N_VALUE_HEADS, d)
    else:
        shapes |= {"ssm_alpha": (N_VALUE_HEADS, d), "ssm_beta": (N_VALUE_HEADS, d)}
    tensors = {name: rng.standard_normal(shape) / np.sqrt(shape[-1]) for name, shape in shapes.items()}
    tensors["ssm_conv1d"] = 0.5 * rng.standard_normal((2 * N_KEYS + N_VALUES, N_TAPS))
    tensors["ssm_norm"] = 1 + 0.1 * rng.standard_normal(STATE_SIZE)
    named = {f"{b}{name}.weight": values for name, values in tensors.items()}
    named[b + "ssm_dt.bias"] = rng.standard_normal(N_VALUE_HEADS)
    named[b + "ssm_a"] = -np.exp(rng.standard_normal(N_VALUE_HEADS) - 1)
    return {name: values.astype(np.float32) for name, values in named.items()}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def causal_convolution(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x (rows, channels), w (channels, taps), the last tap for the row itself: (rows, channels)."""
    taps = w.shape[1]
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    return np.asarray(sum(padded[t : t + len(x)] * w[:, t] for t in range(taps)))


def delta_net(spec: TinyModel, w: dict[str, np.ndarray], h: np.ndarray, b: str) -> np.ndarray:
    """One gated delta net layer: h (rows, n_embd) normalised input -> (rows, n_embd), token by token."""
    n, group = len(h), N_VALUE_HEADS // N_KEY_HEADS
    mixed = causal_convolution(h @ w[b + "attn_qkv.weight"].T, w[b + "ssm_conv1d.weight"])
    mixed = mixed * sigmoid(mixed)
    q, k, v = np.split(mixed, [N_KEYS, 2 * N_KEYS], axis=1)
    q, k = (x.reshape(n, N_KEY_HEADS, STATE_SIZE) for x in (q, k))
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-5) for x in (q, k))
    v = v.reshape(n, N_VALUE_HEADS, STATE_SIZE)
    if spec.arch == "qwen3next":
        both = (h @ w[b + "ssm_ba.weight"].T).reshape(n, N_KEY_HEADS, 2, group)
        beta, alpha = both[:, :, 0].reshape(n, -1), both[:, :, 1].reshape(n, -1)
        q, k = np.repeat(q, group, 1), np.repeat(k, group, 1)
    else:
        beta, alpha = h @ w[b + "ssm_beta.weight"].T, h @ w[b + "ssm_alpha.weight"].T
        q, k = np.tile(q, (1, group, 1)), np.tile(k, (1, group, 1))
    decay = np.exp(np.log1p(np.exp(alpha + w[b + "ssm_dt.bias"])) * w[b + "ssm_a"])
    state = np.zeros((N_VALUE_HEADS, STATE_SIZE, STATE_SIZE))  # value by key
    out = np.zeros((n, N_VALUE_HEADS, STATE_SIZE))
    for t in range(n):
        state = state * decay[t][:, None, None]
        step = sigmoid(beta[t])[:, None] * (v[t] - np.einsum("hvk,hk->hv", state, k[t]))
        state = state + np.einsum("hv,hk->hvk", step, k[t])
        out[t] = np.einsum("hvk,hk->hv", state, q[t]) / np.sqrt(STATE_SIZE)
    out = out / np.sqrt((out * out).mean(-1, keepdims=True) + 1e-5) * w[b + "ssm_norm.weight"]
    z = h @ w[b + "attn_gate.weight"].T
    return np.asarray((out.reshape(n, -1) * z * sigmoid(z)) @ w[b + "ssm_out.weight"].T)
