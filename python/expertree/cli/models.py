"""`expertree models`: the models known by name."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console

from expertree.cli.options import command
from expertree.models import DEFAULT_MODEL, MODELS, DownloadError, NamedModel, find_model, models_folder
from expertree.quantity_text import bytes_text

SCHEMA = "expertree.models/1"

models_app = typer.Typer(invoke_without_command=True, rich_markup_mode="rich")


def _state_text(model: NamedModel) -> str:
    if model.is_present:
        return "here"
    fault = model.source.fault()
    if fault is not None:
        return f"cannot be made here: {fault}"
    n_bytes = model.source.bytes_to_download(models_folder())
    return f"not here yet: {bytes_text(n_bytes) if n_bytes else 'nothing'} to download"


def _list_text(model: NamedModel) -> list[str]:
    default = " (the default)" if model.name == DEFAULT_MODEL else ""
    return [
        f"{model.name}{default}",
        f"  {model.description}",
        f"  {bytes_text(model.source.size_bytes)}, {model.licence}, {_state_text(model)}",
        f"  {model.source.recipe}",
        f"  {model.path}",
    ]


def _list_json() -> str:
    rows = [
        {
            "name": model.name,
            "is_default": model.name == DEFAULT_MODEL,
            "description": model.description,
            "licence": model.licence,
            "recipe": model.source.recipe,
            "size_bytes": model.source.size_bytes,
            "download_bytes": model.source.download_bytes,
            "sha256": model.source.sha256,
            "path": str(model.path),
            "is_present": model.is_present,
            "is_available": model.is_present or model.source.fault() is None,
        }
        for model in MODELS
    ]
    return json.dumps({"schema": SCHEMA, "models": rows})


@command
def models(
    context: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The models that expertree has, can get or can build: size, licence, how they are made, and where they lie.

    They lie in models/ of the folder that EXPERTREE_CACHE names, or else of expertree in your cache folder.

    [bold]Examples[/bold]

      expertree models
      expertree models fetch smollm2-8x135m
      expertree models remove smollm2-8x135m
    """
    if context.invoked_subcommand is None:
        print(_list_json() if as_json else "\n".join(line for model in MODELS for line in _list_text(model)))


@command
def fetch(name: Annotated[str, typer.Argument(help="The model's name.")] = DEFAULT_MODEL) -> None:
    """Get or build a model now, or check one that is here. Without a name: the default model."""
    model = find_model(name)
    if not model.is_present:
        print(model.fetch(Console(stderr=True, highlight=False)))
    elif model.is_intact():
        print(f"{model.path}\nit is here already, and whole", file=sys.stderr)
    else:
        raise DownloadError(
            f"{model.path}: its contents changed; `expertree models remove {name}`, then fetch it again"
        )


@command
def remove(name: Annotated[str, typer.Argument(help="The model's name.")]) -> None:
    """Delete the file of a model. It is fetched or built again when it is used."""
    removed = find_model(name).remove()
    for path in removed:
        print(f"removed {path}")
    if not removed:
        print(f"{name} is not here", file=sys.stderr)


models_app.callback()(models)
models_app.command("fetch")(fetch)
models_app.command("remove")(remove)
