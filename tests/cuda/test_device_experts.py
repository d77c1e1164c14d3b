"""The device's side by itself: random copies and runs under every order of streams, and each wait taken away. The
reference is the same work where each call ends at once (its bits are the CPU's: test_vram.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated_device import STREAMS, WAITS, drop_wait, emulated, leaks, library
from expertree._core import _testing

N_EMBD, N_FF, N_EXPERTS, N_SLOTS, N_INPUTS, MAX_PAIRS = 64, 32, 6, 4, 5, 24
LAYERS = ([("Q8_0", N_FF, N_EMBD), ("Q8_0", N_FF, N_EMBD), ("Q8_0", N_EMBD, N_FF)],) * 2


@pytest.fixture(autouse=True)
def _device() -> None:
    library()


def matrices(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    parts = []
    for form, rows, k in LAYERS[0]:
        values = (rng.standard_normal((rows, k)) / np.sqrt(k)).astype(np.float32)
        parts.append(np.asarray(_testing.quantize(form, values)).tobytes())
    return b"".join(parts)


EXPERTS = {(layer, e): matrices(100 * layer + e) for layer in range(2) for e in range(N_EXPERTS)}


def trial() -> Any:
    return _testing.DeviceTrial("emulated", list(LAYERS), N_EXPERTS, N_SLOTS, N_EMBD, N_INPUTS, MAX_PAIRS)


def inputs(seed: int, n: int = N_INPUTS) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, N_EMBD)).astype(np.float32)


def reference(layer: int, expert: int, x: np.ndarray, rows: list[int]) -> np.ndarray:
    """One expert by itself, each call completing at once."""
    with emulated():
        alone = trial()
        alone.copy(0, layer, EXPERTS[layer, expert])
        alone.begin(layer, x)
        alone.run([(0, expert, rows)])
        outputs: np.ndarray = alone.wait()
        return outputs


class Outputs:
    """All rows of all experts, made once."""

    def __init__(self, x: np.ndarray) -> None:
        self.of = {key: reference(*key, x, list(range(len(x)))) for key in EXPERTS}

    def rows(self, layer: int, runs: list[tuple[int, list[int]]]) -> np.ndarray:
        return np.concatenate([self.of[layer, e][rows] for e, rows in runs])


@pytest.fixture(scope="module")
def known() -> dict[int, Outputs]:
    library()
    return {seed: Outputs(inputs(seed)) for seed in range(2)}


def random_work(device: Any, known: dict[int, Outputs], seed: int, n_batches: int = 25) -> None:
    """Copies into slots whatever they hold, batches of several runs, some of which nobody waits for."""
    rng = np.random.default_rng(seed)
    held: dict[int, tuple[int, int]] = {}
    for _ in range(n_batches):
        layer, x_seed = int(rng.integers(2)), int(rng.integers(2))
        begun, runs_done = False, []
        for _ in range(int(rng.integers(1, 4))):
            for _ in range(int(rng.integers(0, 3))):
                slot, key = int(rng.integers(N_SLOTS)), (int(rng.integers(2)), int(rng.integers(N_EXPERTS)))
                device.copy(slot, key[0], EXPERTS[key])
                held[slot] = key
            here = {e: slot for slot, (at, e) in held.items() if at == layer}
            if not here:
                continue
            if not begun:
                device.begin(layer, inputs(x_seed))
                begun = True
            chosen = [e for e in here if rng.random() < 0.7] or [next(iter(here))]
            runs = [(e, sorted(rng.choice(N_INPUTS, int(rng.integers(1, 3)), replace=False).tolist())) for e in chosen]
            device.run([(here[e], e, rows) for e, rows in runs])
            runs_done += runs
        if begun and rng.random() < 0.8:
            assert (device.wait() == known[x_seed].rows(layer, runs_done)).all()


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("seed", range(5))
def test_random_copies_and_runs(streams: str, seed: int, known: dict[int, Outputs]) -> None:
    with emulated(streams=streams, seed=seed + 1):
        random_work(trial(), known, seed)
    assert leaks() == ""


# What shows that a wait is needed: the work in which it alone stands between a right and a wrong result.


def run_right_after_the_copy(device: Any, known: dict[int, Outputs]) -> bool:
    device.begin(0, inputs(0))
    device.copy(1, 0, EXPERTS[0, 3])
    device.run([(1, 3, [0, 4])])
    return bool((device.wait() == known[0].rows(0, [(3, [0, 4])])).all())


def copy_over_what_runs(device: Any, known: dict[int, Outputs]) -> bool:
    device.copy(2, 0, EXPERTS[0, 1])
    device.begin(0, inputs(0))
    device.run([(2, 1, [0, 1, 2, 3])])
    device.copy(2, 1, EXPERTS[1, 5])
    device.is_link_busy  # noqa: B018  (the scheduler may run something)
    return bool((device.wait() == known[0].rows(0, [(1, [0, 1, 2, 3])])).all())


def more_copies_than_staging_buffers(device: Any, known: dict[int, Outputs]) -> bool:
    for slot, expert in enumerate((0, 1, 2, 3)):
        device.copy(slot, 0, EXPERTS[0, expert])
    device.begin(0, inputs(1))
    runs = [(e, [e]) for e in range(4)]
    device.run([(e, e, rows) for e, rows in runs])
    return bool((device.wait() == known[1].rows(0, runs)).all())


def read_the_outputs(device: Any, known: dict[int, Outputs]) -> bool:
    device.copy(0, 1, EXPERTS[1, 2])
    device.begin(1, inputs(0))
    device.run([(0, 2, [0, 1])])
    return bool((device.wait() == known[0].rows(1, [(2, [0, 1])])).all())


# Writing the next batch's inputs too early spoils only what nobody reads: ThreadSanitizer shows it
# (expert_trace_main.cpp).
SHOWN_BY = {
    "copied": run_right_after_the_copy,
    "slot free": copy_over_what_runs,
    "staging": more_copies_than_staging_buffers,
    "outputs": read_the_outputs,
}


def test_every_wait_is_shown() -> None:
    assert set(SHOWN_BY) == set(WAITS) - {"inputs"}


@pytest.mark.parametrize("wait", SHOWN_BY)
def test_each_wait_is_needed(wait: str, known: dict[int, Outputs]) -> None:
    """With it the result is right in every order; without it it is wrong in some, and a fake that completes each call
    at once would not tell."""
    orders = [("lazy", 1), *(("shuffle", seed) for seed in range(1, 9))]
    wrong = 0
    for streams, seed in orders:
        with emulated(streams=streams, seed=seed):
            assert SHOWN_BY[wait](trial(), known), (streams, seed)
        with emulated(streams=streams, seed=seed):
            drop_wait(wait)
            wrong += not SHOWN_BY[wait](trial(), known)
    assert wrong > 0
    with emulated():
        drop_wait(wait)
        assert SHOWN_BY[wait](trial(), known)
