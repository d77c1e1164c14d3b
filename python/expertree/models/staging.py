"""Making a file in the cache: in a folder beside its target, renamed into place when it is whole, by one process.

At any moment there is the whole file or none. Whatever an interrupted run left behind is removed by the next one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from rich.console import Console

from expertree.quantity_text import bytes_text, safe_text

OTHER_WAY = "or give the path of a GGUF file that you have"
_CHUNK_BYTES = 1 << 20


class KnownFile(Protocol):
    """What a file must be."""

    @property
    def sha256(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...


def is_complete(source: KnownFile, path: Path) -> bool:
    """Whether the file is there with its right size. Its hash was checked before it got its name."""
    try:
        return path.is_file() and path.stat().st_size == source.size_bytes
    except OSError:
        return False


def has_right_hash(source: KnownFile, path: Path) -> bool:
    """Reads the whole file."""
    try:
        return sha256(path) == source.sha256
    except OSError:
        return False


@contextmanager
def locked(target: Path, console: Console, doing: str) -> Iterator[None]:
    """Holds the lock of `target`, waiting for it; removes what ended processes left. Makes the folder.

    doing: what the process that holds it does, for the line that says so: "fetching NAME".
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target, console, doing) as is_alone:
        if is_alone:
            for folder in target.parent.glob(f"{_prefix(target)}*"):
                shutil.rmtree(folder, ignore_errors=True)
        yield


@contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """A new folder beside `target`; it and what is still in it are removed at the end."""
    staging = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def space_fault(folder: Path, need: int, doing: str) -> str | None:
    """What to say when less than `need` bytes are free."""
    free = shutil.disk_usage(folder).free
    if free >= need:
        return None
    return (
        f"{folder}: {doing} takes {bytes_text(need)} of disk for a while, {bytes_text(free)} are free; "
        "free some, or name another folder in EXPERTREE_CACHE"
    )


def storage_fault(target: Path, error: OSError) -> str:
    """What to say when the system refused to write."""
    where = error.filename if isinstance(error.filename, str) else str(target)
    remedy = "name a folder that you can write to in EXPERTREE_CACHE"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free some space, or name another folder in EXPERTREE_CACHE"
    return f"{safe_text(where, 300)}: {error.strerror or error}; {remedy}"


def sync(stream: IO[bytes]) -> None:
    """To the disk, so that a file never gets its name before its contents."""
    stream.flush()
    os.fsync(stream.fileno())


def chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK_BYTES):
        yield chunk


def sha256(path: Path, report: Callable[[int], object] = lambda n_bytes: None) -> str:
    """report is called with the number of bytes read so far."""
    digest, n_bytes = hashlib.sha256(), 0
    with path.open("rb") as stream:
        for chunk in chunks(stream):
            digest.update(chunk)
            n_bytes += len(chunk)
            report(n_bytes)
    return digest.hexdigest()


@contextmanager
def _lock(target: Path, console: Console, doing: str) -> Iterator[bool]:
    """False where the file system has no locks."""
    try:
        import fcntl
    except ImportError:
        yield False
        return
    with (target.parent / f".{target.name}.lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print(f"waiting for another process that is {doing}", markup=False, soft_wrap=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            yield False
            return
        yield True  # the kernel gives the lock back when the file is closed, however the process ends


def _prefix(target: Path) -> str:
    return f".{target.name}.part-"
