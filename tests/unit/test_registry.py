"""Named models: looking them up, and fetching them with a pip that is played by a small program. No network."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
from collections import namedtuple
from dataclasses import asdict
from pathlib import Path

import pytest
from expertree.errors import Error, InvalidRequestError
from expertree.models import (
    MODELS,
    DownloadError,
    ExpertBuild,
    NamedModel,
    WheelFile,
    cache_folder,
    find_model,
    registry,
    resolve_model,
)
from fake_index import FakeIndex, make_index
from rich.console import Console

CONTENT = bytes(range(256)) * 5000


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeIndex:
    return make_index(tmp_path, monkeypatch, CONTENT)


def test_fetches_once(index: FakeIndex) -> None:
    assert "fetching tiny" in index.fetch()
    assert index.target.read_bytes() == CONTENT
    assert index.leftovers() == []
    index.fetch()
    assert index.n_calls() == 1


def test_a_file_of_another_size_is_replaced(index: FakeIndex) -> None:
    index.target.parent.mkdir(parents=True)
    index.target.write_bytes(b"half")
    index.fetch()
    assert index.target.read_bytes() == CONTENT


@pytest.mark.parametrize("field", ["wheel_sha256", "sha256"])
def test_wrong_hash(index: FakeIndex, field: str) -> None:
    index.source = WheelFile(**{**asdict(index.source), field: "0" * 64})
    with pytest.raises(DownloadError, match=r"wrong SHA-256, expected 0000.*GGUF file that you have"):
        index.fetch()
    assert not index.target.exists()
    assert index.leftovers() == []


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("/usr/bin/python3: No module named pip", "has no pip; run `python -m ensurepip`"),
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "disk is full"),
        (
            "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError'\n"
            "ERROR: Could not find a version\nERROR: No matching distribution found for some-package==1.0",
            r"no connection to the package index \(No matching distribution.*Check the network",
        ),
        ("ERROR: No matching distribution found\x1b[31m", r"No matching distribution found\\x1b\[31m. Check"),
        ("", "no message"),
    ],
)
def test_pip_fails(index: FakeIndex, monkeypatch: pytest.MonkeyPatch, said: str, expected: str) -> None:
    monkeypatch.setenv("FAKE_PIP_MODE", f"say:{said}")
    with pytest.raises(DownloadError, match=expected) as caught:
        index.fetch()
    assert isinstance(caught.value, Error)
    assert "\n" not in str(caught.value)
    assert index.leftovers() == []


def test_a_cache_that_cannot_be_made(index: FakeIndex) -> None:
    index.target.parent.parent.write_text("a file where a folder should be")
    with pytest.raises(DownloadError, match="EXPERTREE_CACHE"):
        index.fetch()


def test_a_full_disk(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 5, 5))
    with pytest.raises(DownloadError, match="5 bytes are free; free some"):
        index.fetch()
    assert index.n_calls() == 0


def test_two_processes_at_once(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PIP_MODE", "slow")
    first = index.start()
    index.wait_for_call()
    second = index.start()
    outputs = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    assert index.n_calls() == 1
    assert index.target.read_bytes() == CONTENT


def test_ctrl_c_leaves_nothing(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PIP_MODE", "stuck")
    process = index.start()
    index.wait_for_call()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert index.leftovers() == []
    assert not index.target.exists()
    with pytest.raises(ProcessLookupError):  # pip ended too
        os.kill(int(index.calls_file.read_text()), 0)


def test_the_next_run_cleans_up_after_a_killed_one(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PIP_MODE", "stuck")
    process = index.start()
    index.wait_for_call()
    process.kill()
    process.communicate(timeout=60)
    os.kill(int(index.calls_file.read_text()), signal.SIGKILL)
    assert len(index.leftovers()) == 1
    monkeypatch.delenv("FAKE_PIP_MODE")
    index.fetch()
    assert index.target.read_bytes() == CONTENT
    assert index.leftovers() == []


@pytest.fixture
def named(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> NamedModel:
    model = NamedModel("tiny", "a model", "MIT", index.source)
    monkeypatch.setattr(registry, "MODELS", (model,))
    monkeypatch.setattr(registry, "DEFAULT_MODEL", "tiny")
    monkeypatch.setenv("EXPERTREE_CACHE", str(index.target.parent.parent))
    return model


def test_names_are_fetched(index: FakeIndex, named: NamedModel) -> None:
    console = Console(file=io.StringIO())
    assert not named.is_present
    assert resolve_model(None, console) == resolve_model("tiny", console) == index.target
    assert named.is_present and named.is_intact()
    assert index.n_calls() == 1
    index.target.write_bytes(CONTENT[::-1])
    assert named.is_present and not named.is_intact()


def test_files_win_over_names(named: NamedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny").write_text("a file called as the model is")
    assert resolve_model("tiny", Console()) == Path("tiny")
    Path("folder").mkdir()
    Path("folder/a.gguf").touch()
    with pytest.raises(InvalidRequestError, match=r"folder is a folder; give a file in it: a\.gguf"):
        resolve_model("folder", Console())
    with pytest.raises(InvalidRequestError, match="folder without GGUF files"):
        resolve_model(str(tmp_path), Console())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nothing.gguf", "no such file"),
        ("no/such/file", "no such file"),
        ("unknown", "or one of: tiny"),
        ("", "or one of: tiny"),
        ("bad\x1b[31m", r"bad\\x1b\[31m"),
    ],
)
def test_neither_file_nor_name(named: NamedModel, name: str, expected: str) -> None:
    with pytest.raises(InvalidRequestError, match=expected):
        resolve_model(name, Console())


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPERTREE_CACHE", "/one")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    assert cache_folder() == Path("/one")
    monkeypatch.delenv("EXPERTREE_CACHE")
    assert cache_folder() == Path("/two/expertree")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path.home() / ".cache/expertree"


def test_the_table_is_sound() -> None:
    assert registry.DEFAULT_MODEL in [model.name for model in MODELS]
    for model in MODELS:
        assert re.fullmatch(r"[a-z0-9.-]+", model.name)
        source = model.source
        digests = [source.sha256]
        if isinstance(source, WheelFile):
            digests.append(source.wheel_sha256)
        else:
            assert isinstance(source, ExpertBuild)
            digests.append(source.parts_sha256)
            assert find_model(source.base_name).source == source.base
        for digest in digests:
            assert re.fullmatch(r"[0-9a-f]{64}", digest)
