"""A device that fails, at any call: a typed error, nothing left behind, and the session goes on as if it had not."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from emulated_device import emulated, leaks, library, n_calls, set_up
from expertree import Cancelled, DeviceError, Error, OutOfMemoryError, _core
from expertree._core import _testing
from test_vram import TOKENS, FetchRule, OnDevice, budgets, expected, same_bits

Tiny = Callable[..., Path]
# Those that a step makes; "run:" is work that fails on the device, which then is lost.
STEP_CALLS = (
    "cudaMemcpyAsync",
    "cudaEventRecord",
    "cudaEventSynchronize",
    "cudaStreamWaitEvent",
    "cudaEventQuery",
    "run:kernel",
    "run:copy",
)
# Those that make or launch graphs.
GRAPH_CALLS = ("cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate", "cudaGraphLaunch")
LOAD_CALLS = (
    "cudaGetDeviceCount",
    "cudaGetDeviceProperties",
    "cudaMemGetInfo",
    "cudaMalloc",
    "cudaMallocHost",
    "cudaStreamCreateWithFlags",
    "cudaEventCreateWithFlags",
    "cudaMemcpyAsync",
    "cudaStreamSynchronize",
)


@pytest.fixture(autouse=True)
def _device() -> None:
    library()


@pytest.mark.parametrize("streams", ["lazy", "shuffle"])
@pytest.mark.parametrize("call", STEP_CALLS)
@pytest.mark.parametrize("what", ["experts", "most"])
def test_a_call_of_a_step_fails(what: str, call: str, streams: str, tiny: Tiny) -> None:
    path = tiny(arch="qwen3moe", format="Q8_0")
    logits = expected(path, TOKENS[:12])
    vram = budgets(path)[1 if what == "experts" else -2]
    n_failed = 0
    for nth in (1, 2, 3, 5, 8, 13, 21):
        with emulated(streams=streams, seed=nth):
            model = OnDevice(path, vram, fetch=FetchRule.shuffled)
            assert (model.stats["dense_bytes"] > 0) == (what == "most")
            model.logits(TOKENS[:4], 2)
            set_up(fail=f"{call}:{nth}")
            try:
                got = model.evaluate(TOKENS[4:8])
            except Error as error:
                assert isinstance(error, DeviceError), error
                assert re.search("the GPU failed: (cuda[A-Z]|launch_)", str(error)), error
                n_failed += 1
                assert model.stats["errors"] == 1
                assert model.session.n_tokens == 4
                got = model.evaluate(TOKENS[4:8])
            assert same_bits(got, logits[4:8]), nth
            set_up(fail="")
            model.session.commit(np.arange(4, dtype=np.int32))
            assert same_bits(model.evaluate(TOKENS[8:12]), logits[8:12]), nth
            assert model.stats["is_lost"] == (call.startswith("run:") and model.stats["errors"] > 0)
            if model.stats["is_lost"]:
                assert (model.model.experts.states != 3).all()
                library().expertree_emu_clear_faults()  # as a new process would find it
            del model
            assert leaks() == ""
    assert n_failed > 0


@pytest.mark.parametrize("streams", ["lazy", "shuffle"])
@pytest.mark.parametrize("call", [*GRAPH_CALLS, "run:kernel", "run:copy"])
def test_a_graph_fails(call: str, streams: str, tiny: Tiny) -> None:
    """Of attention, of experts or of the head: as it is captured, as it is launched, as it runs."""
    path = tiny(arch="qwen3moe", format="Q8_0")
    logits = expected(path, TOKENS[:12])
    for nth in (1, 2, 3, 4, 5):
        with emulated(streams=streams, seed=nth):
            model = OnDevice(path, fetch=FetchRule.always)
            model.logits(TOKENS[:4], 4)
            # As experts come, and calls come for the first time and are captured; where that is not what fails, then.
            for _ in range(0 if call in GRAPH_CALLS[:3] else 4):
                model.evaluate(TOKENS[4:8])
                model.session.rollback()
            set_up(fail=f"{call}:{nth}")
            n_failed = 0
            for _ in range(8):
                try:
                    assert same_bits(model.evaluate(TOKENS[4:8]), logits[4:8]), nth
                    model.session.rollback()
                except DeviceError as error:
                    assert re.search("the GPU failed: cuda[A-Z]", str(error)), error
                    assert model.session.n_tokens == 4
                    n_failed += 1
            assert n_failed == 1
            assert model.stats["is_lost"] == call.startswith("run:")
            set_up(fail="")
            library().expertree_emu_clear_faults()
            del model
            assert leaks() == ""


@pytest.mark.parametrize("call", LOAD_CALLS)
def test_a_call_of_loading_fails(call: str, tiny: Tiny) -> None:
    path = tiny(arch="gpt-oss", format="Q8_0")  # has biases
    with emulated():
        before = n_calls(call)
        whole = OnDevice(path)
        n = n_calls(call) - before
        del whole
    assert n > 0
    for nth in sorted({1, 2, (n + 1) // 2, n} & set(range(1, n + 1))):
        with emulated(streams="lazy", fail=f"{call}:{nth}"):
            with pytest.raises((DeviceError, OutOfMemoryError), match="GPU"):
                OnDevice(path)
            assert leaks() == ""
        with emulated(streams="lazy", fail=f"{call}:{nth}"):
            model = OnDevice(path, vram_auto=True)
            assert (model.model.gpu is None) == bool(model.model.vram_note)
            set_up(fail="")
            assert same_bits(model.logits(TOKENS[:6], 3), expected(path, TOKENS[:6]))
            del model
            assert leaks() == ""


@pytest.mark.parametrize("streams", ["lazy", "shuffle"])
def test_a_read_that_fails_beside_a_running_device(streams: str, tiny: Tiny) -> None:
    """The batch is given up where it stands; the next one is not spoilt by it."""
    path = tiny(arch="qwen3moe", format="Q8_0")
    logits = expected(path, TOKENS[:4])
    faults = _testing.Faults()
    faults.descriptor = True
    faults.fail_every, faults.first_fault = 40, 200
    with emulated(streams=streams, seed=3):
        model = _testing.load_paged(
            path.as_posix(),
            faults=faults,
            vram=budgets(path)[1],
            budget=least(path),
            use_cached=False,
            fetch=FetchRule.shuffled,
        )
        session = _core.Session(model, 512, _core.SamplerOptions())
        n_failed = n_right = 0
        for _ in range(40):
            try:
                assert same_bits(session.evaluate(TOKENS[:4], np.arange(-1, 3, dtype=np.int32))[0], logits)
                session.rollback()
                n_right += 1
            except DeviceError as error:
                assert "GPU" not in str(error)
                n_failed += 1
        assert n_failed > 3
        assert n_right > 3
        del session, model
        assert leaks() == ""


def test_stopping_at_any_moment(tiny: Tiny) -> None:
    """Cancelled from another thread while experts are read, copied and run; then as if nothing had been."""
    path = tiny(arch="qwen3moe", format="Q8_0")
    logits = expected(path, TOKENS)
    n_stopped = 0
    with emulated(streams="shuffle", seed=9):
        model = OnDevice(path, budgets(path)[1], fetch=FetchRule.shuffled, budget=2 * least(path))
        for i in range(15):
            stopper = threading.Timer(0.0005 * i, model.session.cancel)
            stopper.start()
            try:
                assert same_bits(model.evaluate(TOKENS), logits)
                model.session.rollback()
            except Cancelled:
                n_stopped += 1
            stopper.join()
            # A stop that came too late holds for the next call.
            try:
                model.evaluate(TOKENS[:1])
                model.session.rollback()
            except Cancelled:
                pass
        assert same_bits(model.evaluate(TOKENS), logits)
        del model, stopper
        assert leaks() == ""
    assert n_stopped > 0


def least(path: Path) -> int:
    return int(OnDevice(path, 0).model.experts.stats["least_bytes"])
