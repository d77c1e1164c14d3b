"""Prints a `ModelDescription` for a person. No text of the file reaches the terminal unescaped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expertree.chat_sample import ChatSample
from expertree.expert_plan import Residency
from expertree.model_description import Experts, FormatUse, ModelDescription, Need, Tier, Tokenizer
from expertree.quantity_text import bytes_text, count_text, numbers_text, safe_text

if TYPE_CHECKING:
    from rich.console import Console


_SAMPLE_LINES = 40


def render(description: ModelDescription, console: Console) -> None:
    """Prints a description for a person."""
    from rich.table import Table
    from rich.text import Text

    for title, rows in _sections(description):
        table = Table(
            title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False
        )
        for _ in range(max(len(row) for row in rows)):
            table.add_column(overflow="fold")
        for row in rows:
            table.add_row(*(Text(safe_text(cell, 400)) for cell in row))
        console.print(table)
        console.print()
    style = {"ram": "green", "paged": "yellow", "no": "red"}.get(description.verdict.fits, "")
    console.print(Text(safe_text(description.verdict.text, 1000), style=style))
    if description.verdict.remedy is not None:
        console.print(Text(safe_text(description.verdict.remedy, 1000)))


def _sections(d: ModelDescription) -> list[tuple[str, list[tuple[str, ...]]]]:
    sections: list[tuple[str, list[tuple[str, ...]]]] = [
        ("Model", _model_rows(d)),
        ("Experts", _expert_rows(d.experts) if d.experts is not None else []),
        ("Formats", _format_rows(d.formats)),
        ("Tokenizer", _tokenizer_rows(d.tokenizer)),
        ("A conversation as the model reads it", _sample_rows(d.tokenizer.chat_sample, with_tool=False)),
        ("The same with a tool", _sample_rows(d.tokenizer.chat_sample, with_tool=True)),
        ("Memory", _need_rows(d.need)),
        ("Experts in memory, by --ram", [_residency_row(row) for row in d.residency]),
        ("This machine", [_tier_row(tier) for tier in d.tiers]),
        ("Problems", [(problem,) for problem in d.problems]),
    ]
    return [(title, rows) for title, rows in sections if rows]


def _model_rows(d: ModelDescription) -> list[tuple[str, ...]]:
    active = "" if d.n_active_parameters is None else f", {count_text(d.n_active_parameters)} active per token"
    rows: list[tuple[str, ...]] = [
        ("file", Path(d.path).name),
        ("name", d.name or "?"),
        ("architecture", d.architecture or "?"),
        ("parameters", count_text(d.n_parameters) + active),
        ("layers", numbers_text(d.n_layers)),
        ("width", numbers_text(d.width)),
        ("heads", f"{numbers_text(d.n_heads)} (key/value: {numbers_text(d.n_kv_heads)})"),
        ("trained context", _optional(d.n_ctx_train, lambda n: f"{n:,} tokens")),
        ("size", f"{bytes_text(d.file_bytes)}, GGUF version {d.gguf_version}, alignment {d.alignment}"),
    ]
    if len(d.parts) > 1:
        rows += [(f"part {i + 1}", f"{Path(p.path).name} ({bytes_text(p.size_bytes)})") for i, p in enumerate(d.parts)]
    return rows


def _expert_rows(experts: Experts) -> list[tuple[str, ...]]:
    shared = "" if not experts.n_shared else f", and {experts.n_shared:,} shared"
    rows: list[tuple[str, ...]] = [
        ("used per token", f"{numbers_text(experts.n_used)} of {experts.n_experts:,}{shared}"),
        ("layers with experts", f"{experts.n_layers:,}"),
        ("one expert", bytes_text(experts.bytes_per_expert)),
        ("all experts", bytes_text(experts.total_bytes)),
    ]
    for p in experts.projections:
        rows.append((f"{p.name} in {p.format}", f"{bytes_text(p.bytes_per_expert)} per expert, {p.n_layers:,} layers"))
    return rows


def _format_rows(formats: list[FormatUse]) -> list[tuple[str, ...]]:
    total = sum(use.size_bytes for use in formats)
    return [
        (
            use.format,
            bytes_text(use.size_bytes),
            f"{100 * use.size_bytes / total:.1f} %",
            f"{use.n_tensors:,} tensors",
            "" if use.is_supported else "not run by this build",
        )
        for use in formats
    ]


def _tokenizer_rows(tokenizer: Tokenizer) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("model", f"{safe_text(tokenizer.model or '?')} (pre-tokenizer: {safe_text(tokenizer.pre or '?')})"),
        ("vocabulary", _optional(tokenizer.n_vocab, lambda n: f"{n:,} tokens")),
    ]
    for token in tokenizer.special_tokens:
        rows.append((token.role, f"{token.id:,} {safe_text(token.text or '', 60)}".rstrip()))
    rows.append(("chat template", "yes" if tokenizer.has_chat_template else "no"))
    return rows


def _sample_rows(sample: ChatSample | None, *, with_tool: bool) -> list[tuple[str, ...]]:
    text = None if sample is None else sample.text_with_tool if with_tool else sample.text
    if sample is None or text is None:
        return []
    lines = text.split("\n")
    rows: list[tuple[str, ...]] = [(line,) for line in lines[:_SAMPLE_LINES]]
    if len(lines) > _SAMPLE_LINES:
        rows.append((f"({len(lines) - _SAMPLE_LINES} more lines)",))
    if not with_tool and not sample.has_system:
        rows.append(("(the template takes no system message)",))
    if not with_tool and sample.opens_reasoning:
        rows.append(("(the answer begins inside a reasoning section)",))
    return rows


def _need_rows(need: Need) -> list[tuple[str, ...]]:
    cache = f"KV cache of {need.n_ctx:,} tokens, {_cache_text(need.cache_types)}"
    rows: list[tuple[str, ...]] = [
        ("expert weights", bytes_text(need.expert_bytes)),
        ("other weights", bytes_text(need.other_weight_bytes)),
        (cache, _optional(need.kv_cache_bytes, bytes_text)),
    ]
    if need.recurrent_bytes > 0:
        rows.append(("recurrent state", bytes_text(need.recurrent_bytes)))
    rows += [(f"drafting: {name}", bytes_text(size_bytes)) for name, size_bytes in need.drafting_bytes.items()]
    rows.append(("working memory (estimate)", bytes_text(need.working_bytes)))
    return rows


def _cache_text(types: tuple[str, str]) -> str:
    keys, values = types
    return keys if keys == values else f"keys {keys}, values {values}"


def _residency_row(row: Residency) -> tuple[str, ...]:
    speed = "speed not measured here yet" if row.tokens_per_second is None else f"{row.tokens_per_second:.1f} tokens/s"
    return (
        bytes_text(row.ram_bytes),
        f"{row.resident_share:.0%} of the experts",
        f"{row.hit_rate:.0%} of uses from memory",
        f"{bytes_text(int(row.read_bytes_per_token))} read per token",
        speed,
    )


def _tier_row(tier: Tier) -> tuple[str, ...]:
    if tier.need_bytes is None:
        return (tier.name, "-", "-", tier.note)
    available = _optional(tier.available_bytes, bytes_text)
    what = "free" if tier.name == "disk" else "available"
    return (tier.name, f"{bytes_text(tier.need_bytes)} in all", f"{available} {what}", tier.note)


def _optional(value: Any, show: Callable[[Any], str]) -> str:
    return "?" if value is None else show(value)
