"""What is in a GGUF file, and whether it would run on this machine: `expertree inspect`.

`describe` reads a file into a `ModelDescription`; `render` prints one. Files come from strangers: a key of an
unexpected type or value becomes `None` or a line in `problems`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, Protocol

from expertree.chat_sample import render_sample
from expertree.device import find_device
from expertree.errors import DeviceError, ModelFormatError, OutOfMemoryError
from expertree.expert_plan import MERGED_EXPERTS, ONE_EXPERT, Residency, layer_slots, predict
from expertree.expert_record import load_record, record_path
from expertree.inspect_report import render
from expertree.kv_cache import kv_bytes_per_token
from expertree.machine_memory import MachineMemory, read_machine_memory
from expertree.model_description import (
    Experts,
    FormatUse,
    ModelDescription,
    Need,
    Part,
    Projection,
    SpecialToken,
    Tier,
    Tokenizer,
    Verdict,
)
from expertree.placement import buffer_bytes, dense_parts, gpu_tier, place
from expertree.quantity_text import bytes_text, numbers_text

__all__ = ["ModelDescription", "describe", "render"]

# Not measured per model: the process itself, logits, and the activations of one batch.
WORKING_BYTES = 256 * 2**20
# Whether experts may stay on disk until a token needs them (cpp/experts).
HAS_EXPERT_PAGING = True
# Of the experts, where no budget is asked for.
_SHOWN_SHARES = (0.25, 0.5, 0.75, 1.0)

_RECURRENT = re.compile(r"^blk\.(\d{1,6})\.(ssm_conv1d|shortconv\.conv)\.weight$")


class TensorRow(Protocol):
    """As `expertree._core.GgufTensor`."""

    name: str
    type: str
    shape: tuple[int, ...]
    size_bytes: int
    offset: int
    is_supported: bool


def describe(
    path: str | Path,
    n_ctx: int = 4096,
    memory: MachineMemory | None = None,
    budgets: Sequence[int] = (),
    cache_types: tuple[str, str] = ("f32", "f32"),
    drafting: Mapping[str, int] | None = None,
) -> ModelDescription:
    """Reads the file (of a split set, the first part) and this machine's memory, or takes `memory` instead.

    `budgets`: bytes of memory for experts whose residency and speed to predict; those that are too small are problems.
    `cache_types`: formats of keys and of values, to reckon the KV cache in.
    `drafting`: bytes of what sessions will draft with, by name (`drafting_memory`).

    Raises what `GgufReader` raises: `ModelFormatError`, `UnsupportedError`, `InvalidRequestError`, `DeviceError`.
    """
    from expertree._core import GgufReader

    reader = GgufReader(path)
    facts = _Facts(reader)
    tensors: list[TensorRow] = reader.tensors
    problems: list[str] = []
    experts, min_expert_bytes = _experts(tensors, facts, problems)
    memory = read_machine_memory() if memory is None else memory
    need = replace(
        _need(tensors, facts, experts, min_expert_bytes, n_ctx, cache_types), drafting_bytes=dict(drafting or {})
    )
    device, why_none = find_device()
    n_used = 1 if experts is None or experts.n_used is None else max(1, _largest(experts.n_used))
    buffers = buffer_bytes(facts.arch_int("embedding_length"), facts.arch_int("expert_feed_forward_length"), n_used)
    formats = _formats(tensors)
    parts = [Part(part, Path(part).stat().st_size) for part in reader.paths]
    return ModelDescription(
        path=str(path),
        parts=parts,
        file_bytes=reader.file_bytes,
        gguf_version=reader.version,
        alignment=reader.alignment,
        architecture=facts.architecture,
        name=facts.text("general.name"),
        n_parameters=sum(prod(tensor.shape) for tensor in tensors),
        n_active_parameters=_active_parameters(tensors, experts),
        n_layers=facts.arch_int("block_count"),
        width=facts.arch_int("embedding_length"),
        n_heads=facts.arch_ints("attention.head_count"),
        n_kv_heads=facts.arch_ints("attention.head_count_kv"),
        n_ctx_train=facts.arch_int("context_length"),
        experts=experts,
        formats=formats,
        tokenizer=_tokenizer(facts, problems),
        need=need,
        memory=memory,
        tiers=[gpu_tier(need, device, why_none), *_tiers(need, memory, reader.file_bytes, Path(reader.paths[0]))],
        verdict=_verdict(facts.architecture, need, memory, formats),
        residency=_residency(Path(reader.paths[0]), tensors, experts, budgets, problems),
        placement=place(
            need,
            experts,
            dense_parts(tensors, facts.arch_int("block_count")),
            memory.available_bytes,
            device,
            buffers,
        ),
        problems=problems,
    )


class _Facts:
    """Metadata look-ups that give None for what is absent or of another type."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._keys = set(reader.keys)
        self.architecture = self.text("general.architecture")

    @property
    def keys(self) -> list[str]:
        return list(self._reader.keys)

    def value(self, key: str) -> Any:
        return self._reader.value(key) if key in self._keys else None

    def text(self, key: str) -> str | None:
        value = self.value(key)
        if isinstance(value, bytes):
            return value.decode("utf-8", errors="backslashreplace")
        return value if isinstance(value, str) else None

    def integer(self, key: str) -> int | None:
        value = self.value(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def arch_int(self, key: str) -> int | None:
        return self.integer(f"{self.architecture}.{key}")

    def arch_ints(self, key: str) -> int | list[int] | None:
        """A number, or one per layer; a list of equal numbers is given as one."""
        value = self.value(f"{self.architecture}.{key}")
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if getattr(getattr(value, "dtype", None), "kind", "") not in ("i", "u") or len(value) == 0:
            return None
        numbers = [int(number) for number in value]
        return numbers[0] if len(set(numbers)) == 1 else numbers

    def texts(self, key: str) -> list[str | bytes] | None:
        value = self.value(key)
        return value if isinstance(value, list) else None


def _smallest(value: int | list[int]) -> int:
    return min(value) if isinstance(value, list) else value


def _largest(value: int | list[int]) -> int:
    return max(value) if isinstance(value, list) else value


def _formats(tensors: list[TensorRow]) -> list[FormatUse]:
    by_format: dict[str, list[TensorRow]] = {}
    for tensor in tensors:
        by_format.setdefault(tensor.type, []).append(tensor)
    uses = [
        FormatUse(
            name,
            rows[0].is_supported,
            len(rows),
            sum(prod(row.shape) for row in rows),
            sum(row.size_bytes for row in rows),
        )
        for name, rows in by_format.items()
    ]
    return sorted(uses, key=lambda use: (-use.size_bytes, use.format))


def _is_expert(tensor: TensorRow) -> bool:
    return MERGED_EXPERTS.match(tensor.name) is not None or ONE_EXPERT.match(tensor.name) is not None


def _experts(tensors: list[TensorRow], facts: _Facts, problems: list[str]) -> tuple[Experts | None, int]:
    """The experts, and the most bytes that one token's experts take in one layer."""
    # (layer, projection) -> format, bytes of one expert's matrix
    matrices: dict[tuple[int, str], tuple[str, int]] = {}
    layer_bytes: dict[int, int] = {}
    n_experts = 0
    for tensor in tensors:
        merged, single = MERGED_EXPERTS.match(tensor.name), ONE_EXPERT.match(tensor.name)
        if merged is None and single is None:
            continue
        match = merged or single
        assert match is not None
        layer, projection = int(match[1]), match[2]
        n = tensor.shape[-1] if merged else 1
        n_experts = max(n_experts, tensor.shape[-1] if merged else int(match[3]) + 1)
        if match[match.lastindex or 0] == "weight":
            matrices[layer, projection] = (tensor.type, tensor.size_bytes // n)
        layer_bytes[layer] = layer_bytes.get(layer, 0) + tensor.size_bytes
    if not layer_bytes:
        return None, 0
    n_used = facts.arch_ints("expert_used_count")
    _check_expert_counts(n_experts, n_used, facts, problems)
    counted: dict[tuple[str, str, int], int] = {}
    for (_, projection), (format_name, size) in matrices.items():
        counted[projection, format_name, size] = counted.get((projection, format_name, size), 0) + 1
    experts = Experts(
        n_experts=n_experts,
        n_used=n_used,
        n_shared=facts.arch_int("expert_shared_count"),
        n_layers=len(layer_bytes),
        projections=[Projection(*key, n_layers) for key, n_layers in counted.items()],
        bytes_per_expert=max(layer_bytes.values()) // n_experts,
        total_bytes=sum(layer_bytes.values()),
    )
    most_used = max(1, min(_largest(n_used if n_used is not None else 1), n_experts))
    return experts, experts.bytes_per_expert * most_used


def _check_expert_counts(n_experts: int, n_used: int | list[int] | None, facts: _Facts, problems: list[str]) -> None:
    said = facts.arch_int("expert_count")
    if said is not None and said != n_experts:
        problems.append(f"expert_count is {said:,} but the tensors hold {n_experts:,} experts")
    if n_used is None:
        problems.append("expert_used_count is missing: the file does not say how many experts a token uses")
    elif _smallest(n_used) < 1 or _largest(n_used) > n_experts:
        problems.append(f"expert_used_count is {numbers_text(n_used)}, of {n_experts:,} experts")


def _active_parameters(tensors: list[TensorRow], experts: Experts | None) -> int | None:
    """Parameters that one token meets: not the experts it does not use, nor an embedding table with its own output."""
    if experts is None or experts.n_used is None:
        return None
    used = max(0, min(_largest(experts.n_used), experts.n_experts))
    is_tied = all(tensor.name != "output.weight" for tensor in tensors)
    expert_elements = other_elements = 0
    for tensor in tensors:
        if _is_expert(tensor):
            expert_elements += prod(tensor.shape)
        elif is_tied or tensor.name != "token_embd.weight":
            other_elements += prod(tensor.shape)
    return other_elements + expert_elements * used // experts.n_experts


def _recurrent_bytes(tensors: list[TensorRow], facts: _Facts) -> int:
    """What one sequence takes for layers with a recurrent state, F32 (cpp/model/recurrent_state.h): some states, each
    the matrices and the convolution's last inputs, and the terms of some rows: inputs and two numbers per head."""
    from expertree._core import RECURRENT_STATES, RECURRENT_TERMS

    n_layers = sum(1 for tensor in tensors if _RECURRENT.match(tensor.name))
    inner, state = facts.arch_int("ssm.inner_size") or 0, facts.arch_int("ssm.state_size") or 0
    groups, heads = facts.arch_int("ssm.group_count") or 0, facts.arch_int("ssm.time_step_rank") or 0
    taps, channels = facts.arch_int("ssm.conv_kernel") or 1, inner + 2 * groups * state
    short_taps, width = facts.arch_int("shortconv.l_cache"), facts.arch_int("embedding_length")
    if short_taps is not None and width is not None:
        taps, channels = short_taps, width
    per_state = inner * state + max(0, taps - 1) * channels
    per_row = channels + 2 * heads
    return max(0, 4 * n_layers * (int(RECURRENT_STATES) * per_state + int(RECURRENT_TERMS) * per_row))


def _need(
    tensors: list[TensorRow],
    facts: _Facts,
    experts: Experts | None,
    min_expert_bytes: int,
    n_ctx: int,
    cache_types: tuple[str, str],
) -> Need:
    per_token = kv_bytes_per_token(tensors, facts, cache_types)
    expert_bytes = experts.total_bytes if experts is not None else 0
    return Need(
        n_ctx=n_ctx,
        expert_bytes=expert_bytes,
        min_expert_bytes=min_expert_bytes,
        other_weight_bytes=sum(tensor.size_bytes for tensor in tensors) - expert_bytes,
        kv_cache_bytes=int(per_token * n_ctx) if per_token is not None else None,
        cache_types=cache_types,
        recurrent_bytes=_recurrent_bytes(tensors, facts),
        working_bytes=WORKING_BYTES,
    )


def _tokenizer(facts: _Facts, problems: list[str]) -> Tokenizer:
    tokens = facts.texts("tokenizer.ggml.tokens")
    special = []
    for key in facts.keys:
        match = re.fullmatch(r"tokenizer\.ggml\.(\w{1,40})_token_id", key)
        token_id = facts.integer(key)
        if match is None or token_id is None:
            continue
        role, text = match[1], None
        if tokens is not None and 0 <= token_id < len(tokens):
            raw = tokens[token_id]
            text = raw.decode("utf-8", errors="backslashreplace") if isinstance(raw, bytes) else raw
        elif tokens is not None:
            problems.append(f"the {role} token is {token_id:,}, the vocabulary has {len(tokens):,}")
        special.append(SpecialToken(role, token_id, text))
    template = facts.text("tokenizer.chat_template")
    texts = {token.role: token.text or "" for token in special}
    sample = None
    if template is not None:
        sample = render_sample(template, texts.get("bos", ""), texts.get("eos", ""), problems)
    return Tokenizer(
        model=facts.text("tokenizer.ggml.model"),
        pre=facts.text("tokenizer.ggml.pre"),
        n_vocab=len(tokens) if tokens is not None else None,
        special_tokens=special,
        has_chat_template=template is not None,
        chat_sample=sample,
    )


def _fixed_bytes(need: Need) -> int:
    """What must be in memory whatever happens to the experts."""
    running = need.other_weight_bytes + (need.kv_cache_bytes or 0) + need.recurrent_bytes + need.working_bytes
    return running + sum(need.drafting_bytes.values())


def _tiers(need: Need, memory: MachineMemory, file_bytes: int, first_part: Path) -> list[Tier]:
    ram_note = ""
    if memory.limit_bytes is not None:
        ram_note = f"a control group allows {bytes_text(memory.limit_bytes)}"
    disk_note = "the file is there"
    if HAS_EXPERT_PAGING:
        disk_note += "; experts that do not fit in RAM are read from it"
    try:
        free_bytes: int | None = shutil.disk_usage(first_part.parent).free
    except OSError:
        free_bytes = None
    return [
        Tier("RAM", _fixed_bytes(need) + need.expert_bytes, memory.available_bytes, ram_note),
        Tier("disk", file_bytes, free_bytes, disk_note),
    ]


def _residency(
    path: Path, tensors: list[TensorRow], experts: Experts | None, budgets: Sequence[int], problems: list[str]
) -> list[Residency]:
    """One entry per budget, from what earlier runs on this machine measured."""
    from expertree._core import direct_read_alignment

    layers = layer_slots(tensors, int(direct_read_alignment(str(path)))) if experts is not None else []
    if experts is None or experts.n_used is None or not layers:
        return []
    total = sum(layer.n_experts * layer.slot_bytes for layer in layers)
    try:
        record = load_record(record_path(path))
    except (ModelFormatError, DeviceError) as error:
        problems.append(str(error))
        record = None
    n_used = max(1, min(_largest(experts.n_used), experts.n_experts))
    found = []
    for budget in budgets or [int(share * total) for share in _SHOWN_SHARES]:
        try:
            found.append(predict(layers, budget, n_used, record))
        except OutOfMemoryError as error:
            if budgets:
                problems.append(str(error))
    return found


def _verdict(architecture: str | None, need: Need, memory: MachineMemory, formats: list[FormatUse]) -> Verdict:
    from expertree._core import architecture_names

    refused = [use.format for use in formats if not use.is_supported]
    if not formats:
        return Verdict("no", "The file holds no weights.", "Give a model's file, not one with the vocabulary alone.")
    if refused:
        return Verdict(
            "no",
            f"It holds tensors in formats that this build does not run: {', '.join(sorted(refused))}.",
            "Get the model in another format, such as Q4_K_M or Q8_0.",
        )
    if architecture not in architecture_names():
        return Verdict(
            "no",
            f"This build does not run the architecture {architecture or '(none named)'}.",
            f"It runs {', '.join(architecture_names())}.",
        )
    available = memory.available_bytes
    if available is None:
        return Verdict("unknown", "This system does not say how much memory is available.", None)
    fixed = _fixed_bytes(need)
    if fixed + need.expert_bytes <= available:
        return Verdict("ram", "It fits in RAM with all its experts.", None)
    if HAS_EXPERT_PAGING and need.expert_bytes > 0 and fixed + need.min_expert_bytes <= available:
        room = available - fixed
        share = 100 * room // need.expert_bytes
        return Verdict(
            "paged",
            f"It runs with paging: {bytes_text(room)} of {bytes_text(need.expert_bytes)} of experts ({share} %) fit in "
            "RAM at once, the others are read from disk when a token needs them.",
            "A smaller quantisation or more free memory makes it faster; a fast disk matters.",
        )
    least = fixed + (need.min_expert_bytes if HAS_EXPERT_PAGING else need.expert_bytes)
    return Verdict(
        "no",
        f"It does not fit: at least {bytes_text(least)} of RAM are needed, {bytes_text(available)} are available.",
        _remedy(need, memory, available - least),
    )


def _remedy(need: Need, memory: MachineMemory, spare: int) -> str:
    """`spare`: available bytes less those needed at least; negative."""
    kv_bytes = need.kv_cache_bytes or 0
    per_token = kv_bytes // need.n_ctx if need.n_ctx > 0 else 0
    n_ctx = (spare + kv_bytes) // per_token if per_token > 0 else 0
    if n_ctx >= 256:
        return f"Use a shorter context: --ctx {n_ctx // 256 * 256}."
    if memory.limit_source is not None:
        return f"Raise the memory limit ({memory.limit_source}), close other programs, or take a smaller quantisation."
    return "Close other programs, or take a smaller quantisation or a smaller model."
