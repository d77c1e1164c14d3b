"""The output head on a device: where a sampler is decided by a row's best logits only these come back, and the text is
the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_device import STREAMS, emulated, leaks, library, n_calls
from expertree import Model, ModelFormatError, ScriptedDrafter
from expertree.sampling import SamplingParams
from expertree.session import Session
from recorded_model import ARCHITECTURES as RECORDED
from tiny_model import ARCHITECTURES

Tiny = Callable[..., Path]
PROMPT = [5, 9, 5, 9, 33, 60, 5, 9]
VOCABULARY, WIDTH = 96, 64
# What asks for few logits of each row, and how many; what asks for all.
FEW: list[tuple[dict[str, Any], int]] = [
    ({"temperature": 0.0}, 1),
    ({"temperature": 0.0, "top_k": 7}, 1),
    ({"temperature": 1.5, "top_k": 1}, 2),
    ({"temperature": 1.0, "top_k": 20, "top_p": 0.8}, 21),
    ({"temperature": 2.0, "top_k": 90, "min_p": 0.05}, 91),
]
ALL: list[dict[str, Any]] = [
    {"temperature": 1.0, "top_k": 0},
    {"temperature": 1.0, "top_k": 96},
    {"temperature": 0.0, "repeat_penalty": 1.3},
    {"temperature": 0.0, "logit_bias": {3: 2.0}},
]


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    library()
    monkeypatch.setenv("EXPERTREE_DEVICE", "emulated")


def sampling(**options: Any) -> dict[str, Any]:
    return {"top_p": 1.0, "min_p": 0.0, "top_k": 0, "seed": 11, **options}


def text(session: Session, n: int = 16) -> list[int]:
    session.prefill(PROMPT)
    while len(session) < len(PROMPT) + n:
        session.step(max_tokens=n)
    return session.tokens[: len(PROMPT) + n]


@pytest.mark.parametrize("arch", [*ARCHITECTURES, *RECORDED])
def test_every_architecture(arch: str, tiny: Tiny) -> None:
    """Plain steps, and trees that are verified."""
    path = tiny(arch=arch, format="Q8_0")
    here, there = Model(path, ram="all", n_ctx=256), Model(path, vram="all", n_ctx=256)
    first = len(arch) % 5
    for i in (first, (first + 2) % 5):
        options, _ = FEW[i]
        expected = text(here.session(**sampling(**options)))
        with emulated(streams=STREAMS[i % 3], seed=i + 1):
            assert text(there.session(**sampling(**options))) == expected, options
            draft = ScriptedDrafter(expected, rates=[0.6], spread=0.3)
            assert text(there.session(draft=draft, select="all", **sampling(**options))) == expected, options
    del there
    assert leaks() == ""


def test_only_the_best_come_back(tiny: Tiny) -> None:
    """A step of one row: the residual stream and its logits stay, k values and ids and a flag come."""
    path = tiny(arch="llama", format="Q8_0")
    model = Model(path, vram="all")

    def bytes_of_a_step(**options: Any) -> int:
        session = model.session(**sampling(**options))
        session.prefill(PROMPT)
        session.step()
        before = n_calls("bytes to host")
        session.step()
        return n_calls("bytes to host") - before

    whole = bytes_of_a_step(**ALL[0])
    for options in ALL:
        assert bytes_of_a_step(**options) == whole, options
    for options, k in FEW:
        assert whole - bytes_of_a_step(**options) == 4 * (WIDTH + VOCABULARY - (2 * k + 1)), options


def test_samplers_that_take_turns(tiny: Tiny) -> None:
    """One that needs more logits than came back for the last token has it run again."""
    path = tiny(arch="qwen3moe", format="Q8_0")
    tokens = []
    for options in ({"vram": "all"}, {"ram": "all"}):
        session = Model(path, **options).session(temperature=0.0, seed=3)  # type: ignore[arg-type]
        session.prefill(PROMPT)
        for choice in (ALL[0], FEW[0][0], FEW[3][0], ALL[2], FEW[4][0], FEW[2][0], ALL[1]):
            session.set_sampling(SamplingParams(**sampling(**choice)))
            session.step()  # the last token has been run
            session.step()
            session.prefill([7])
        session.set_sampling(SamplingParams(**sampling(**FEW[0][0])))
        session.prefill([8])
        session.evaluate([4, 5])
        session.set_sampling(SamplingParams(**sampling(**ALL[0])))
        session.rollback()
        session.step()
        branch = session.branch()
        branch.truncate(len(branch) - 1)
        tokens.append((session.tokens, branch.step(), session.step()))
    assert tokens[0][0] == tokens[1][0]
    assert [step.tokens for step in tokens[0][1:]] == [step.tokens for step in tokens[1][1:]]


@pytest.mark.parametrize("options", [FEW[0][0], FEW[3][0]])
def test_a_head_with_a_bias(options: dict[str, Any], tiny: Tiny) -> None:
    bias = 20 * np.random.default_rng(3).standard_normal(VOCABULARY).astype(np.float32)
    path = tiny(arch="llama", format="Q8_0", tensors={"output.bias": bias})
    expected = text(Model(path, ram="all").session(**sampling(**options)))
    assert text(Model(path, vram="all").session(**sampling(**options))) == expected
    without = Model(tiny(arch="llama", format="Q8_0"), vram="all")
    assert text(without.session(**sampling(**options))) != expected


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers(value: float, tiny: Tiny) -> None:
    """Reported as on the CPU."""
    head = np.random.default_rng(1).standard_normal((VOCABULARY, 64)).astype(np.float32)
    head[40:42] = value
    path = tiny(arch="llama", format="Q8_0", tensors={"output.weight": head}, formats={"output.weight": "F16"})
    texts = []
    for options in ({"vram": "all"}, {"ram": "all"}):
        session = Model(path, **options).session(temperature=0.0)  # type: ignore[arg-type]
        session.prefill(PROMPT)
        with pytest.raises(ModelFormatError) as error:
            session.step()
        texts.append(str(error.value))
    assert texts[0] == texts[1]
    assert "logits are not finite" in texts[0]
