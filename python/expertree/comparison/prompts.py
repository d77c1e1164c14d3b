"""The prompts of the comparison: by category, one user message each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from expertree.errors import InvalidRequestError

CATEGORIES = ("chat", "code", "mathematics", "summarising", "question-answering", "translation")

_HERE = Path(__file__).resolve().parent
_PACKAGED = _HERE / "prompts"
_REPOSITORY = _HERE.parents[2]


@dataclass(frozen=True)
class Prompt:
    """category: the name of the file that it stands in. id: unique in a folder. text: what the user says."""

    category: str
    id: str
    text: str


def prompts_folder() -> Path:
    """The project's own prompts: of the repository in an editable installation, else beside this file."""
    is_repository = (_REPOSITORY / "pyproject.toml").is_file() and _HERE == _REPOSITORY / "python/expertree/comparison"
    return _REPOSITORY / "tests" / "data" / "prompts" if is_repository else _PACKAGED


def load_prompts(
    folder: Path | None = None, categories: Sequence[str] = (), per_category: int | None = None
) -> list[Prompt]:
    """The first `per_category` prompts of each category, one category after the other.

    Args:
        folder: of files CATEGORY.jsonl with an object {"id", "text"} a line; None takes the project's own.
        categories: which files; none takes all, the project's in their own order.

    Raises:
        InvalidRequestError: no such folder or category, or a line that is no prompt.
    """
    place = prompts_folder() if folder is None else folder
    found = {path.stem: path for path in sorted(place.glob("*.jsonl"))}
    known = [name for name in CATEGORIES if name in found] + [name for name in found if name not in CATEGORIES]
    if not known:
        raise InvalidRequestError(f"{place}: no prompts (files CATEGORY.jsonl); give another folder with --prompts")
    for name in categories:
        if name not in found:
            raise InvalidRequestError(f"{place}: no category {name!r}; there are: {', '.join(known)}")
    prompts: list[Prompt] = []
    for name in categories or known:
        prompts += _read(found[name])[:per_category]
    return prompts


def _read(path: Path) -> list[Prompt]:
    prompts: list[Prompt] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            entry = json.loads(line)
            prompt = Prompt(path.stem, str(entry["id"]), entry["text"])
        except (ValueError, LookupError, TypeError) as error:
            raise InvalidRequestError(f'{path}:{number}: expected {{"id": ..., "text": ...}}: {error}') from error
        if not isinstance(prompt.text, str) or not prompt.text.strip():
            raise InvalidRequestError(f"{path}:{number}: the text of {prompt.id} is empty")
        prompts.append(prompt)
    if len({prompt.id for prompt in prompts}) != len(prompts):
        raise InvalidRequestError(f"{path}: an id occurs twice")
    return prompts
