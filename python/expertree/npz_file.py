"""Reading the .npz files that expertree writes: whatever else a file may be becomes one kind of error."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from expertree.errors import InvalidRequestError

_FAULTS = (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, NotImplementedError, RuntimeError)


@contextmanager
def reading_npz(path: str | os.PathLike[str], expected: str, remedy: str) -> Iterator[Any]:
    """The file's arrays by name, for the time of a block that makes something of them.

    Args:
        expected: what the file should hold, for the message. remedy: how to get one.

    Raises:
        InvalidRequestError: it cannot be read, is of another kind, or the block found something missing or wrong.
    """
    try:
        with np.load(path) as saved:
            yield saved
    except (*_FAULTS, zipfile.BadZipFile, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if os.path.isfile(path) and not zipfile.is_zipfile(path):  # noqa: PTH113
            reason = "this is no .npz file"
        raise InvalidRequestError(f"{path}: no {expected}: {reason}; {remedy}") from error
