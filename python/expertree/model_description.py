"""What `expertree inspect` knows of a file: plain data, ready for JSON with `dataclasses.asdict`.

`None` stands for what the file does not say, or says with an unexpected type.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from expertree.chat_sample import ChatSample
from expertree.expert_plan import Residency
from expertree.machine_memory import MachineMemory


@dataclass(frozen=True)
class Part:
    path: str
    size_bytes: int


@dataclass(frozen=True)
class FormatUse:
    """How much of the file is in one format."""

    format: str
    is_supported: bool
    n_tensors: int
    n_elements: int
    size_bytes: int


@dataclass(frozen=True)
class Projection:
    """One matrix of every expert of some layers."""

    name: str  # gate, up, down; gate_up where both are one tensor
    format: str
    bytes_per_expert: int
    n_layers: int


@dataclass(frozen=True)
class Experts:
    n_experts: int
    n_used: int | list[int] | None  # chosen per token
    n_shared: int | None  # always used; part of the non-expert weights
    n_layers: int  # that have experts
    projections: list[Projection]
    bytes_per_expert: int  # all projections, largest layer
    total_bytes: int


@dataclass(frozen=True)
class SpecialToken:
    role: str  # bos, eos, ...
    id: int
    text: str | None


@dataclass(frozen=True)
class Tokenizer:
    model: str | None
    pre: str | None
    n_vocab: int | None
    special_tokens: list[SpecialToken]
    has_chat_template: bool
    chat_sample: ChatSample | None = None  # a conversation through the template


@dataclass(frozen=True)
class Need:
    """Bytes that running would take, by what for."""

    n_ctx: int
    expert_bytes: int
    min_expert_bytes: int  # the experts that one token uses in one layer; fewer would run, one after another
    other_weight_bytes: int
    kv_cache_bytes: int | None  # keys and values of n_ctx tokens; None when the file does not say enough
    recurrent_bytes: int
    working_bytes: int  # an estimate
    cache_types: tuple[str, str] = ("f32", "f32")  # formats of keys and of values
    drafting_bytes: dict[str, int] = field(default_factory=dict)  # by part: its weights and a session's state


@dataclass(frozen=True)
class Tier:
    name: str
    need_bytes: int | None
    available_bytes: int | None
    note: str


@dataclass(frozen=True)
class Verdict:
    fits: str  # "ram", "paged", "no" or "unknown"
    text: str
    remedy: str | None


@dataclass(frozen=True)
class ModelDescription:
    path: str
    parts: list[Part]
    file_bytes: int
    gguf_version: int
    alignment: int
    architecture: str | None
    name: str | None
    n_parameters: int
    n_active_parameters: int | None
    n_layers: int | None
    width: int | None
    n_heads: int | list[int] | None
    n_kv_heads: int | list[int] | None
    n_ctx_train: int | None
    experts: Experts | None
    formats: list[FormatUse]
    tokenizer: Tokenizer
    need: Need
    memory: MachineMemory
    tiers: list[Tier]
    verdict: Verdict
    residency: list[Residency] = field(default_factory=list)  # by budget
    problems: list[str] = field(default_factory=list)
