"""Random copies and runs of experts, calls of dense products, and layers that run as a whole, on the device.

Under AddressSanitizer and ThreadSanitizer, and what becomes of them without each of the waits.
"""

from __future__ import annotations

import pytest
from emulated_device import DENSE_WAITS, LAYER_WAITS, WAITS
from emulated_library import run_program

PROGRAMS = {"experts": WAITS, "dense": DENSE_WAITS, "layers": LAYER_WAITS}


def outcome(
    program: str, variant: str, seed: int, *wait: str, streams: str = "lazy", **settings: object
) -> tuple[int, str]:
    done = run_program(f"expertree_cuda_{program}{variant}", str(seed), *wait, streams=streams, seed=seed, **settings)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("variant", ["", "_asan", "_tsan"])
@pytest.mark.parametrize("streams", ["eager", "lazy", "shuffle"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_is_wrong(program: str, variant: str, streams: str) -> None:
    for seed in range(1, 4):
        status, text = outcome(program, variant, seed, streams=streams)
        assert status == 0, text


@pytest.mark.parametrize("program", PROGRAMS)
def test_guard_pages_find_nothing(program: str) -> None:
    status, text = outcome(program, "", 5, guard=1)
    assert status == 0, text


@pytest.mark.parametrize(("program", "wait"), [(name, wait) for name, waits in PROGRAMS.items() for wait in waits])
def test_the_race_is_seen_without(program: str, wait: str) -> None:
    """A race of two streams, or of one with the host, whatever the results: by vector clocks."""
    orders = [(seed, streams) for seed in range(1, 4) for streams in ("lazy", "shuffle")]
    texts = [outcome(program, "_tsan", seed, str(PROGRAMS[program][wait]), streams=streams) for seed, streams in orders]
    assert any(status == 66 and "data race" in text for status, text in texts), texts[-1][1]
