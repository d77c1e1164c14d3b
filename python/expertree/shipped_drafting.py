"""Names in `draft` and `predict` that mean parts which expertree ships for its own model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from expertree import _core
from expertree.models.parts import EAGLE3, MEDUSA, PREDICTOR, is_for, trained_part

_DRAFT_PARTS = {"eagle3": EAGLE3, "medusa": MEDUSA}
_PREDICT_PARTS = {"head": PREDICTOR}


def draft_name(name: str, metadata: Callable[[], Mapping[str, Any]]) -> str | None:
    """What `name` comes to for the model with this metadata; None is no drafting.

    "auto": the shipped EAGLE-3 head where the model is the one that it was trained for, else "ngram". "eagle3" and
    "medusa" without a file: the shipped heads, in a merge ("eagle3+ngram"), too. "none": None. All else stays as it is.
    """
    if name == "none":
        return None
    if name == "auto":
        return _with_part("eagle3", EAGLE3, metadata) or "ngram"
    return "+".join(_with_part(part, _DRAFT_PARTS.get(part), metadata) or part for part in _core.split_drafters(name))


def predictor_name(name: str | None, draft: object, metadata: Callable[[], Mapping[str, Any]]) -> str | None:
    """The same for predictors. None: the trained one with the shipped EAGLE-3 head, which feeds it, else "last"."""
    if name is None:
        head = f"eagle3:{trained_part(EAGLE3)}"
        is_fed = isinstance(draft, str) and head in _core.split_drafters(draft)
        return (_with_part("head", PREDICTOR, metadata) if is_fed else None) or "last"
    return None if name == "none" else _with_part(name, _PREDICT_PARTS.get(name), metadata) or name


def _with_part(name: str, part: str | None, metadata: Callable[[], Mapping[str, Any]]) -> str | None:
    path = None if part is None else trained_part(part)
    return f"{name}:{path}" if path is not None and is_for(metadata()) else None
