"""`expertree inspect`: what is in a model file, and whether it would run here."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer
from rich.console import Console

from expertree.cli.options import CacheOptions, check_draft, command
from expertree.drafting_memory import drafting_parts, part_label
from expertree.inspect_model import describe, render
from expertree.memory_size import parse_size
from expertree.models import resolve_model

SCHEMA = "expertree.inspect/1"


@command
def inspect(
    model: Annotated[str, typer.Argument(help="A GGUF file, or a name that `expertree models` lists.")],
    *,
    ctx: Annotated[
        int, typer.Option("--ctx", min=1, metavar="N", help="Context length to reckon the memory for, in tokens.")
    ] = 4096,
    ram: Annotated[
        list[str] | None,
        typer.Option("--ram", metavar="SIZE", help="Predict for this budget of memory for experts; repeatable."),
    ] = None,
    cache: CacheOptions,
    draft: Annotated[
        str | None,
        typer.Option("--draft", metavar="NAME", callback=check_draft, help="Reckon with this drafter's memory, too."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """What is in a model file, and whether it would fit this machine, tier by tier. Loads nothing.

    [bold]Examples[/bold]

      expertree inspect model.gguf
      expertree inspect model-00001-of-00003.gguf --ctx 32768
      expertree inspect model.gguf --ram 8GiB --ram 12GiB
      expertree inspect model.gguf --draft eagle3:head.gguf
      expertree inspect model.gguf --json | jq .verdict

    Predicted speeds come from what earlier runs of this model on this machine measured.
    """
    path = resolve_model(model, Console(stderr=True, highlight=False))
    parts = drafting_parts(draft, None, path, ctx)
    drafting = {part_label(part.name): part.weight_bytes + part.state_bytes for part in parts}
    budgets = [_budget(text) for text in ram or []]
    description = describe(path, ctx, budgets=budgets, cache_types=cache.types, drafting=drafting)
    if as_json:
        print(json.dumps({"schema": SCHEMA, **dataclasses.asdict(description)}))
    else:
        render(description, Console(highlight=False))


def _budget(text: str) -> int:
    size = parse_size(text)
    if size is None:
        raise typer.BadParameter(f"{text!r} is no size; give for example 6GiB", param_hint="--ram")
    return size
