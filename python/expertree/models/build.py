"""Building a mixture of experts on the user's machine: a dense model out of a package, and the trained parts that
expertree ships. What each must be is fixed by its hash, and so is the result."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from expertree.errors import DeviceError
from expertree.models.download import WheelFile, fetch
from expertree.models.merge import Written, write_merged
from expertree.models.parts import parts_folder, trained_part
from expertree.models.staging import (
    OTHER_WAY,
    is_complete,
    locked,
    sha256,
    space_fault,
    staging_folder,
    storage_fault,
)
from expertree.quantity_text import bytes_text

_SPARE_BYTES = 32 << 20  # left free beside the file
_MAX_THREADS = 64
_REPAIR = "install expertree again (in a source tree: restore models/default)"


class BuildError(DeviceError):
    """A model could not be built: its trained parts are missing or damaged, the disk, or a result that is wrong."""


@dataclass(frozen=True)
class ExpertBuild:
    """A mixture of experts made from `base` and the trained parts in the file called `parts`."""

    base: WheelFile
    base_name: str  # the named model that the base is: its file in the cache serves both
    parts: str
    parts_sha256: str
    general_name: str
    sha256: str  # of the result
    size_bytes: int

    @property
    def download_bytes(self) -> int:
        """When the base is not here yet."""
        return self.base.wheel_bytes

    @property
    def recipe(self) -> str:
        return f"built from {self.base_name} ({self.base.recipe}) and expertree's own {self.parts}"

    def file_name(self, name: str) -> str:
        """Part of the result's hash is in its name: a file with the name and the size is the current build."""
        return f"{name}-{self.sha256[:12]}.gguf"

    def other_files(self, folder: Path, name: str) -> list[Path]:
        """Builds of other versions of expertree."""
        own = re.compile(re.escape(name) + r"-[0-9a-f]{12}\.gguf")
        current = self.file_name(name)
        return sorted(path for path in folder.glob("*.gguf") if own.fullmatch(path.name) and path.name != current)

    def fault(self) -> str | None:
        """Why it cannot be made here."""
        if trained_part(self.parts) is not None:
            return None
        return f"{parts_folder() / self.parts}: the trained parts are not there; {_REPAIR}"

    def bytes_to_download(self, folder: Path) -> int:
        return 0 if is_complete(self.base, folder / self.base.file_name(self.base_name)) else self.base.wheel_bytes

    def make(self, target: Path, console: Console, name: str) -> None:
        """build(), see there."""
        build(self, target, console, name)


def build(source: ExpertBuild, target: Path, console: Console, name: str) -> None:
    """Makes `target`, fetching the base if it is not in the same folder yet. Several processes may do so at once: one
    works, the others wait. Builds of other versions of expertree are removed when the new one is there.

    Args:
        source: what to build.
        target: where to put it, called source.file_name(name); its folder is made.
        console: for progress; only a line when it is no terminal.
        name: the named model.

    Raises:
        BuildError: see there. Nothing half-made is left behind, then as after Ctrl-C.
        DownloadError: the base could not be fetched.
    """
    doing = f"building {name}"
    try:
        with locked(target.parent / f"{name}.gguf", console, doing):
            if is_complete(source, target):
                return  # another process built it meanwhile
            parts = _checked_parts(source, name)
            _make_room(source, target, console, name)
            base = target.parent / source.base.file_name(source.base_name)
            fetch(source.base, base, console, source.base_name, check_hash=True)
            console.print(
                f"{doing} ({bytes_text(source.size_bytes)}, once) into {target.parent}", markup=False, soft_wrap=True
            )
            with staging_folder(target.parent / f"{name}.gguf") as staging:
                made = staging / target.name
                written = _write(source, base, parts, made, console, doing)
                if written != Written(source.sha256, source.size_bytes):
                    raise _result_error(source, written, name)
                made.replace(target)
            _remove(source.other_files(target.parent, name), console)
    except OSError as error:
        raise BuildError(storage_fault(target, error)) from error


def n_build_threads() -> int:
    """As many as this process may run on."""
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(n, _MAX_THREADS)


def _checked_parts(source: ExpertBuild, name: str) -> Path:
    parts = trained_part(source.parts)
    if parts is None:
        raise BuildError(f"cannot build {name}: {source.fault()}, {OTHER_WAY}")
    found = sha256(parts)
    if found != source.parts_sha256:
        raise BuildError(
            f"cannot build {name}: {parts}: wrong SHA-256, expected {source.parts_sha256[:16]}..., found "
            f"{found[:16]}...; the trained parts are damaged or of another version: {_REPAIR}, {OTHER_WAY}"
        )
    return parts


def _make_room(source: ExpertBuild, target: Path, console: Console, name: str) -> None:
    """Builds of other versions give way when the disk is too full for both."""
    need = source.size_bytes + _SPARE_BYTES
    if source.bytes_to_download(target.parent) > 0:
        need += source.base.wheel_bytes + source.base.size_bytes
    fault = space_fault(target.parent, need, f"building {name}")
    if fault is not None and (others := source.other_files(target.parent, name)):
        _remove(others, console)
        fault = space_fault(target.parent, need, f"building {name}")
    if fault is not None:
        raise BuildError(fault)


def _write(source: ExpertBuild, base: Path, parts: Path, made: Path, console: Console, doing: str) -> Written:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(doing, total=source.size_bytes)
        return write_merged(
            base,
            parts,
            made,
            base_sha256=source.base.sha256,
            name=source.general_name,
            n_threads=n_build_threads(),
            report=lambda n_done, n_total: progress.update(task, completed=n_done, total=n_total),
        )


def _result_error(source: ExpertBuild, written: Written, name: str) -> BuildError:
    return BuildError(
        f"cannot build {name}: the result is wrong: expected {source.size_bytes} bytes with SHA-256 "
        f"{source.sha256[:16]}..., found {written.size_bytes} with {written.sha256[:16]}..., although base and trained "
        f"parts are as they should be. Try again; if it stays so, install expertree and its packages again, {OTHER_WAY}"
    )


def _remove(others: list[Path], console: Console) -> None:
    for path in others:
        path.unlink(missing_ok=True)
        console.print(f"removed {path}, built by another version of expertree", markup=False, soft_wrap=True)
