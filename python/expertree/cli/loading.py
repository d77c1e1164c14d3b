"""From the options of a command to a model in memory, with a progress bar on stderr while that takes a while."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.text import Text

from expertree.cli.options import ModelOptions
from expertree.drafting_memory import drafting_bytes
from expertree.errors import DeviceError
from expertree.model import Model
from expertree.models import resolve_model
from expertree.placement import gpu_text

_USUAL_CONTEXT = 4096  # of sessions that ask for none, at most


def load_model(name_or_path: str | None, options: ModelOptions, drafts: Mapping[str, Any] | None = None) -> Model:
    """Finds, fetches where that is needed, and loads. Raises what `resolve_model` and `Model` raise.

    drafts: what sessions will be given, for which a budget that was not asked for leaves room.
    """
    console = Console(stderr=True, highlight=False)
    path = resolve_model(name_or_path, console)
    reserve = 0
    if drafts is not None and options.ram in (None, "auto"):
        reserve = drafting_bytes(drafts.get("draft"), drafts.get("predict"), path, options.ctx or _USUAL_CONTEXT)
    with _loading_bar(console, path.name) as report, warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        model = Model(
            path,
            threads=options.threads,
            ram=options.ram or "auto",
            policy=options.policy or "auto",
            record=True,
            vram=options.vram or 0,
            isa=options.isa,
            n_ctx=options.ctx,
            cache_type=options.types,
            pre=options.pre,
            reserve=reserve,
            progress=report,
        )
    lines = [str(note.message) for note in notes]
    if model.gpu:
        lines.append(gpu_text(model.gpu))
    for line in lines:
        console.print(Text(f"expertree: {line}"), soft_wrap=True)
    return model


def remember_experts(model: Model) -> None:
    """Saves how experts were used: the next start is warm. A disk that does not take it is no failed run."""
    with suppress(DeviceError):
        model.save_record()


@contextmanager
def _loading_bar(console: Console, name: str) -> Iterator[Callable[[int, int], None] | None]:
    """A function to be called with (bytes done, bytes in all); None where nobody would see the bar."""
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"loading {name}", total=None)

        def report(n_done: int, n_total: int) -> None:
            progress.update(task, completed=n_done, total=n_total)

        yield report
