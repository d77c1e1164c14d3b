"""The errors that expertree raises.

Everything is under `Error`; the C++ core raises these same classes through its binding.
"""

from __future__ import annotations


class Error(Exception):
    """Base class of every error that expertree raises on purpose."""


class ModelFormatError(Error):
    """The model file is malformed or contradicts itself."""


class UnsupportedError(Error):
    """The file or request is well formed, but asks for something expertree does not do."""


class OutOfMemoryError(Error):
    """A memory budget or the machine's memory does not suffice."""


class DeviceError(Error):
    """A device (GPU, disk) failed."""


class InvalidRequestError(Error):
    """The caller's arguments are wrong."""


class Cancelled(Error):
    """The running work was stopped on request."""
