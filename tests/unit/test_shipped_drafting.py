"""Names that stand for the shipped heads, or for whatever drafts best with the model at hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import expertree
import pytest
from expertree.models.parts import EAGLE3, GENERAL_NAME, MEDUSA, PREDICTOR, trained_part
from expertree.shipped_drafting import draft_name, predictor_name

Loader = Callable[..., expertree.Model]
QWEN = {"arch": "qwen3moe", "format": "Q8_0"}
OURS = {"general.name": GENERAL_NAME}
OTHER = {"general.name": "another model"}


def of(metadata: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    return lambda: metadata


def unread() -> dict[str, Any]:
    raise AssertionError("metadata was read where no name depends on it")


def test_auto_takes_the_head_of_the_default_model_and_ngram_for_others() -> None:
    head = f"eagle3:{trained_part(EAGLE3)}"
    assert draft_name("auto", of(OURS)) == draft_name("eagle3", of(OURS)) == head
    assert draft_name("medusa", of(OURS)) == f"medusa:{trained_part(MEDUSA)}"
    assert draft_name("auto", of(OTHER)) == "ngram"
    assert draft_name("none", of(OURS)) is None
    for name in ("eagle3", "medusa", "eagle3:mine.gguf", "ngram"):
        assert draft_name(name, of(OTHER)) == name


def test_the_trained_predictor_comes_with_the_head_that_feeds_it() -> None:
    head = draft_name("auto", of(OURS))
    assert predictor_name(None, head, of(OURS)) == f"head:{trained_part(PREDICTOR)}"
    for draft, metadata in (("ngram", OURS), (head, OTHER), ("eagle3:mine.gguf", OURS), (object(), OURS)):
        assert predictor_name(None, draft, of(metadata)) == "last"
    assert predictor_name(None, "ngram", unread) == "last" and draft_name("ngram", unread) == "ngram"
    assert predictor_name("none", head, of(OURS)) is None
    assert predictor_name("token-table", head, of(OURS)) == "token-table"


def test_auto_on_a_model_without_a_head(load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    drafted = model.generate([1, 2, 3] * 4, max_tokens=24, ignore_eos=True, draft="auto", select="all")
    assert drafted.stats["drafted"] > 0
    assert drafted.tokens == model.generate([1, 2, 3] * 4, max_tokens=24, ignore_eos=True, draft="none").tokens
    with pytest.raises(expertree.InvalidRequestError, match="needs an argument"):
        model.session(draft="eagle3")
    with pytest.raises(expertree.InvalidRequestError, match="needs a drafter"):
        model.session(draft="none", select="all")


def test_the_parts_are_those_of_the_model_in_the_table() -> None:
    from expertree.models.registry import DEFAULT_MODEL, MODELS

    source = next(model.source for model in MODELS if model.name == DEFAULT_MODEL)
    assert getattr(source, "general_name", None) == GENERAL_NAME
    assert Path(trained_part(EAGLE3) or "").is_file()
