"""A float64 forward pass of a TinyModel in numpy: an oracle that shares no code with the engine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tiny_hybrid import DELTA_NET, SHORT_CONV, is_recurrent, mixer, n_rot, sigmoid, still_pairs
from tiny_model import GATED_EXPERTS, RENORMALISED, TinyModel


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms_norm(x: np.ndarray, w: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


class NumpyModel:
    """logits() and routing() as expertree.Model has them, for F32 tiny models."""

    def __init__(self, spec: TinyModel, kept: Callable[[np.ndarray], np.ndarray] | None = None) -> None:
        """kept: what a KV cache gives back of keys or values (rows, heads, head_dim)."""
        self.spec = spec
        self.kept = kept if kept is not None else lambda x: x
        tensors = {**spec.float_tensors(), **spec.tensors}
        self.w = {name: values.astype(np.float64) for name, values in tensors.items() if values is not None}
        self.output_norm = "token_embd_norm.weight" if spec.arch in SHORT_CONV else "output_norm.weight"
        self.routed: list[tuple[np.ndarray, np.ndarray]] = []

    def logits(self, tokens: list[int]) -> np.ndarray:
        return self.hidden_states(tokens)[1] @ self.w.get("output.weight", self.w["token_embd.weight"]).T

    def hidden_states(self, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """The input of every layer, float64 (rows, n_layers, n_embd), and the normalised output of the last one."""
        self.routed = []
        x = self.w["token_embd.weight"][tokens]
        inputs = []
        for i in range(self.spec.n_layers):
            inputs.append(x)
            x = self.layer(x, i)
        return np.stack(inputs, 1), rms_norm(x, self.w[self.output_norm])

    def layer(self, x: np.ndarray, i: int) -> np.ndarray:
        b = f"blk.{i}."
        h = rms_norm(x, self.w[b + "attn_norm.weight"])
        x = x + (mixer(self.spec, self.w, h, b) if is_recurrent(self.spec, i) else self.attention(h, b))
        norm = "post_attention_norm" if self.spec.arch in DELTA_NET else "ffn_norm"
        h = rms_norm(x, self.w[f"{b}{norm}.weight"])
        return np.asarray(
            x + (self.mixture(h, b) if self.spec.has_experts(i) else self.feed_forward(h, b + "ffn_{}.weight"))
        )

    def nextn(self, tokens: list[int], states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The MTP block over a sequence of tokens, each with the model's or the block's output at the position before
        it, (rows, n_embd): its outputs (rows, n_embd) and logits."""
        b = f"blk.{self.spec.n_layers}."
        embedding = self.w.get(b + "nextn.embed_tokens.weight", self.w["token_embd.weight"])[tokens]
        e, h = rms_norm(embedding, self.w[b + "nextn.enorm.weight"]), rms_norm(states, self.w[b + "nextn.hnorm.weight"])
        x = self.layer(np.concatenate([e, h], -1) @ self.w[b + "nextn.eh_proj.weight"].T, self.spec.n_layers)
        output = rms_norm(x, self.w.get(b + "nextn.shared_head_norm.weight", self.w["output_norm.weight"]))
        return output, output @ self.w.get(b + "nextn.shared_head_head.weight", self.w["output.weight"]).T

    def routing(self, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
        self.logits(tokens)
        return np.array([ids for ids, _ in self.routed]), np.array([weights for _, weights in self.routed])

    def attention(self, h: np.ndarray, b: str) -> np.ndarray:
        s, n = self.spec, len(h)
        q, k, v = (h @ self.w[f"{b}attn_{p}.weight"].T + self.w.get(f"{b}attn_{p}.bias", 0.0) for p in "qkv")
        if s.arch == "olmoe":
            q, k = rms_norm(q, self.w[b + "attn_q_norm.weight"]), rms_norm(k, self.w[b + "attn_k_norm.weight"])
        gate = np.zeros(0)
        if s.arch in DELTA_NET:
            q, gate = np.split(q.reshape(n, s.n_heads, 2 * s.head_dim), 2, -1)
        q, k, v = (x.reshape(n, -1, s.head_dim) for x in (q, k, v))
        if s.arch in ("qwen3", "qwen3moe", *DELTA_NET, *SHORT_CONV):
            q, k = rms_norm(q, self.w[b + "attn_q_norm.weight"]), rms_norm(k, self.w[b + "attn_k_norm.weight"])
        group = s.n_heads // s.n_kv_heads
        q, k, v = self.rope(q), np.repeat(self.kept(self.rope(k)), group, 1), np.repeat(self.kept(v), group, 1)
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(s.head_dim)
        p = softmax(np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf))
        out = np.einsum("hij,jhd->ihd", p, v)
        if gate.size:
            out = out * sigmoid(gate)
        return out.reshape(n, -1) @ self.w[b + "attn_output.weight"].T

    def rope(self, x: np.ndarray) -> np.ndarray:
        half = n_rot(self.spec) // 2
        x, still = np.split(x, [2 * half], -1)
        angle = np.arange(len(x))[:, None, None] * 10000.0 ** (-np.arange(half) / half) * ~still_pairs(self.spec)
        turn = np.exp(1j * angle)
        if self.spec.gguf_arch == "llama":
            turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
            return np.stack([turned.real, turned.imag], -1).reshape(x.shape)
        turned = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([turned.real, turned.imag, still], -1)

    def feed_forward(self, h: np.ndarray, name: str, expert: int | None = None) -> np.ndarray:
        gate, up, down = (self.w[name.format(part)] for part in ("gate", "up", "down"))
        if expert is not None:
            gate, up, down = gate[expert], up[expert], down[expert]
        return (silu(h @ gate.T) * (h @ up.T)) @ down.T

    def mixture(self, h: np.ndarray, b: str) -> np.ndarray:
        s = self.spec
        scores = h @ self.w[b + "ffn_gate_inp.weight"].T
        p = sigmoid(scores) if s.arch in SHORT_CONV else softmax(scores)
        ids = np.argsort(-(p + self.w.get(b + "exp_probs_b.bias", 0.0)), -1, kind="stable")[:, : s.n_used]
        weights = np.take_along_axis(p, ids, -1)
        if s.arch in RENORMALISED:
            weights = weights / weights.sum(-1, keepdims=True)
        self.routed.append((ids, weights))
        y = np.zeros_like(h)
        for row in range(len(h)):
            for expert, weight in zip(ids[row], weights[row], strict=True):
                y[row] += weight * self.feed_forward(h[row], b + "ffn_{}_exps.weight", int(expert))
        if s.arch in GATED_EXPERTS:
            gate = 1 / (1 + np.exp(-(h @ self.w[b + "ffn_gate_inp_shexp.weight"])))
            y += gate[:, None] * self.feed_forward(h, b + "ffn_{}_shexp.weight")
        return y
