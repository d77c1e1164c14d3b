"""The default model, SmolLM2-8x135M-Instruct (Q8_0), against llama.cpp's greedy text.

The model is built in the cache if it is not there yet: seconds, once the base model has been fetched.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import expertree
import numpy as np
import numpy.typing as npt
import pytest
from expertree.models.build import ExpertBuild
from expertree.models.download import DownloadError
from expertree.models.registry import find_model
from rich.console import Console

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "smollm2-8x135m-llamacpp.json").read_text())
CASES: list[dict[str, Any]] = GOLDEN["cases"]
N_TOKENS = 40

# Logits. Rounding activations to 8 bits moves the gap between llama.cpp's best two tokens by 0.17 rms (this engine
# against llama.cpp, and as much against exact activations); llama.cpp with its default settings is 0.19 from llama.cpp
# with those of the golden file, and parts from it at gaps up to 0.22. Where this engine parts, the gap is at most 0.06.
NEAR_TIE = 0.25
GAP_RMS = 0.2
MEAN_AGREEMENT = 30.0  # leading tokens of 40; measured 40, 9, 40, 39, 22
LIKELIEST_AGREE = 197  # of 200 positions of llama.cpp's own texts


@pytest.fixture(scope="module")
def model() -> expertree.Model:
    try:
        return expertree.Model(find_model(GOLDEN["model"]).fetch(Console(stderr=True)))
    except DownloadError as error:
        pytest.skip(f"the model could not be built: {error}")


@pytest.fixture(scope="module")
def forced_logits(model: expertree.Model) -> list[npt.NDArray[np.float32]]:
    """Of each case, (N_TOKENS, n_vocab): what precedes each of llama.cpp's tokens is llama.cpp's own text."""
    return [model.logits((case["prompt"] + case["tokens"])[:-1])[-N_TOKENS:] for case in CASES]


def test_golden_file_is_of_this_model() -> None:
    source = find_model(GOLDEN["model"]).source
    assert isinstance(source, ExpertBuild)
    assert source.sha256 == GOLDEN["model_sha256"], "the default model changed: record llama.cpp's numbers anew"
    assert len(CASES) == 5
    for case in CASES:
        assert [len(case[key]) for key in ("tokens", "runner_up", "gap")] == [N_TOKENS] * 3


def test_prompts(model: expertree.Model) -> None:
    """llama.cpp's tokens of the rendered conversations."""
    for case in CASES:
        if "question" in case:
            messages = [{"role": "user", "content": case["question"]}]
            assert model.chat_template.encode_chat(model.tokenizer, messages) == case["prompt"]
        else:
            assert model.tokenizer.encode(case["text"], add_special=True) == case["prompt"]


def test_greedy_text(model: expertree.Model) -> None:
    """Where a text parts from llama.cpp's, llama.cpp's best two tokens are nearly tied, and ours is the other one."""
    same = []
    for case in CASES:
        got = model.generate(case["prompt"], max_tokens=N_TOKENS, ignore_eos=True, temperature=0).tokens
        assert len(got) == N_TOKENS
        first = next((i for i in range(N_TOKENS) if got[i] != case["tokens"][i]), N_TOKENS)
        same.append(first)
        name = case.get("question", case.get("text"))
        print(f"{name!r}: {first} of {N_TOKENS} tokens agree")
        if first < N_TOKENS:
            gap = case["gap"][first]
            print(f"  token {first}: llama.cpp's best two are {gap:.3f} apart")
            assert gap < NEAR_TIE, f"{name!r} parts from llama.cpp at token {first}"
            assert got[first] == case["runner_up"][first]
    print(f"mean agreement {np.mean(same):.1f} tokens")
    assert np.mean(same) >= MEAN_AGREEMENT


def test_likeliest_token_on_the_same_text(forced_logits: list[npt.NDArray[np.float32]]) -> None:
    n_same = 0
    for case, logits in zip(CASES, forced_logits, strict=True):
        for i, (wanted, gap) in enumerate(zip(case["tokens"], case["gap"], strict=True)):
            is_same = int(logits[i].argmax()) == wanted
            n_same += is_same
            assert is_same or gap < NEAR_TIE, f"{case['tokens'][: i + 1]}: another token, {gap} ahead of the next"
    print(f"the likeliest token agrees at {n_same} of {len(CASES) * N_TOKENS} positions")
    assert n_same >= LIKELIEST_AGREE


def test_gap_between_the_best_two(forced_logits: list[npt.NDArray[np.float32]]) -> None:
    at = np.arange(N_TOKENS)
    off = [
        logits[at, case["tokens"]] - logits[at, case["runner_up"]] - np.array(case["gap"])
        for case, logits in zip(CASES, forced_logits, strict=True)
    ]
    rms = float(np.sqrt(np.square(off).mean()))
    print(f"gap of the best two tokens: {rms:.3f} rms from llama.cpp's, {np.abs(off).max():.2f} at most")
    assert rms < GAP_RMS
