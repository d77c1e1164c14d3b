"""Sparse upcycling (Komatsuzaki et al. 2022) with low-rank experts: every feed-forward block becomes N_EXPERTS copies
of itself, each with its own LoRA on gate, up and down, of which a linear router picks N_USED per token with
renormalised weights (Mixtral's rule). With all LoRA zero it computes what the dense model computes.

The dense products run once per token and only the low-rank parts per expert, which is what makes training cheap.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from base_model import COMPUTE, FFN, LAYERS, WIDTH, BaseModel
from torch import Tensor
from torch.nn import Parameter, ParameterDict

N_EXPERTS, N_USED, RANK = 8, 2, 8
WIDE = N_EXPERTS * RANK
PROJECTIONS = {"gate": (WIDTH, FFN), "up": (WIDTH, FFN), "down": (FFN, WIDTH)}  # inputs, outputs


class UpcycledModel(BaseModel):
    """routing: "router", or for comparison "random" (experts drawn evenly) or "fixed" (always 0 and 1), both with the
    router's own logits for the weights; "dense" leaves the experts out.

    experts: `{layer}.{projection}.a` [WIDE, inputs] and `.b` [outputs, WIDE]; `{layer}.router` [N_EXPERTS, WIDTH].
    """

    def __init__(self, weights: dict[str, Tensor], routers: list[Tensor], device: torch.device | str) -> None:
        super().__init__(weights, device)
        self.routing = "router"
        self.record: list[Tensor] | None = None  # when a list: chosen ids of each layer, [tokens, N_USED]
        self.balance: list[Tensor] | None = None  # when a list: the balance loss of each layer
        self.generator = torch.Generator(self.device).manual_seed(0)
        self.experts = ParameterDict()
        draw = torch.Generator().manual_seed(1)
        for layer in range(LAYERS):
            self.experts[f"{layer}_router"] = Parameter(routers[layer].float().to(self.device))
            for name, (inputs, outputs) in PROJECTIONS.items():
                a = torch.randn(WIDE, inputs, generator=draw) / math.sqrt(inputs)
                self.experts[f"{layer}_{name}_a"] = Parameter(a.to(self.device))
                self.experts[f"{layer}_{name}_b"] = Parameter(torch.zeros(outputs, WIDE, device=self.device))

    def choose(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and weights [tokens, N_USED] from router scores [tokens, N_EXPERTS]."""
        if self.routing == "random":
            noise = torch.rand(scores.shape, generator=self.generator, device=scores.device)
            ids = noise.topk(N_USED, -1).indices
        elif self.routing == "fixed":
            ids = torch.arange(N_USED, device=scores.device).expand(len(scores), N_USED)
        else:
            ids = scores.topk(N_USED, -1).indices
        return ids, scores.gather(-1, ids).softmax(-1)

    def feed_forward(self, layer: int, h: Tensor) -> Tensor:
        if self.routing == "dense":
            return super().feed_forward(layer, h)
        shape = h.shape
        h = h.reshape(-1, WIDTH)
        scores = F.linear(h.float(), self.experts[f"{layer}_router"])
        ids, chosen_weights = self.choose(scores)
        if self.record is not None:
            self.record.append(ids)
        if self.balance is not None:  # Switch Transformer's loss, 1 when balanced
            share = torch.zeros(N_EXPERTS, device=h.device).scatter_add_(
                0, ids.flatten(), torch.full((ids.numel(),), 1.0 / ids.numel(), device=h.device)
            )
            self.balance.append(N_EXPERTS * (share * scores.softmax(-1).mean(0)).sum())

        def low_rank(name: str) -> tuple[Tensor, Tensor]:
            return tuple(self.experts[f"{layer}_{name}_{side}"].to(COMPUTE) for side in "ab")

        gate_a, gate_b = low_rank("gate")
        up_a, up_b = low_rank("up")
        down_a, down_b = low_rank("down")
        gate, up = F.linear(h, self.layer_weight(layer, "ffn_gate")), F.linear(h, self.layer_weight(layer, "ffn_up"))
        gate_low, up_low = F.linear(h, gate_a), F.linear(h, up_a)
        total, down_low = 0, 0
        for rank in range(N_USED):
            own = F.one_hot(ids[:, rank], N_EXPERTS).to(COMPUTE).repeat_interleave(RANK, -1)
            inner = F.silu(gate + F.linear(gate_low * own, gate_b)) * (up + F.linear(up_low * own, up_b))
            inner = inner * chosen_weights[:, rank, None].to(COMPUTE)
            total = total + inner
            down_low = down_low + own * F.linear(inner, down_a)
        y = F.linear(total, self.layer_weight(layer, "ffn_down")) + F.linear(down_low, down_b)
        return y.view(shape)

    @torch.no_grad()
    def soften(self, scale: float) -> None:
        """Moves every expert towards the dense model: its low-rank part times `scale` (Wortsman et al. 2022)."""
        for name, value in self.experts.items():
            if name.endswith("_b"):
                value.mul_(scale)

    def save(self, path: Path, **notes: object) -> None:
        staged = path.with_suffix(".part")
        torch.save({"experts": {k: v.detach().cpu() for k, v in self.experts.items()}, "notes": notes}, staged)
        staged.replace(path)

    def restore(self, path: Path) -> dict[str, object]:
        saved = torch.load(path, map_location=self.device, weights_only=True)
        self.experts.load_state_dict(saved["experts"])
        return saved["notes"]


class SharedLoraModel(BaseModel):
    """The control: one LoRA of rank N_USED * RANK for every token, so as many active parameters and no routing."""

    def __init__(self, weights: dict[str, Tensor], device: torch.device | str) -> None:
        super().__init__(weights, device)
        self.experts = ParameterDict()
        draw = torch.Generator().manual_seed(1)
        for layer in range(LAYERS):
            for name, (inputs, outputs) in PROJECTIONS.items():
                a = torch.randn(N_USED * RANK, inputs, generator=draw) / math.sqrt(inputs)
                self.experts[f"{layer}_{name}_a"] = Parameter(a.to(self.device))
                self.experts[f"{layer}_{name}_b"] = Parameter(torch.zeros(outputs, N_USED * RANK, device=self.device))

    def feed_forward(self, layer: int, h: Tensor) -> Tensor:
        def product(name: str, x: Tensor) -> Tensor:
            a, b = (self.experts[f"{layer}_{name}_{side}"].to(COMPUTE) for side in "ab")
            return F.linear(x, self.layer_weight(layer, f"ffn_{name}")) + F.linear(F.linear(x, a), b)

        return product("down", F.silu(product("gate", h)) * product("up", h))
