"""Asynchronous reads: every backend gives the file's bytes, or an error that names file and offset."""

from __future__ import annotations

import os
from pathlib import Path

import expertree
import numpy as np
import pytest
from expertree._core import _testing

SIZE = 3 * 2**20 + 123  # ends inside a sector
BACKENDS = ["io_uring", "threads"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reads") / "data"
    path.write_bytes(np.random.default_rng(1).integers(0, 256, SIZE, dtype=np.uint8).tobytes())
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.close(descriptor)
    return path


def evict(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def read(path: Path, ranges: list[tuple[int, int]], backend: str, *, direct: bool = True, **faults: int):
    rules = _testing.Faults()
    if "descriptor" not in faults:
        faults["descriptor"] = True
    for name, value in faults.items():
        setattr(rules, name, value)
    try:
        return _testing.read_ranges(path.as_posix(), ranges, backend, direct, rules)
    except expertree.UnsupportedError as error:
        pytest.skip(str(error))


RANGES = [(0, 1), (0, 4096), (1, 4096), (511, 2), (4095, 4097), (32, 864 * 1024), (2**20 + 96, 2**20)]
RANGES += [(SIZE - 1, 1), (SIZE - 123, 123), (SIZE - 5000, 5000), (0, SIZE)]


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_bytes_at_any_offset(file: Path, backend: str, direct: bool, cached: bool) -> None:
    evict(file)
    whole = b""
    if cached:
        whole = file.read_bytes()
    results, name, _ = read(file, RANGES * 5, backend, direct=direct)  # more than the ring has entries
    assert name == backend
    whole = file.read_bytes()
    for (offset, size), (data, error) in zip(RANGES * 5, results, strict=True):
        assert error == ""
        assert data == whole[offset : offset + size], (offset, size)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_page_cache_is_left_as_it_was(file: Path, backend: str, direct: bool) -> None:
    file.read_bytes()
    if not _testing.is_cached(file.as_posix(), 0, 2**20):
        pytest.skip("this system does not tell what is in its page cache (Linux before 6.5)")
    read(file, [(0, 2**20)], backend, direct=direct)
    assert _testing.is_cached(file.as_posix(), 0, 2**20)  # somebody else's: not taken away
    evict(file)
    read(file, [(0, 2**20)], backend, direct=direct)
    assert not _testing.is_cached(file.as_posix(), 0, 4096)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_failing_read_fails_alone(file: Path, backend: str) -> None:
    evict(file)
    ranges = [(i * 65536, 65536) for i in range(40)]
    results, _, _ = read(file, ranges, backend, direct=backend == "io_uring", fail_every=7)
    whole = file.read_bytes()
    failed = [i for i, (_, error) in enumerate(results) if error]
    assert 3 <= len(failed) <= 8
    for i, (data, error) in enumerate(results):
        if i in failed:
            assert str(file) in error
            assert f"at byte {ranges[i][0]}" in error
        else:
            assert data == whole[ranges[i][0] : sum(ranges[i])]


@pytest.mark.parametrize(
    "faults", [{"max_read_bytes": 700}, {"interrupt_every": 3}, {"delay_every": 5, "delay_us": 3000}]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_short_interrupted_and_slow_reads_are_continued(file: Path, backend: str, faults: dict[str, int]) -> None:
    evict(file)
    ranges = [(i * 30000 + 32, 30000) for i in range(30)]
    rules = _testing.Faults(**{k: v for k, v in faults.items() if k in ("max_read_bytes", "interrupt_every")})
    for name in ("delay_every", "delay_us"):
        setattr(rules, name, faults.get(name, 0))
    whole = file.read_bytes()
    evict(file)
    for descriptor in (True, False):
        rules.descriptor = descriptor
        try:
            results, _, _ = _testing.read_ranges(file.as_posix(), ranges, backend, True, rules)
        except expertree.UnsupportedError as error:
            pytest.skip(str(error))
        assert [error for _, error in results] == [""] * len(ranges)
        assert all(data == whole[o : o + n] for (data, _), (o, n) in zip(results, ranges, strict=True))


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_file_cut_or_changed_meanwhile(tmp_path: Path, backend: str, direct: bool) -> None:
    """`read_ranges` opens the file and reads at once, so the file is cut by a fault that says so."""
    path = tmp_path / "cut"
    path.write_bytes(bytes(100000))
    rules = _testing.Faults(end_at=50000)  # no descriptor: reads go through the seam
    results, _, _ = _testing.read_ranges(path.as_posix(), [(0, 40000), (40000, 20000)], backend, direct, rules)
    assert results[0][1] == ""
    assert "now ends at byte 50000" in results[1][1]


def test_an_unknown_backend_is_refused(file: Path) -> None:
    with pytest.raises(expertree.InvalidRequestError, match="io_uring, threads"):
        _testing.read_ranges(file.as_posix(), [(0, 1)], "dma", True, _testing.Faults())
