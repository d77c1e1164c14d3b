"""Speculation with experts on a device: the text of plain decoding on the CPU (contract X2)."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from emulated_device import emulated, library
from expertree import Model

sys.path.append(str(Path(__file__).parents[1] / "equivalence"))
from test_speculation import Loader, check_lossless, load

ARCHITECTURES = ("qwen3moe", "mixtral", "gpt-oss", "qwen35moe", "deepseek2", "llama4")
DRAFTERS = ("ngram", "scripted 0.5", "wild", "scripted 1")
SELECTORS = ("residency", "all", "random")


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    library()
    monkeypatch.setenv("EXPERTREE_DEVICE", "emulated")


@pytest.fixture
def loaded(tiny: Callable[..., Path]) -> Loader:
    """As load_tiny, but no model outlives its test: the device's memory is counted."""
    return lambda fields, **options: Model(tiny(**fields), **options)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_lossless_on_a_device(arch: str, loaded: Loader) -> None:
    i = ARCHITECTURES.index(arch)
    case: dict[str, Any] = {
        "arch": arch, "memory": "device", "cache": "f32", "drafter": DRAFTERS[i % 4], "selector": SELECTORS[i % 3],
        "predictor": "last", "temperature": (0.0, 1.0)[i % 2], "sampler": "plain", "nodes": 8,
    }  # fmt: skip
    with emulated(streams=("lazy", "shuffle")[i % 2], seed=i + 1):
        check_lossless(case, loaded, 24)


def test_selectors_see_where_experts_are(loaded: Loader) -> None:
    """What a step is expected to cost falls with experts on the device, once running there has been measured."""
    model = load(loaded, "qwen3moe", "device")
    session = model.session(draft="ngram", select="residency", seed=1)
    session.prefill([5, 9, 5, 9, 33, 60, 5, 9] * 2)
    for _ in itertools.islice(session, 12):
        pass
    states = model._core.experts.states
    assert (states == 3).sum() == model.gpu["resident"] > 0
    costs = model._core.experts.costs
    assert costs["link_bytes_per_second"] > 0
    assert costs["device_base_seconds"] + costs["device_row_seconds"] > 0
    assert model.experts["device_runs"] == model.gpu["runs"] > 0
