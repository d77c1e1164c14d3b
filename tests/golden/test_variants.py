"""Variants of every architecture (tests/variants.py) against llama.cpp's numbers, of which a few are kept.

variants.npz has, for each model, the logits of the prompt's last position and those of the last token after going back
(tokens fed, taken back, others fed), greedy tokens, and a checksum of the model; tools/record_variants.py writes it.
"""

from __future__ import annotations

from pathlib import Path

import expertree
import numpy as np
import pytest
from expertree import _core
from expertree._core import _testing
from variants import DRAWN, NEXTN, checksum, draw, job_of

RECORDED = dict(np.load(Path(__file__).parent / "variants.npz"))
NAMES = RECORDED["name"].tolist()  # ARCH SEED KIND, KIND "f32" or "quantised"
NEXTN_NAMES = RECORDED["nextn name"].tolist()  # KIND "nextn"


def load(name: str, folder: Path) -> tuple[expertree.Model, dict[str, np.ndarray], int]:
    arch, seed, kind = name.split()
    drawn = draw(arch, int(seed), quantised=kind == "quantised", nextn=kind == "nextn")
    names, prefix = (NEXTN_NAMES, "nextn ") if kind == "nextn" else (NAMES, "")
    keys = [key for key in RECORDED if key.startswith("nextn ") == (kind == "nextn")]
    expected = {key.removeprefix(prefix): RECORDED[key][names.index(name)] for key in keys}
    assert checksum(drawn) == expected["checksum"], "another model than the recorded one: tests/variants.py has changed"
    path = drawn.write(folder / "model.gguf")
    return expertree.Model(path, n_ctx=drawn.n_ctx, activations="f32", threads=2), expected, int(seed)


def assert_near(got: np.ndarray, expected: np.ndarray) -> None:
    error = np.abs(got - expected)
    assert error.max() < 1e-3
    assert np.sqrt(np.mean(np.square(error, dtype=np.float64))) < 1e-4


def test_every_architecture_has_variants() -> None:
    assert set(DRAWN) == set(expertree._core.architecture_names())
    for kind in ("f32", "quantised"):
        assert {name.split()[0] for name in NAMES if name.endswith(kind)} == set(DRAWN)
    assert {name.split()[0] for name in NEXTN_NAMES} == set(NEXTN)


@pytest.mark.parametrize("name", NAMES)
def test_variant(name: str, tmp_path: Path) -> None:
    model, expected, seed = load(name, tmp_path)
    job = job_of(seed)
    session = model.session()
    session.prefill(job.tokens)
    greedy = [session.step().tokens[0] for _ in range(len(expected["greedy"]))]  # type: ignore[union-attr]
    assert_near(model.logits(job.tokens)[-1], expected["logits"])
    assert greedy == expected["greedy"].tolist()
    session = model.session()
    session.prefill(job.tokens)
    session.prefill(job.wrong)
    session.truncate(len(job.tokens))
    after = session.evaluate(job.right)
    assert_near(after[-1], expected["after"])
    assert (after == model.logits([*job.tokens, *job.right])[len(job.tokens) :]).all()


@pytest.mark.parametrize("name", NEXTN_NAMES)
def test_variant_of_the_mtp_block(name: str, tmp_path: Path) -> None:
    model, expected, seed = load(name, tmp_path)
    tokens = job_of(seed).tokens
    drafter = _testing.DrafterUnderTest(model._core, "mtp", 512)
    drafter.keep_expansions()
    hidden = _testing.hidden_states(model._core, tokens, list(range(-1, len(tokens) - 1)), [], True)[1]
    drafter.observe(tokens, 0, np.zeros((len(tokens), 0), np.float32), hidden)
    drafted = drafter.draft([*tokens, int(expected["first"])], (4, 4, 1), _core.SamplerOptions())[0]
    assert drafted == expected["drafted"].tolist()
    assert_near(np.array([expansion[2] for expansion in drafter.expansions()])[-4:], expected["drafted_logits"])
