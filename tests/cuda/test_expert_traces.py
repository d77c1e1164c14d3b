"""Random copies and runs of experts on the device under AddressSanitizer and ThreadSanitizer, and what becomes of them
without each of the waits."""

from __future__ import annotations

import pytest
from emulated_device import WAITS
from emulated_library import run_program

PROGRAM = "expertree_cuda_experts"


def outcome(variant: str, seed: int, *wait: str, streams: str = "lazy", **settings: object) -> tuple[int, str]:
    done = run_program(PROGRAM + variant, str(seed), *wait, streams=streams, seed=seed, **settings)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("variant", ["", "_asan", "_tsan"])
@pytest.mark.parametrize("streams", ["eager", "lazy", "shuffle"])
def test_nothing_is_wrong(variant: str, streams: str) -> None:
    for seed in range(1, 4):
        status, text = outcome(variant, seed, streams=streams)
        assert status == 0, text


def test_guard_pages_find_nothing() -> None:
    status, text = outcome("", 5, guard=1)
    assert status == 0, text


@pytest.mark.parametrize("wait", WAITS)
def test_the_race_is_seen_without(wait: str) -> None:
    """A race of two streams, or of one with the host, whatever the results: by vector clocks."""
    orders = [(seed, streams) for seed in range(1, 4) for streams in ("lazy", "shuffle")]
    texts = [outcome("_tsan", seed, str(WAITS[wait]), streams=streams) for seed, streams in orders]
    assert any(status == 66 and "data race" in text for status, text in texts), texts[-1][1]
