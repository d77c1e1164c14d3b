"""The trained parts that expertree ships: `models/default/*.gguf` of the repository.

An installed package has them beside this file, an editable installation reads the repository's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

GENERAL_NAME = "SmolLM2-8x135M-Instruct (expertree)"  # general.name of the model that they belong to
EXPERTS = "experts.gguf"  # routers and low-rank deltas: what build.py merges into the base
EAGLE3 = "eagle3.gguf"
MEDUSA = "medusa.gguf"
PREDICTOR = "predictor.gguf"

_HERE = Path(__file__).resolve().parent
_PACKAGED = _HERE / "default"
_REPOSITORY = _HERE.parents[2]


def parts_folder() -> Path:
    """Where they lie; it may be missing."""
    is_repository = (_REPOSITORY / "pyproject.toml").is_file() and _HERE == _REPOSITORY / "python/expertree/models"
    return _REPOSITORY / "models" / "default" if is_repository else _PACKAGED


def trained_part(name: str) -> Path | None:
    """The file called `name` (EXPERTS, EAGLE3, MEDUSA, PREDICTOR), or None when this installation has none."""
    path = parts_folder() / name
    return path if path.is_file() else None


def is_for(metadata: Mapping[str, Any]) -> bool:
    """Whether the model with this metadata is the one that the parts were trained for."""
    return metadata.get("general.name") == GENERAL_NAME
