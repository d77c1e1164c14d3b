"""Models known by name: where they come from and where they lie."""

from __future__ import annotations

from expertree.models.build import BuildError, ExpertBuild
from expertree.models.download import DownloadError, WheelFile
from expertree.models.parts import trained_part
from expertree.models.registry import (
    DEFAULT_MODEL,
    MODELS,
    NamedModel,
    cache_folder,
    find_model,
    models_folder,
    resolve_model,
)

__all__ = [
    "DEFAULT_MODEL",
    "MODELS",
    "BuildError",
    "DownloadError",
    "ExpertBuild",
    "NamedModel",
    "WheelFile",
    "cache_folder",
    "find_model",
    "models_folder",
    "resolve_model",
    "trained_part",
]
