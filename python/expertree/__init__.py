"""expertree: run Mixture-of-Experts language models on one machine, with the same bits every time.

>>> import expertree
>>> model = expertree.Model("model.gguf")
>>> model.generate("The capital of France is", max_tokens=8).text
"""

from __future__ import annotations

from expertree.errors import (
    Cancelled,
    DeviceError,
    Error,
    InvalidRequestError,
    ModelFormatError,
    OutOfMemoryError,
    UnsupportedError,
)
from expertree.generation import Generation
from expertree.model import Model
from expertree.session import Session, Step

__version__ = "0.1.0"

__all__ = [
    "Cancelled",
    "DeviceError",
    "Error",
    "Generation",
    "InvalidRequestError",
    "Model",
    "ModelFormatError",
    "OutOfMemoryError",
    "Session",
    "Step",
    "UnsupportedError",
    "__version__",
]
