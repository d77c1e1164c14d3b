"""The MTP drafter against numpy, however it was fed, and its text against plain decoding."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import expertree
import numpy as np
import pytest
from conftest import CONFORMANCE
from drafter_trial import Trial
from drafters import RandomSelector
from expertree import InvalidRequestError, Model, ModelFormatError, UnsupportedError
from numpy_model import NumpyModel, softmax
from tiny_model import MOE_ARCHITECTURES, NEXTN_ARCHITECTURES, TinyModel

Loader = Callable[..., Model]
TOKENS = np.random.default_rng(5).integers(0, 96, 60).tolist()


def spec_of(arch: str, **fields: Any) -> TinyModel:
    return TinyModel(arch=arch, n_nextn=1, n_layers=3, **fields)


def write(spec: TinyModel, folder: Path, **loading: Any) -> Model:
    return Model(spec.write(folder / "model.gguf"), threads=2, **loading)


def random_rows(n: int, k: int) -> np.ndarray:
    return np.random.default_rng([n, k]).standard_normal((n, k)).astype(np.float32) / np.sqrt(np.float32(k))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("arch", NEXTN_ARCHITECTURES)
def test_logits_and_tree_against_numpy(arch: str, own: bool, tmp_path: Path) -> None:
    """Every expansion, the first tokens of a sequence included; with and without tensors of the block's own."""
    spec = spec_of(arch)
    b = f"blk.{spec.n_layers}.nextn."
    if own:
        spec.tensors[b + "embed_tokens.weight"] = random_rows(96, 64)
        spec.tensors[b + "shared_head_head.weight"] = random_rows(97, 64)[:96]
    else:
        spec.tensors[b + "shared_head_norm.weight"] = None
    trial = Trial(write(spec, tmp_path), "mtp")
    trial.drafter.keep_expansions()
    oracle = NumpyModel(spec)
    for n in (0, 1, 13):
        tokens, root = TOKENS[:n], TOKENS[n]
        if n:
            trial.observe(tokens)
        states = np.concatenate([np.zeros((1, 64)), oracle.hidden_states(tokens)[1]]) if n else np.zeros((1, 64))
        tree = trial.draft([*tokens, root])
        assert len(tree[0]) == 32 and max(tree[2]) > 1
        routes: list[tuple[list[int], np.ndarray]] = []
        best: dict[tuple[int, ...], np.ndarray] = {}
        for token, parent, logits in trial.drafter.expansions():
            path, known = ([*tokens], states) if parent < 0 else routes[parent]
            outputs, expected = oracle.nextn([*path, token], known)
            assert np.abs(np.array(logits) - expected[-1]).max() < 1e-4
            routes.append(([*path, token], np.concatenate([known, outputs[-1:]])))
            best[tuple(routes[-1][0][n:])] = softmax(expected[-1])
        assert len(routes) == 1 + 8 * 3
        paths: list[tuple[int, ...]] = []
        for token, parent, score in zip(tree[0], tree[1], tree[3], strict=True):
            above = paths[parent] if parent >= 0 else (root,)
            paths.append((*above, token))
            want = np.prod([best[paths[-1][:i]][paths[-1][i]] for i in range(1, len(paths[-1]))])
            assert score == pytest.approx(want, rel=1e-3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_however_it_was_fed(temperature: float, load_tiny: Loader) -> None:
    """Rows in one call, in many, with drafts between, after wrong rows were forgotten: the same tree, bit by bit."""
    model = load_tiny({"arch": "qwen35moe", "n_nextn": 1, "format": "Q8_0"})
    tokens = TOKENS[:39]
    plain = Trial(model, "mtp")
    plain.observe(tokens)
    expected = plain.draft([*tokens, 7], temperature=temperature, seed=3)

    pieces = Trial(model, "mtp")
    pieces.observe(tokens, [1] * 39)
    assert pieces.draft([*tokens, 7], temperature=temperature, seed=3) == expected

    if temperature == 0.0:  # drafts in between learn nothing that changes scores
        busy = Trial(model, "mtp")
        for n in (3, 4, 8, 39):
            busy.observe(tokens[:n])
            busy.draft([*tokens[:n], TOKENS[n]])
        assert busy.draft([*tokens, 7]) == expected

    wrong = Trial(model, "mtp")
    wrong.observe([*tokens[:20], 1, 2, 3])
    wrong.draft([*tokens[:20], 1, 2, 3, 4], temperature=0.0)
    wrong.truncate(20)
    wrong.observe(tokens)
    assert wrong.draft([*tokens, 7], temperature=temperature, seed=3) == expected
    assert wrong.draft([*tokens, 7], temperature=temperature, seed=3) == expected
    assert wrong.draft([*tokens, 8], temperature=temperature, seed=3) != expected


def test_a_long_prompt(load_tiny: Loader) -> None:
    """Several passes of entries that leave keys and values only: as if they had been drafted from one by one."""
    model = load_tiny({"arch": "qwen35moe", "n_nextn": 1, "n_ctx": 1024})
    tokens = np.random.default_rng(8).integers(0, 96, 700).tolist()
    whole = Trial(model, "mtp", 1024)
    whole.observe(tokens)
    parts = Trial(model, "mtp", 1024)
    for n in (1, 2, 100, 613, 700):
        parts.observe(tokens[:n])
        parts.draft([*tokens[:n], 5])
    assert parts.draft([*tokens, 5]) == whole.draft([*tokens, 5])


@pytest.mark.parametrize("limits", [(60, 7, 10), (1, 4, 8), (3, 1, 8), (32, 4, 1), (5, 2, 2), (0, 4, 8), (500, 40, 30)])
def test_tree_limits(limits: tuple[int, int, int], load_tiny: Loader) -> None:
    trial = Trial(load_tiny({"arch": "qwen35moe", "n_nextn": 1}), "mtp")
    trial.observe(TOKENS[:9])
    tokens, parents, depths, _ = trial.draft([*TOKENS[:9], 1], limits)
    nodes, depth, top_k = limits
    assert len(tokens) <= nodes and max(depths, default=0) <= depth
    assert all(parents.count(parent) <= top_k for parent in set(parents))


def test_it_stops_at_its_context(load_tiny: Loader) -> None:
    trial = Trial(load_tiny({"arch": "qwen35moe", "n_nextn": 1}), "mtp", 12)
    for n, depth in ((7, 4), (9, 2), (11, 0), (30, 0)):
        trial.observe(TOKENS[:n])
        assert max(trial.draft([*TOKENS[:n], 3], (4, 4, 1))[2], default=0) == depth


def test_lossless_on_glm4moe() -> None:
    """llama.cpp's tiny model with the other kind of block."""
    model = Model(CONFORMANCE / "glm4moe-mtp.gguf", threads=2)
    for temperature in (0.0, 0.9):
        texts = []
        for draft in (None, "mtp"):
            select = None if draft is None else "all"
            session = model.session(n_ctx=200, draft=draft, select=select, temperature=temperature, seed=6)
            session.prefill(TOKENS[:20])
            while len(session) < 160:
                session.step(max_tokens=160 - len(session))
            texts.append(session.tokens)
        assert texts[0] == texts[1]


CASES = list(itertools.product(NEXTN_ARCHITECTURES, [0.0, 0.9], ["all", "paged"], ["all", "cascade", "random"]))


@pytest.mark.parametrize(("arch", "temperature", "memory", "select"), CASES)
def test_lossless(arch: str, temperature: float, memory: str, select: str, load_tiny: Loader) -> None:
    spec = {"arch": arch, "format": "Q8_0", "n_ctx": 1024, "n_nextn": 1}
    model = load_tiny(spec)
    if memory == "paged" and arch in MOE_ARCHITECTURES:
        slot = model.experts["all_bytes"] // model.experts["slots"]
        model = load_tiny(spec, ram=int(model.experts["least_bytes"] + slot), threads=2)
    sampling = {"temperature": temperature, "seed": 4, "repeat_penalty": 1.1}
    plain = load_tiny(spec).session(n_ctx=400, **sampling)
    plain.prefill(TOKENS[:40])
    drafted = model.session(
        n_ctx=400, draft="mtp", select=RandomSelector() if select == "random" else select, **sampling
    )
    drafted.prefill(TOKENS[:40])
    for session in (plain, drafted):
        while len(session) < 240:
            session.step(max_tokens=240 - len(session))
    assert drafted.tokens == plain.tokens
    assert drafted.stats["drafted"] > 0 or select == "cascade"
    for length in (239, 150, 41):
        for session in (plain, drafted):
            session.truncate(length)
        for _ in range(3):
            assert drafted.step(max_tokens=1).tokens == plain.step().tokens  # type: ignore[union-attr]


def test_a_block_that_is_right_is_accepted(tmp_path: Path) -> None:
    """A model that repeats its input (its layers add nothing), and a block that does: all drafts hold."""
    spec = spec_of("qwen35moe")
    tensors = spec.float_tensors()
    for i in range(4):
        for name in ("ffn_down_exps", "ffn_down_shexp", "attn_output", "ssm_out"):
            if f"blk.{i}.{name}.weight" in tensors:
                spec.tensors[f"blk.{i}.{name}.weight"] = np.zeros_like(tensors[f"blk.{i}.{name}.weight"])
    spec.tensors["output.weight"] = np.roll(tensors["token_embd.weight"], 1, 0)  # the next id
    spec.tensors["blk.3.nextn.eh_proj.weight"] = np.eye(64, 128, dtype=np.float32)
    session = write(spec, tmp_path).session(n_ctx=200, draft="mtp", select="all", draft_depth=4)
    session.prefill([3, 4])
    steps = [session.step() for _ in range(12)]
    assert session.tokens == [i % 96 for i in range(3, 3 + len(session))]
    assert [len(step.accepted) for step in steps[1:]] == [4] * 11  # type: ignore[union-attr]


def test_memory_is_counted(load_tiny: Loader) -> None:
    model = load_tiny({"arch": "qwen35moe", "n_nextn": 1})
    plain = load_tiny({"arch": "qwen35moe"})
    assert model.memory()["weight_bytes"] == plain.memory()["weight_bytes"], "loaded although nobody drafts with it"
    assert model.experts["slots"] == plain.experts["slots"]
    trial = Trial(model, "mtp")
    block = 4 * 64 * (128 + 24 * 12 + 8 * 3 * 64 + 3 * 64)
    cache = 4 * 2 * 2 * 24 * 512
    assert block + cache < trial.drafter.memory_bytes < 1.3 * (block + cache)


def test_models_without_a_block(load_tiny: Loader, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no block that predicts further tokens"):
        load_tiny({"arch": "qwen35moe"}).session(draft="mtp")
    with pytest.raises(InvalidRequestError, match="takes no argument"):
        load_tiny({"arch": "qwen35moe", "n_nextn": 1}).session(draft="mtp:file")
    two = write(TinyModel(arch="qwen35moe", n_nextn=2), tmp_path)
    with pytest.raises(UnsupportedError, match="2 blocks"):
        two.session(draft="mtp")
    assert two.n_layers == 2 and two.session().evaluate([1]).shape == (1, 96)


def test_damaged_blocks(tmp_path: Path) -> None:
    """The model runs; drafting says what is wrong."""
    b = "blk.3."
    cases: list[tuple[str, np.ndarray | None, type[Exception], str]] = [
        (b + "nextn.eh_proj.weight", None, UnsupportedError, "leaves out the block"),
        (b + "nextn.enorm.weight", None, ModelFormatError, "nextn.enorm.weight' is missing"),
        (b + "attn_q.weight", None, ModelFormatError, "attn_q.weight' is missing"),
        (b + "nextn.hnorm.weight", np.ones(32, np.float32), ModelFormatError, "has shape"),
        (b + "nextn.extra.weight", np.ones(32, np.float32), UnsupportedError, "does not use"),
    ]
    for name, values, error, message in cases:
        spec = spec_of("qwen35moe", tensors={name: values})
        model = write(spec, tmp_path)
        assert model.logits([1, 2]).shape == (2, 96)
        with pytest.raises(error, match=message):
            model.session(draft="mtp")


def test_too_many_blocks(tmp_path: Path) -> None:
    spec = TinyModel(arch="qwen35moe", keys={"qwen35moe.nextn_predict_layers": 2})
    with pytest.raises(ModelFormatError, match="nextn_predict_layers' is 2; expected less than block_count 2"):
        expertree.Model(spec.write(tmp_path / "model.gguf"))
