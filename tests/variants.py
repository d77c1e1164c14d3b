"""Random models of every architecture: shapes, options and optional tensors drawn from a seed.

`draw(NAME, seed)` decides everything by the seed: layers, heads, KV heads, head sizes, rotary embedding and its
scaling, windows, experts and their routing, scales, biases, tied output, weight formats. What llama.cpp cannot run is
not drawn.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from variant_model import N_VOCAB, VariantModel
from variants_plain import (
    draw_delta_net,
    draw_granitemoe,
    draw_lfm2moe,
    draw_llama,
    draw_olmoe,
    draw_phimoe,
    draw_qwen2,
    draw_qwen2moe,
    draw_qwen3,
    draw_qwen3moe,
)
from variants_routed import (
    draw_bailingmoe2,
    draw_dbrx,
    draw_deepseek2,
    draw_ernie,
    draw_glm4moe,
    draw_grok,
    draw_hunyuan,
    draw_minimax_m2,
    draw_shared,
)
from variants_windowed import (
    draw_exaone,
    draw_gemma3,
    draw_gemma4,
    draw_gpt_oss,
    draw_llama4,
    draw_mimo2,
    draw_smallthinker,
)

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


NEXTN = ("qwen35", "qwen35moe", "qwen3next", "glm4moe")  # may carry a block that predicts a further token


@dataclass
class Job:
    """What to run: a prompt, tokens that are taken back, and those fed instead."""

    tokens: list[int]
    wrong: list[int]
    right: list[int]


def job_of(seed: int) -> Job:
    """Prompts of 5 to 150 tokens."""
    choice = np.random.RandomState(seed + 17)
    sizes = (int(choice.choice([5, 17, 40, 70, 150])), choice.randint(1, 8), choice.randint(1, 8))
    return Job(*[choice.randint(0, N_VOCAB, size).tolist() for size in sizes])


def checksum(model: VariantModel) -> int:
    """Of all that decides what the model computes."""
    text = json.dumps([model.arch, model.n_ctx, model.written_keys(), model.formats], sort_keys=True)
    value = zlib.crc32(text.encode())
    for name in sorted(model.tensors):
        value = zlib.crc32(np.ascontiguousarray(model.tensors[name]).tobytes(), zlib.crc32(name.encode(), value))
    return value


def draw(arch: str, seed: int, *, quantised: bool = False, nextn: bool = False) -> VariantModel:
    """The model of a seed; quantised: most matrices each in a format of its own."""
    model = VariantModel(arch, seed, wide=quantised, nextn=nextn)
    DRAWN[arch](model)
    if quantised:
        model.draw_formats()
    return model
