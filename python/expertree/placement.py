"""Which part of a model would be where: GPU, RAM or disk. Loads nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from expertree.device import several_devices_text
from expertree.model_description import Experts, Need, Placement, Tier
from expertree.quantity_text import bytes_text

# As in cpp/model/open_vram.cpp: what "auto" leaves to others.
_LEFT_SHARE, _MOST_LEFT_BYTES = 8, 512 * 2**20
# As in cpp/model/scratch_size.h and cpp/experts/vram_plan.cpp: rows of a batch, and most bytes of its outputs.
_BATCH_ROWS, _MOST_OUTPUT_BYTES = 512, 64 * 2**20


def gpu_tier(need: Need, device: dict[str, Any] | None, why_none: str) -> Tier:
    if device is None:
        return Tier("GPU", None, None, f"none: {why_none}")
    note = f"{device['name']} ({device['backend']}); the model may be kept there: --vram auto"
    if device["devices"] > 1:
        note += f". {several_devices_text(device)}"
    return Tier("GPU", need.other_weight_bytes + need.expert_bytes, int(device["free_bytes"]), note)


def gpu_budget(device: dict[str, Any] | None) -> int:
    """Bytes that --vram auto takes at most."""
    if device is None:
        return 0
    free = int(device["free_bytes"])
    return free - min(free // _LEFT_SHARE, _MOST_LEFT_BYTES)


def buffer_bytes(width: int | None, n_ff: int | None, n_used: int) -> int:
    """About what running a model takes on the GPU beside it: inputs, what lies between gate and down, outputs; of a
    batch of experts and of a dense product."""
    width, n_ff = width or 0, n_ff or width or 0
    pairs = min(_BATCH_ROWS * n_used, max(_BATCH_ROWS, _MOST_OUTPUT_BYTES // max(1, 4 * width)))
    dense = _BATCH_ROWS * (5 * width + 5 * n_ff + 4 * 2 * width)
    return 5 * (_BATCH_ROWS * width + pairs * n_ff) + 4 * pairs * width + dense


_LAYER = re.compile(r"^blk\.(\d{1,6})\.(.+)\.weight$")
# As in cpp/model/dense_parts.cpp: what every token needs and a GPU may have, in the order in which it goes there.
_GROUPS = (
    ("attention", re.compile(r"attn_(q|k|v|qkv|output|gate|q_a|q_b|kv_a_mqa)")),
    ("recurrent layers", re.compile(r"ssm_(in|out|ba|alpha|beta)|shortconv\.(in|out)_proj")),
    ("dense feed-forward", re.compile(r"ffn_(gate|up|down)")),
    ("shared experts", re.compile(r"ffn_(gate|up|down)_shexp")),
)
_ATTENTION, _RECURRENT = 0, 1


# As in cpp/model/sequence_state.h: cells for a tree; and cuda/kernels/attention.cu: most memory for scores.
_TREE_CELLS, _MOST_SCORE_BYTES = 512, 64 * 2**20


@dataclass(frozen=True)
class DensePart:
    """A layer's share of a group, or the head."""

    group: str
    size_bytes: int
    formats: frozenset[str]
    is_latent: bool = False


class _Tensor(Protocol):
    name: str
    type: str
    size_bytes: int


def dense_parts(tensors: Sequence[_Tensor], n_layers: int | None) -> list[DensePart]:
    """In the order in which they go to a GPU. Blocks behind the last layer are a drafter's."""
    found: dict[tuple[int, int], list[_Tensor]] = {}
    matches = [_LAYER.match(tensor.name) for tensor in tensors]
    recurrent = {int(match[1]) for match in matches if match and _GROUPS[_RECURRENT][1].fullmatch(match[2])}
    heads = {tensor.name: tensor for tensor in tensors if tensor.name in ("output.weight", "token_embd.weight")}
    for tensor, match in zip(tensors, matches, strict=True):
        if match is None or (n_layers is not None and int(match[1]) >= n_layers):
            continue
        layer = int(match[1])
        for i, (_, names) in enumerate(_GROUPS):
            if names.fullmatch(match[2]):
                i = _RECURRENT if i == _ATTENTION and layer in recurrent else i
                found.setdefault((i, layer), []).append(tensor)
    parts = [_part(_GROUPS[i][0], found[i, layer]) for i, layer in sorted(found)]
    head = heads.get("output.weight") or heads.get("token_embd.weight")
    return parts if head is None else [*parts, _part("head", [head])]


def _part(group: str, tensors: Sequence[_Tensor]) -> DensePart:
    is_latent = any("kv_a_mqa" in tensor.name for tensor in tensors)
    formats = frozenset(tensor.type for tensor in tensors)
    return DensePart(group, sum(tensor.size_bytes for tensor in tensors), formats, is_latent)


def _dense_on_gpu(parts: Sequence[DensePart], room: int, formats: Sequence[str]) -> list[Placement]:
    """As far as there is room. RAM has a copy."""
    groups: dict[str, list[DensePart]] = {}
    for part in parts:
        groups.setdefault(part.group, []).append(part)
    placed = []
    for group, members in groups.items():
        there = []
        for part in members:
            if part.formats <= set(formats) and part.size_bytes <= room:
                room -= part.size_bytes
                there.append(part)
        note = "" if len(there) == len(members) else f"of {len(there)} of {len(members)} layers"
        if there:
            placed.append(Placement(group, "GPU", sum(part.size_bytes for part in there), note))
    return placed


def _cells_on_gpu(need: Need, parts: Sequence[DensePart], on_gpu: Sequence[Placement], room: int) -> list[Placement]:
    """Keys and values of one session, if attention of all layers and they find room."""
    attention = [part for part in parts if part.group == "attention"]
    all_there = any(placed.what == "attention" and not placed.note for placed in on_gpu)
    if not all_there or need.kv_cache_bytes is None:
        return []
    if any(part.is_latent for part in attention):
        return []
    size_bytes = need.kv_cache_bytes * (need.n_ctx + _TREE_CELLS) // need.n_ctx
    if size_bytes + _MOST_SCORE_BYTES > room:
        return []
    return [Placement("KV cache", "GPU", size_bytes, "beside at most 64 MiB for scores")]


def place(
    need: Need,
    experts: Experts | None,
    parts: Sequence[DensePart],
    available_bytes: int | None,
    device: dict[str, Any] | None,
    buffers: int,
) -> list[Placement]:
    """One entry per part and place. What every token needs goes to the GPU first. Experts go where they cost least: the
    most used ones to the GPU as far as there is room, then to RAM, the rest stays on disk."""
    fixed = need.other_weight_bytes + (need.kv_cache_bytes or 0) + need.recurrent_bytes + need.working_bytes
    per_expert = 0 if experts is None else max(1, experts.total_bytes // (experts.n_layers * experts.n_experts))
    room = max(0, gpu_budget(device) - buffers)
    on_gpu = [] if device is None else _dense_on_gpu(parts, max(0, room - per_expert), device["formats"])
    room -= sum(part.size_bytes for part in on_gpu)
    cells = _cells_on_gpu(need, parts, on_gpu, room - per_expert)
    room -= sum(part.size_bytes + _MOST_SCORE_BYTES for part in cells)
    copies = "what the GPU has is a copy" if on_gpu else ""
    placed = [
        *on_gpu,
        *cells,
        Placement("all but experts: norms, routers, ..", "RAM", need.other_weight_bytes, copies),
        Placement(
            "KV cache and states", "RAM", (need.kv_cache_bytes or 0) + need.recurrent_bytes, copies if cells else ""
        ),
    ]
    if experts is None:
        return placed
    experts_on_gpu = min(experts.total_bytes, room // per_expert * per_expert)
    if experts_on_gpu > 0:
        note = f"beside about {buffers // 2**20} MiB"
        placed.append(Placement("experts, those used most", "GPU", experts_on_gpu, note))
    rest = experts.total_bytes - experts_on_gpu
    in_ram = rest if available_bytes is None else max(0, min(rest, available_bytes - fixed))
    if in_ram > 0:
        note = "those that the GPU has are given up first" if experts_on_gpu else ""
        placed.append(Placement("experts", "RAM", in_ram, note))
    if rest > in_ram:
        placed.append(Placement("experts", "disk", rest - in_ram, "read when a token needs them"))
    return placed


def gpu_text(gpu: dict[str, Any]) -> str:
    """What a loaded model (`Model.gpu`) has where, in a line."""
    there, here = [], []
    for part in gpu["parts"]:
        share = "" if part["of"] == 1 else f"{part['n']} of {part['of']} "
        if part["place"] == "GPU":
            what = f"{share}layers" if part["n"] < part["of"] else bytes_text(part["bytes"])
            there.append(f"room for {share}experts" if part["part"] == "experts" else f"{part['part']} ({what})")
        elif part["part"] != "experts":
            some = f"{share}layers: " if part["n"] < part["of"] else ""
            here.append(f"{part['part']} ({some}{part['note']})")
    rest = f"; on the CPU: {', '.join(here)}" if here else ""
    return f"on {gpu['device']['name']}, {bytes_text(gpu['budget_bytes'])}: {', '.join(there)}{rest}"
