"""Dense products of the device's side by themselves: every call under every order of streams, and each wait taken away.
The reference is the CPU's kernels."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from emulated_device import DENSE_WAITS, STREAMS, drop_wait, emulated, leaks, library, n_calls, set_up
from expertree import DeviceError
from expertree._core import _testing

K, N_FF, MAX_ROWS = 256, 512, 20
# gate, up, down, and one more; the last is loaded in pieces.
MATRICES = [("Q4_K", N_FF, K), ("Q8_0", N_FF, K), ("Q6_K", K, N_FF), ("F16", 48, K)]
TALL = [*MATRICES, ("F32", 13000, K)]


@pytest.fixture(autouse=True)
def _device() -> None:
    library()


def rows_of(form: str, rows: int, k: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((rows, k)) / np.sqrt(k)
    return np.asarray(_testing.quantize(form, values.astype(np.float32)))


WEIGHTS = [rows_of(form, rows, k, 7 * i) for i, (form, rows, k) in enumerate(TALL)]


def inputs(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, K)).astype(np.float32)


def trial(matrices: list[tuple[str, int, int]] = MATRICES) -> Any:
    made = _testing.DenseTrial("emulated", matrices, MAX_ROWS)
    for i in range(len(matrices)):
        made.load(i, WEIGHTS[i].tobytes())
    return made


def on_cpu(i: int, x: np.ndarray) -> np.ndarray:
    return np.asarray(_testing.matmul("scalar", TALL[i][0], WEIGHTS[i], x))


def unit_on_cpu(gate: int, up: int, down: int, x: np.ndarray) -> np.ndarray:
    pairs = zip(on_cpu(gate, x), on_cpu(up, x), strict=True)
    hidden = [np.asarray(_testing.gated_unit("scalar", "silu_mul", g, u)) for g, u in pairs]
    return on_cpu(down, np.stack(hidden))


def same(outputs: np.ndarray, *expected: np.ndarray) -> bool:
    wanted = np.concatenate([part.ravel() for part in expected])
    return bool((outputs.view(np.uint32) == wanted.view(np.uint32)).all())


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("n", [1, 2, 5, 8, 9, MAX_ROWS])
def test_calls_of_every_kind(n: int, streams: str) -> None:
    """Each as it comes for the first time, when it is captured, and as a graph."""
    with emulated(streams=streams, seed=n):
        device = trial()
        for seed in range(4):
            x = inputs(n, seed)
            device.begin(x)
            for i in (0, 3, 1):
                device.product(i)
            device.run()
            assert same(device.wait(), on_cpu(0, x), on_cpu(3, x), on_cpu(1, x))
            device.begin(x)  # nobody waits for this one
            device.product(0)
            device.run()
            device.begin(x)
            device.feed_forward(0, 1, 2)
            device.feed_forward(1, 1, 2)
            device.product(3)
            device.run()
            assert same(device.wait(), unit_on_cpu(0, 1, 2, x), unit_on_cpu(1, 1, 2, x), on_cpu(3, x))
    del device
    assert leaks() == ""


def launches(device: Any, n: int, matrices: tuple[int, ...]) -> int:
    """Graphs that a call launches."""
    before, x = n_calls("cudaGraphLaunch"), inputs(n, n)
    device.begin(x)
    for i in matrices:
        device.product(i)
    device.run()
    assert same(device.wait(), *(on_cpu(i, x) for i in matrices))
    return n_calls("cudaGraphLaunch") - before


def test_calls_that_come_again_are_graphs() -> None:
    """Of one kind are those with the same work and room for as many rows; long ones stay as they are."""
    device = _testing.DenseTrial("emulated", MATRICES, 40)
    for i in range(4):
        device.load(i, WEIGHTS[i].tobytes())
    assert [launches(device, n, (0,)) for n in (5, 6, 5, 7, 6)] == [0, 1, 1, 0, 1]
    kinds = ((3,), (0, 3), (3, 0), (3, 0), (3,), (0,))
    assert [launches(device, 5, matrices) for matrices in kinds] == [0, 0, 0, 1, 1, 1]
    assert [launches(device, n, (1,)) for n in (32, 25, 33, 33, 33)] == [0, 1, 0, 0, 0]


def test_only_so_many_graphs_are_kept() -> None:
    """Those that were used last: as many as do a thousand things."""
    device = trial()
    several = [(3,) * n for n in range(93, 101)]
    assert sum(launches(device, 1, matrices) for matrices in several) == 0
    assert [launches(device, 2, several[0]) for _ in range(3)] == [0, 1, 1]
    assert [launches(device, 1, several[i]) for i in (7, 0, 7)] == [1, 1, 1]
    for _ in range(2):
        for rows in (2, 3, 4):
            for i in (1, 2, 3):
                launches(device, rows, several[i])
    assert emulated_graphs() == 10
    assert launches(device, 1, several[7]) == 1
    assert launches(device, 2, several[0]) == 0
    del device
    assert leaks() == ""


def emulated_graphs() -> int:
    found = re.search(r"(\d+) instantiated graphs", leaks())
    return int(found[1]) if found else 0


ONCE = ("cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate")


@pytest.mark.parametrize("call", [*ONCE, "cudaGraphLaunch", "cudaLaunchKernel", "cudaMemcpyAsync"])
def test_a_graph_that_fails(call: str) -> None:
    """An error of the call that made it; the next ones have a graph."""
    for nth in (1, 2):
        with emulated(streams="lazy", seed=nth):
            device = trial()
            assert launches(device, 3, (0, 1)) == 0
            set_up(fail=f"{call}:{nth}")
            failed = 0
            for _ in range(2):
                try:
                    launches(device, 3, (0, 1))
                except DeviceError as error:
                    assert "the GPU failed: " in str(error)
                    failed += 1
            assert failed == (nth == 1 or call not in ONCE)
            set_up(fail="")
            assert launches(device, 3, (0, 1)) == 1
            del device
            assert leaks() == ""


def test_no_memory_for_a_graph() -> None:
    """Calls are plain then, from there on."""
    with emulated(streams="shuffle"):
        device = trial()
        assert [launches(device, 1, (0,)) for _ in range(2)] == [0, 1]
        set_up(fail="cudaGraphInstantiate:1:2")
        assert [launches(device, 2, (0,)) for _ in range(4)] == [0, 0, 0, 0]
        assert [launches(device, n, (1,)) for n in (1, 1)] == [0, 0]
        assert launches(device, 1, (0,)) == 1
    del device
    assert leaks() == ""


def loads_in_pieces(device: Any) -> bool:
    device.begin(inputs(1))
    device.product(4)
    device.run()
    return same(device.wait(), on_cpu(4, inputs(1)))


def read_the_outputs(device: Any) -> bool:
    device.begin(inputs(2))
    device.product(0)
    device.run()
    return same(device.wait(), on_cpu(0, inputs(2)))


# Writing the next call's inputs too early spoils only what nobody reads: ThreadSanitizer shows it
# (dense_trace_main.cpp).
SHOWN_BY = {"loaded": (loads_in_pieces, TALL), "dense outputs": (read_the_outputs, MATRICES)}


def test_every_wait_is_shown() -> None:
    assert set(SHOWN_BY) == set(DENSE_WAITS) - {"dense inputs"}


@pytest.mark.parametrize("wait", SHOWN_BY)
def test_each_wait_is_needed(wait: str) -> None:
    """With it the result is right in every order; without it it is wrong in some, and a fake that completes each call
    at once would not tell."""
    work, matrices = SHOWN_BY[wait]
    wrong = 0
    for streams, seed in (("lazy", 1), *(("shuffle", seed) for seed in range(1, 4))):
        with emulated(streams=streams, seed=seed):
            assert work(trial(matrices)), (streams, seed)
        with emulated(streams=streams, seed=seed):
            drop_wait(wait)
            wrong += not work(trial(matrices))
    assert wrong > 0
    with emulated():
        drop_wait(wait)
        assert work(trial(matrices))
