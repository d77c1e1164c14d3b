"""Which part of a model would be where: GPU, RAM or disk. Loads nothing."""

from __future__ import annotations

from typing import Any

from expertree.device import several_devices_text
from expertree.model_description import Experts, Need, Placement, Tier

# As in cpp/model/open_vram.cpp: what "auto" leaves to others.
_LEFT_SHARE, _MOST_LEFT_BYTES = 8, 512 * 2**20
# As in cpp/model/scratch_size.h and cpp/experts/vram_plan.cpp: rows of a batch, and most bytes of its outputs.
_BATCH_ROWS, _MOST_OUTPUT_BYTES = 512, 64 * 2**20


def gpu_tier(need: Need, device: dict[str, Any] | None, why_none: str) -> Tier:
    if device is None:
        return Tier("GPU", None, None, f"none: {why_none}")
    note = f"{device['name']} ({device['backend']}); experts may be kept there: --vram auto"
    if device["devices"] > 1:
        note += f". {several_devices_text(device)}"
    return Tier("GPU", need.expert_bytes, int(device["free_bytes"]), note)


def gpu_budget(device: dict[str, Any] | None) -> int:
    """Bytes that --vram auto takes at most."""
    if device is None:
        return 0
    free = int(device["free_bytes"])
    return free - min(free // _LEFT_SHARE, _MOST_LEFT_BYTES)


def buffer_bytes(width: int | None, n_ff: int | None, n_used: int) -> int:
    """About what running experts takes on the GPU beside them: inputs, what lies between gate and down, outputs."""
    width, n_ff = width or 0, n_ff or width or 0
    pairs = min(_BATCH_ROWS * n_used, max(_BATCH_ROWS, _MOST_OUTPUT_BYTES // max(1, 4 * width)))
    return 5 * (_BATCH_ROWS * width + pairs * n_ff) + 4 * pairs * width


def place(
    need: Need, experts: Experts | None, available_bytes: int | None, device: dict[str, Any] | None, buffers: int
) -> list[Placement]:
    """One entry per part and place. Experts go where they cost least: the most used ones to the GPU as far as there is
    room, then to RAM, the rest stays on disk."""
    fixed = need.other_weight_bytes + (need.kv_cache_bytes or 0) + need.recurrent_bytes + need.working_bytes
    parts = [
        Placement("attention, norms, routers, shared experts, head", "RAM", need.other_weight_bytes, ""),
        Placement("KV cache and states", "RAM", (need.kv_cache_bytes or 0) + need.recurrent_bytes, ""),
    ]
    if experts is None:
        return parts
    per_expert = max(1, experts.total_bytes // (experts.n_layers * experts.n_experts))
    room = max(0, gpu_budget(device) - buffers)
    on_gpu = min(experts.total_bytes, room // per_expert * per_expert)
    if on_gpu > 0:
        parts.append(Placement("experts, those used most", "GPU", on_gpu, f"beside about {buffers // 2**20} MiB"))
    rest = experts.total_bytes - on_gpu
    in_ram = rest if available_bytes is None else max(0, min(rest, available_bytes - fixed))
    if in_ram > 0:
        parts.append(Placement("experts", "RAM", in_ram, "those that the GPU has are given up first" if on_gpu else ""))
    if rest > in_ram:
        parts.append(Placement("experts", "disk", rest - in_ram, "read when a token needs them"))
    return parts
