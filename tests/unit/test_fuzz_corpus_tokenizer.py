"""The inputs that fuzzing kept, as plain tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.fuzz_tokenizer import check_one

CORPUS = sorted((Path(__file__).parents[1] / "fuzz" / "corpus" / "tokenizer").iterdir())


def test_corpus_is_there() -> None:
    assert len(CORPUS) >= 20


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_corpus_file(path: Path) -> None:
    check_one(path.read_bytes())
