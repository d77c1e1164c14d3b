"""expertree: run Mixture-of-Experts language models on one machine, with the same bits every time.

>>> import expertree
>>> model = expertree.Model("model.gguf")
>>> model.generate("The capital of France is", max_tokens=8).text
"""

from __future__ import annotations

from expertree.cache_policy import CachePolicy
from expertree.engine import Engine
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
from expertree.session import Session
from expertree.speculation import (
    Drafter,
    DraftLimits,
    DraftTree,
    Predictor,
    ScriptedDrafter,
    Selector,
    Step,
    StepCost,
)

__version__ = "0.1.0"

__all__ = [
    "CachePolicy",
    "Cancelled",
    "DeviceError",
    "DraftLimits",
    "DraftTree",
    "Drafter",
    "Engine",
    "Error",
    "Generation",
    "InvalidRequestError",
    "Model",
    "ModelFormatError",
    "OutOfMemoryError",
    "Predictor",
    "ScriptedDrafter",
    "Selector",
    "Session",
    "Step",
    "StepCost",
    "UnsupportedError",
    "__version__",
]
