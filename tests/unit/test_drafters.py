"""Model-like drafters (eagle3, medusa, model) and the trained predictor of experts, against numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import expertree
import numpy as np
import pytest
from drafter_trial import TREE, Trial
from expertree._core import _testing
from numpy_model import NumpyModel, silu, softmax
from tiny_heads import NumpyEagle, TinyEagle, TinyMedusa, eagle_tree, write_predictor
from tiny_model import TinyModel

Loader = Callable[..., expertree.Model]
FIELDS: dict[str, Any] = {"n_layers": 4}
TOKENS = np.random.default_rng(5).integers(0, 96, 40).tolist()


def target_matrices(fields: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    tensors = TinyModel(**fields).float_tensors()
    return tensors["token_embd.weight"], tensors["output.weight"]


def numpy_features(fields: dict[str, Any], tokens: list[int], taps: tuple[int, ...]) -> np.ndarray:
    inputs, _ = NumpyModel(TinyModel(**fields)).hidden_states(tokens)
    return np.concatenate([inputs[:, layer] for layer in taps], -1)


def paths(tree: tuple[Any, ...]) -> dict[tuple[int, ...], float]:
    """Score by path of tokens."""
    tokens, parents, _, scores = tree
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return dict(zip(found, scores, strict=True))


EAGLES = [
    {},
    {"absolute": True, "hidden_norm": True},
    {"norm_before_fc": False, "norm_before_residual": True},
    {"ids": None, "own_output": False},
    {"own_embedding": True, "taps": (3, 0)},
    {"own_embedding": True, "n_embd": 96, "n_heads": 3, "n_kv_heads": 1, "head_dim": 32, "ids": None},
]


@pytest.mark.parametrize("variant", EAGLES, ids=str)
def test_eagle_logits_and_tree_against_numpy(variant: dict[str, Any], load_tiny: Loader, tmp_path: Path) -> None:
    spec = TinyEagle(**variant)
    trial = Trial(load_tiny(FIELDS), f"eagle3:{spec.write(tmp_path / 'head.gguf')}")
    assert trial.drafter.tap_layers == list(spec.taps) and not trial.drafter.last_hidden
    tokens, root = TOKENS[:13], TOKENS[13]
    trial.observe(tokens, [5, 1, 7])
    trial.drafter.keep_expansions()
    tree = trial.draft([*tokens, root])

    head = NumpyEagle(spec, *target_matrices(FIELDS))
    features = numpy_features(FIELDS, tokens, spec.taps)
    expected = eagle_tree(head, tokens, features, root, TREE)
    assert len(tree[0]) == len(expected) == 32
    got = paths(tree)
    want = paths(tuple(zip(*((n.token, n.parent, n.depth, n.score) for n in expected), strict=True)))
    assert got.keys() == want.keys()
    assert max(abs(got[path] / want[path] - 1) for path in want) < 1e-3
    assert max(tree[2]) > 1, "the tree shows nothing deep"

    # Every expansion's logits: 1 of the root, 8 at each further depth.
    expansions = trial.drafter.expansions()
    assert len(expansions) == 1 + 8 * 3
    prefix = [(t, head.first_state(f)) for t, f in zip([*tokens[1:], root], features, strict=True)]
    outputs, routes = [], []
    for token, parent, logits in expansions:
        routes.append(prefix if parent < 0 else [*routes[parent], (token, outputs[parent])])
        outputs.append(head.path_output(routes[-1]))
        assert np.abs(np.array(logits) - head.logits(outputs[-1])).max() < 2e-3


def test_default_tap_layers_and_older_key(load_tiny: Loader, tmp_path: Path) -> None:
    model = load_tiny({"n_layers": 6})
    none = TinyEagle(keys={"eagle3.target_layers": None}).write(tmp_path / "none.gguf")
    assert Trial(model, f"eagle3:{none}").drafter.tap_layers == [2, 3, 3]
    keys = {"eagle3.target_layers": None, "eagle3.extract_layers": [0, 4, 5]}
    old = TinyEagle(keys=keys).write(tmp_path / "old.gguf")
    assert Trial(model, f"eagle3:{old}").drafter.tap_layers == [0, 4, 5]


@pytest.fixture
def eagle(load_tiny: Loader, tmp_path: Path) -> Callable[[], Trial]:
    path = TinyEagle(form="Q8_0").write(tmp_path / "head.gguf")
    return lambda: Trial(load_tiny({**FIELDS, "format": "Q8_0"}), f"eagle3:{path}")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_eagle_is_the_same_however_it_was_fed(eagle: Callable[[], Trial], temperature: float) -> None:
    """Rows in one call, in many, with drafts between, after wrong rows were forgotten: the same tree, bit by bit."""
    tokens = TOKENS[:39]
    plain = eagle()
    plain.observe(tokens)
    expected = plain.draft([*tokens, 7], temperature=temperature, seed=3)

    pieces = eagle()
    pieces.observe(tokens, [1] * 39)
    assert pieces.draft([*tokens, 7], temperature=temperature, seed=3) == expected

    # Temperature 0: drafts in between learn nothing that changes scores.
    if temperature == 0.0:
        busy = eagle()
        for n in (3, 4, 8, 39):
            busy.observe(tokens[:n])
            busy.draft([*tokens[:n], TOKENS[n]])
        assert busy.draft([*tokens, 7]) == expected

    wrong = eagle()
    wrong.observe([*tokens[:20], 1, 2, 3])
    wrong.draft([*tokens[:20], 1, 2, 3, 4], temperature=0.0)
    wrong.truncate(20)
    wrong.observe(tokens)
    assert wrong.draft([*tokens, 7], temperature=temperature, seed=3) == expected
    assert wrong.draft([*tokens, 7], temperature=temperature, seed=3) == expected
    assert wrong.draft([*tokens, 8], temperature=temperature, seed=3) != expected


def test_eagle_with_a_long_prompt(load_tiny: Loader, tmp_path: Path) -> None:
    """Several chunks of rows; against numpy at its end."""
    spec = TinyEagle()
    trial = Trial(load_tiny(FIELDS), f"eagle3:{spec.write(tmp_path / 'head.gguf')}")
    tokens = np.random.default_rng(8).integers(0, 96, 700).tolist()
    trial.observe(tokens[:650], [600, 50])
    trial.truncate(640)
    trial.observe(tokens)
    got = paths(trial.draft([*tokens, 5], (8, 2, 4)))
    head = NumpyEagle(spec, *target_matrices(FIELDS))
    nodes = eagle_tree(head, tokens, trial.features(tokens)[0], 5, (8, 2, 4))
    want = paths(tuple(zip(*((n.token, n.parent, n.depth, n.score) for n in nodes), strict=True)))
    assert got.keys() == want.keys()
    assert max(abs(got[path] / want[path] - 1) for path in want) < 2e-3


@pytest.mark.parametrize("limits", [(60, 7, 10), (1, 4, 8), (3, 1, 8), (32, 4, 1), (5, 2, 2), (0, 4, 8), (100, 1, 500)])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_tree_limits(eagle: Callable[[], Trial], limits: tuple[int, int, int], temperature: float) -> None:
    trial = eagle()
    trial.observe(TOKENS[:9])
    tokens, parents, depths, _ = trial.draft([*TOKENS[:9], 1], limits, temperature=temperature, seed=1)
    nodes, depth, top_k = limits
    reachable = min(top_k, 54) if depth == 1 else nodes
    assert len(tokens) == min(nodes, reachable, top_k + (depth - 1) * top_k**2)
    assert max(depths, default=0) <= depth
    for parent in set(parents):
        assert parents.count(parent) <= top_k


def test_first_token_has_no_state(eagle: Callable[[], Trial]) -> None:
    assert eagle().draft([5]) == ([], [], [], [])


@pytest.mark.parametrize("chain", [{"top_k": 20}, {"top_p": 0.9}, {"top_k": 20, "repeat_penalty": 1.3}], ids=str)
def test_coupled_drafts_rank_as_the_sampler(chain: dict[str, Any], eagle: Callable[[], Trial]) -> None:
    """At temperature > 0 the root's first child is what the session's sampler takes from the draft's logits."""
    trial = eagle()
    trial.observe(TOKENS[:9])
    history = [*TOKENS[:9], 1]
    trial.drafter.keep_expansions()
    ids = TinyEagle().ids
    assert ids is not None
    firsts = set()
    for seed in range(40):
        options = {"temperature": 1.0, "seed": seed, **chain}
        tokens, parents, _, scores = trial.draft(history, (8, 1, 8), **options)
        logits = np.full(96, -np.inf, np.float32)
        logits[list(ids)] = trial.drafter.expansions()[0][2]
        chosen = _testing.Sampler(96, **options).sample(logits, len(history), history)
        assert tokens[0] == chosen and set(parents) == {-1}
        assert all(a >= b for a, b in itertools.pairwise(scores))
        firsts.add(chosen)
    assert len(firsts) > 2, "the noise changes nothing"


def test_penalties_and_bias_at_temperature_0(eagle: Callable[[], Trial]) -> None:
    trial = eagle()
    trial.observe(TOKENS[:9])
    history = [*TOKENS[:9], 1]
    best = trial.draft(history)[0][0]
    banned = trial.draft(history, logit_bias=[(best, -np.inf)])
    assert best not in [t for t, p in zip(banned[0], banned[1], strict=True) if p < 0]
    # Only a token outside the draft vocabulary is left: no draft, no error.
    everything = [(i, -np.inf) for i in range(96) if i != 0]
    assert trial.draft(history, logit_bias=everything) == ([], [], [], [])
    assert trial.draft(history, logit_bias=everything, temperature=1.0) == ([], [], [], [])


def test_calibration_learns_from_outcomes(eagle: Callable[[], Trial]) -> None:
    """A drafter that is always wrong at temperature 1 lowers its scores."""
    trial = eagle()
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, 96, 30).tolist()
    first = last = 0.0
    for n in range(2, 30):
        trial.observe(tokens[:n])
        last = sum(trial.draft(tokens[: n + 1], (8, 1, 8), temperature=1.0, seed=5)[3])
        first = first or last
    assert last < 0.8 * first


@pytest.mark.parametrize("ids", [TinyMedusa().ids, None])
def test_medusa_against_numpy(ids: tuple[int, ...] | None, load_tiny: Loader, tmp_path: Path) -> None:
    spec = TinyMedusa(ids=ids)
    trial = Trial(load_tiny(FIELDS), f"medusa:{spec.write(tmp_path / 'heads.gguf')}")
    assert trial.drafter.tap_layers == [] and trial.drafter.last_hidden
    tokens = TOKENS[:9]
    trial.observe(tokens, [4, 5])
    got = paths(trial.draft([*tokens, 3], (40, 5, 6)))
    hidden = trial.features(tokens)[1][-1].astype(np.float64)
    rows = target_matrices(FIELDS)[1]
    columns = np.arange(96) if ids is None else np.array(ids)
    probabilities = []
    for i in range(spec.n_heads):
        w = {name: values.astype(np.float64) for name, values in spec.float_tensors().items()}
        state = hidden + silu(w[f"head.{i}.weight"] @ hidden + w[f"head.{i}.bias"])
        p = softmax(rows[columns] @ state)
        probabilities.append({int(columns[c]): p[c] for c in np.argsort(-p)[:6]})
    assert max(len(path) for path in got) <= spec.n_heads
    for path, score in got.items():
        want = np.prod([probabilities[i][token] for i, token in enumerate(path)])
        assert abs(score / want - 1) < 1e-3
    first = sorted((float(p) for p in probabilities[0].values()), reverse=True)
    scores = [score for path, score in got.items() if len(path) == 1]
    assert scores == pytest.approx(first[: len(scores)], rel=1e-3)


def test_medusa_forgets(load_tiny: Loader, tmp_path: Path) -> None:
    trial = Trial(load_tiny(FIELDS), f"medusa:{TinyMedusa().write(tmp_path / 'heads.gguf')}")
    assert trial.draft([5])[0] == []
    trial.observe(TOKENS[:9])
    expected = trial.draft([*TOKENS[:9], 2], temperature=0.7, seed=1)
    trial.observe(TOKENS[:12])
    trial.truncate(8)
    assert trial.draft([*TOKENS[:8], 2])[0] == []
    trial.observe(TOKENS[:9])
    assert trial.draft([*TOKENS[:9], 2], temperature=0.7, seed=1)[:3] == expected[:3]


def test_model_drafter_against_its_own_logits(load_tiny: Loader, tiny: Callable[..., Path]) -> None:
    """Each node's score is the product of the draft model's probabilities along its path."""
    fields = {"arch": "llama", "seed": 9, "n_layers": 2}
    draft_model = load_tiny(fields)
    trial = Trial(load_tiny(FIELDS), f"model:{tiny(**fields)}")
    for n in (1, 6, 4, 9):  # also back
        history = TOKENS[:n]
        got = paths(trial.draft(history, (20, 3, 4)))
        assert len(got) == 20
        for path, score in got.items():
            logits = draft_model.logits([*history, *path]).astype(np.float64)
            p = softmax(logits[len(history) - 1 : -1])
            assert score == pytest.approx(np.prod([p[i, token] for i, token in enumerate(path)]), rel=1e-3)


def test_target_as_its_own_drafter_at_temperature_1(load_tiny: Loader, tiny: Callable[..., Path]) -> None:
    """With the target's own logits the best path is exactly what the sampler will choose."""
    model = load_tiny(FIELDS)
    trial = Trial(model, f"model:{tiny(**FIELDS)}")
    for seed in range(5):
        text = model.generate(TOKENS[:5], max_tokens=4, temperature=1.0, seed=seed, ignore_eos=True).tokens
        tree = paths(trial.draft(TOKENS[:5], (60, 4, 4), temperature=1.0, seed=seed))
        assert tuple(text) in tree


def test_model_drafter_stops_at_its_context(load_tiny: Loader, tiny: Callable[..., Path]) -> None:
    trial = Trial(load_tiny(FIELDS), f"model:{tiny(arch='llama', seed=9, n_ctx=12)}")
    assert max(trial.draft(TOKENS[:8], (4, 4, 1))[2]) == 4
    assert max(trial.draft(TOKENS[:10], (4, 4, 1))[2]) == 2
    assert trial.draft(TOKENS[:12], (4, 4, 1))[0] == []
    assert trial.draft(TOKENS[:30], (4, 4, 1))[0] == []
    assert max(trial.draft(TOKENS[:8], (4, 4, 1))[2]) == 4


def vocabulary(tokens: list[str], types: list[int] | None = None) -> dict[str, Any]:
    keys: dict[str, Any] = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens}
    if types is not None:
        keys["tokenizer.ggml.token_type"] = types
    return keys


def test_model_drafter_vocabularies(load_tiny: Loader, tiny: Callable[..., Path]) -> None:
    words = [f"w{i}" for i in range(96)]
    kinds = [1] * 90 + [5] * 6
    target = load_tiny({**FIELDS, "keys": vocabulary(words, kinds)})

    def draft(tokens: list[str], types: list[int] | None, n: int = 96) -> Trial:
        return Trial(target, f"model:{tiny(arch='llama', n_vocab=n, keys=vocabulary(tokens, types))}")

    assert draft(words, kinds).draft(TOKENS[:5])[0]
    # Unused entries at the end may differ, and be fewer or more.
    assert draft([*words[:90], *(f"pad{i}" for i in range(6))], kinds).draft(TOKENS[:5])[0]
    assert draft(words[:92], kinds[:92], 92).draft([1, 2, 3])[0]
    longer = draft([*words, *(f"more{i}" for i in range(4))], [*kinds, 5, 5, 5, 5], 100)
    assert max(longer.draft(TOKENS[:5], (60, 2, 100))[0]) < 96
    with pytest.raises(expertree.InvalidRequestError, match=r"1 tokens differ: 7 is 'other' here and 'w7' there"):
        draft([*words[:7], "other", *words[8:]], kinds)
    with pytest.raises(expertree.InvalidRequestError, match=r"95 tokens differ: .*and so on"):
        draft([words[0], "new", *words[1:-1]], [1] * 96)
    with pytest.raises(expertree.InvalidRequestError, match=r"1 tokens differ: 96 is 'a0' here and nothing there"):
        draft([*words, "a0"], None, 97)
    with pytest.raises(expertree.InvalidRequestError, match="names no tokens"):
        Trial(target, f"model:{tiny(arch='llama')}")
    with pytest.raises(expertree.InvalidRequestError, match="100 and 96"):
        Trial(load_tiny(FIELDS), f"model:{tiny(arch='llama', n_vocab=100)}")


def test_head_predictor_against_numpy(eagle: Callable[[], Trial], load_tiny: Loader, tmp_path: Path) -> None:
    spec = TinyEagle()
    trial = Trial(load_tiny(FIELDS), f"eagle3:{spec.write(tmp_path / 'head.gguf')}")
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((4 * 8, 128)).astype(np.float32)
    bias = rng.standard_normal(32).astype(np.float32)
    file = write_predictor(tmp_path / "predictor.gguf", weight, bias, 4, 8)
    assert trial.drafter.predict(f"head:{file}", 3).shape == (0, 4, 2)
    tokens, root = TOKENS[:9], 3
    trial.observe(tokens)
    tree = trial.draft([*tokens, root])
    got = trial.drafter.predict(f"head:{file}", root)
    assert got.shape == (33, 4, 2)

    head = NumpyEagle(spec, *target_matrices(FIELDS))
    features = trial.features(tokens)[0]
    prefix = [(t, head.first_state(f)) for t, f in zip([*tokens[1:], root], features, strict=True)]
    routes = [prefix]
    for token, parent in zip(tree[0], tree[1], strict=True):
        above = routes[parent + 1]
        routes.append([*above, (token, head.path_output(above))])
    for row, route in enumerate(routes):
        scores = (weight @ head.inputs(*route[-1]) + bias).reshape(4, 8)
        assert (np.sort(got[row], -1) == np.sort(np.argsort(-scores, -1)[:, :2], -1)).all(), row
    # Of a root that was not drafted for, the last state is used; of other drafters there is none.
    assert trial.drafter.predict(f"head:{file}", root + 1).shape == (33, 4, 2)


def test_router_predictor_against_numpy(load_tiny: Loader, tmp_path: Path) -> None:
    """Each row by the head's output at its token, or at the nearest ancestor that the head has read."""
    spec = TinyEagle()
    trial = Trial(load_tiny(FIELDS), f"eagle3:{spec.write(tmp_path / 'head.gguf')}")
    assert trial.drafter.predict("router", 3).shape == (0, 4, 2)
    tokens, root = TOKENS[:9], 3
    trial.observe(tokens)
    trial.drafter.keep_expansions()
    tree = trial.draft([*tokens, root])
    got = trial.drafter.predict("router", root)
    assert got.shape == (33, 4, 2)

    head = NumpyEagle(spec, *target_matrices(FIELDS))
    features = trial.features(tokens)[0]
    route = [(t, head.first_state(f)) for t, f in zip([*tokens[1:], root], features, strict=True)]
    routes, states, expanded = {(): route}, {(): head.path_output(route)}, [()]
    for token, parent, _ in trial.drafter.expansions()[1:]:
        above = expanded[parent]
        expanded.append((*above, token))
        routes[expanded[-1]] = [*routes[above], (token, states[above])]
        states[expanded[-1]] = head.path_output(routes[expanded[-1]])
    tensors = TinyModel(**FIELDS).float_tensors()
    n_leaves = 0
    for row, path in enumerate([(), *paths(tree)]):
        known = path
        while known not in states:
            known = known[:-1]
        n_leaves += known != path
        x = states[known] / np.sqrt((states[known] ** 2).mean() + 1e-5)
        for layer in range(4):
            scores = tensors[f"blk.{layer}.ffn_gate_inp.weight"] @ (x * tensors[f"blk.{layer}.ffn_norm.weight"])
            assert set(got[row, layer]) == set(np.argsort(-scores)[:2]), (row, layer)
    assert 0 < n_leaves < 32
    # A root that was not drafted for; a head of another width, whose states the routers cannot read.
    assert trial.drafter.predict("router", root + 1).shape == (33, 4, 2)
    wide = TinyEagle(own_embedding=True, n_embd=96, n_heads=3, n_kv_heads=1, head_dim=32, ids=None)
    other = Trial(load_tiny(FIELDS), f"eagle3:{wide.write(tmp_path / 'wide.gguf')}")
    other.observe(tokens)
    other.draft([*tokens, root])
    assert other.drafter.predict("router", root).shape == (0, 4, 2)


BAD_EAGLES: list[tuple[dict[str, Any], type[expertree.Error], str]] = [
    ({"n_target": 32}, expertree.InvalidRequestError, "target_hidden_size 32.*needs hidden size 64"),
    ({"taps": (1, 2, 4)}, expertree.InvalidRequestError, "features of layer 4.*layers 0 to 3"),
    ({"keys": {"eagle3.target_layers": [1, 2]}}, expertree.ModelFormatError, "enc.output_norm.*shape"),
    ({"keys": {"eagle3.target_layers": [1] * 65}}, expertree.ModelFormatError, "at most 64"),
    ({"keys": {"eagle3.target_layers": "two"}}, expertree.ModelFormatError, "target_layers"),
    ({"keys": {"eagle3.block_count": 2}}, expertree.UnsupportedError, "one layer"),
    ({"keys": {"eagle3.attention.head_count_kv": 3}}, expertree.ModelFormatError, "divisor"),
    ({"keys": {"eagle3.feed_forward_length": 2**31 - 1}}, expertree.ModelFormatError, "ffn_gate.*shape"),
    ({"keys": {"eagle3.embedding_length": 2**31 - 1}}, expertree.Error, "fc.weight|output_norm"),
    ({"keys": {"eagle3.embedding_length": None}}, expertree.ModelFormatError, "embedding_length"),
    ({"n_embd": 96}, expertree.InvalidRequestError, "width 96 and no token_embd.weight"),
    ({"n_embd": 96, "own_embedding": True, "own_output": False}, expertree.InvalidRequestError, "no output.weight"),
    ({"own_output": False}, expertree.InvalidRequestError, "draft vocabulary of 54 and no output.weight"),
    ({"n_vocab": 64, "ids": (1, 2), "own_embedding": True}, expertree.InvalidRequestError, "embeddings of 64 tokens"),
    ({"ids": (1, 2, 96)}, expertree.ModelFormatError, "d2t.*draft id 2 to 96"),
    ({"ids": (1, 2, 1)}, expertree.ModelFormatError, "d2t.*distinct"),
    ({"tensors": {"d2t": np.zeros(54, np.float32)}}, expertree.ModelFormatError, "d2t.*F32.*I32 or I64"),
    ({"tensors": {"d2t": np.full(54, -(2**63))}}, expertree.ModelFormatError, "d2t"),
    ({"tensors": {"d2t": np.arange(50)}}, expertree.ModelFormatError, "output.weight.*shape"),
    ({"tensors": {"fc.weight": None}}, expertree.ModelFormatError, "fc.weight' is missing"),
    ({"tensors": {"enc.output_norm.weight": None}}, expertree.ModelFormatError, "enc.output_norm"),
    ({"tensors": {"blk.0.attn_norm_2.weight": None}}, expertree.ModelFormatError, "attn_norm_2.weight' is missing"),
    ({"tensors": {"blk.1.attn_norm.weight": np.ones(64, np.float32)}}, expertree.UnsupportedError, "blk.1"),
    ({"tensors": {"output_norm.weight": np.ones(64, np.float16)}}, expertree.UnsupportedError, "must be F32"),
]


@pytest.mark.parametrize(("fields", "error", "words"), BAD_EAGLES, ids=[words for _, _, words in BAD_EAGLES])
def test_bad_eagle_files(
    fields: dict[str, Any], error: type[expertree.Error], words: str, load_tiny: Loader, tmp_path: Path
) -> None:
    path = TinyEagle(**fields).write(tmp_path / "head.gguf")
    with pytest.raises(error, match=words) as caught:
        Trial(load_tiny(FIELDS), f"eagle3:{path}")
    assert str(path) in str(caught.value)


def test_damaged_weights_are_an_error(load_tiny: Loader, tmp_path: Path) -> None:
    weight = np.full((64, 192), np.nan, np.float32)
    path = TinyEagle(tensors={"fc.weight": weight}).write(tmp_path / "head.gguf")
    trial = Trial(load_tiny(FIELDS), f"eagle3:{path}")
    trial.observe(TOKENS[:5])
    for temperature in (0.0, 1.0):
        with pytest.raises(expertree.ModelFormatError, match="not a finite number"):
            trial.draft(TOKENS[:6], temperature=temperature)


def test_other_bad_files(load_tiny: Loader, tiny: Callable[..., Path], tmp_path: Path) -> None:
    model = load_tiny(FIELDS)
    target = tiny(**FIELDS)
    eagle = TinyEagle().write(tmp_path / "eagle.gguf")

    def medusa(**fields: Any) -> str:
        return f"medusa:{TinyMedusa(**fields).write(tmp_path / 'heads.gguf')}"

    cases: list[tuple[str, type[expertree.Error], str]] = [
        (f"eagle3:{target}", expertree.InvalidRequestError, "architecture is 'qwen3moe'; expected 'eagle3'"),
        (f"medusa:{eagle}", expertree.InvalidRequestError, "architecture is 'eagle3'; expected 'medusa'"),
        (f"model:{eagle}", expertree.Error, "eagle3|vocabular"),
        (f"eagle3:{tmp_path / 'none.gguf'}", expertree.InvalidRequestError, "none.gguf"),
        ("eagle3", expertree.InvalidRequestError, "eagle3:FILE"),
        ("nothing:x", expertree.InvalidRequestError, "no drafter 'nothing:x'.*ngram.*eagle3:FILE"),
    ]
    for spec, error, words in cases:
        with pytest.raises(error, match=words):
            Trial(model, spec)
    heads: list[tuple[dict[str, Any], type[expertree.Error], str]] = [
        ({"n_embd": 32}, expertree.InvalidRequestError, "width 32.*needs width 64"),
        ({"n_embd": 32, "keys": {"medusa.embedding_length": 64}}, expertree.ModelFormatError, "head.0.weight.*shape"),
        ({"keys": {"medusa.head_count": 0}}, expertree.ModelFormatError, "head_count"),
        ({"keys": {"medusa.head_count": 4}}, expertree.ModelFormatError, "head.3.weight' is missing"),
        ({"keys": {"medusa.head_count": 2}}, expertree.UnsupportedError, "head.2"),
        ({"ids": (5, 96)}, expertree.ModelFormatError, "draft_ids.*draft id 1 to 96"),
        ({"ids": (5, -1)}, expertree.ModelFormatError, "draft_ids"),
        ({"tensors": {"draft_ids": np.zeros((2, 2), np.int32)}}, expertree.ModelFormatError, "draft_ids.*shape"),
    ]
    for fields, error, words in heads:
        with pytest.raises(error, match=words):
            Trial(model, medusa(**fields))


def test_bad_predictor_files(load_tiny: Loader, tmp_path: Path) -> None:
    model = load_tiny(FIELDS)
    trial = Trial(model, f"eagle3:{TinyEagle().write(tmp_path / 'head.gguf')}")
    weight, bias = np.zeros((32, 128), np.float32), np.zeros(32, np.float32)

    def refused(error: type[expertree.Error], words: str, *arguments: Any, **keys: Any) -> None:
        file = write_predictor(tmp_path / "predictor.gguf", *arguments, **keys)
        with pytest.raises(error, match=words):
            trial.drafter.predict(f"head:{file}", 1)

    refused(expertree.InvalidRequestError, "2 layers of 16 experts.*needs 4 of 8", weight, bias, 2, 16)
    refused(expertree.ModelFormatError, "predictor.weight.*shape", weight[:, :64], bias, 4, 8)
    refused(expertree.ModelFormatError, "predictor.bias.*shape", weight, bias[:8], 4, 8)
    refused(expertree.UnsupportedError, "features' is 'medusa'", weight, bias, 4, 8, features="medusa")
    with pytest.raises(expertree.InvalidRequestError, match="head:FILE"):
        trial.drafter.predict("head", 1)
    medusa = Trial(model, f"medusa:{TinyMedusa().write(tmp_path / 'heads.gguf')}")
    with pytest.raises(expertree.InvalidRequestError, match="eagle3:FILE"):
        medusa.drafter.predict(f"head:{write_predictor(tmp_path / 'p.gguf', weight, bias, 4, 8)}", 1)


def test_memory_is_counted(eagle: Callable[[], Trial]) -> None:
    trial = eagle()
    before = trial.drafter.memory_bytes
    assert before > 40_000
    trial.observe(TOKENS)
    trial.draft([*TOKENS, 1])
    # Keys and values of 256 cells, and a state per position.
    assert trial.drafter.memory_bytes >= before + 256 * 64 * 4 + 40 * 64 * 4
