"""The tiny model whose runs are profiled: its experts are wide enough that reading and running them takes time."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "arch": "qwen3moe",
    "format": "Q8_0",
    "n_embd": 256,
    "n_ff": 256,
    "n_layers": 3,
    "n_experts": 16,
}
