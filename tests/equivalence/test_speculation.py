"""Contract X2: with one seed the text is the same with any drafter, selector and predictor, at any sampler setting.

The oracle is the session without a drafter. Every pair of values of the table below comes in at least one run of 200
tokens, with EXPERTREE_LOSSLESS=full of 500; tools/lossless_product.py runs the whole product.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from drafters import NothingDrafter, RandomSelector, WildDrafter, WrongDrafter
from expertree import Model, ScriptedDrafter, Session
from expertree.model import predictor_names, selector_names
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_model import ARCHITECTURES as RECORDED
from tiny_model import ARCHITECTURES

FULL = os.environ.get("EXPERTREE_LOSSLESS") == "full"
N_TOKENS = 500 if FULL else 200
EXAMPLES = int(os.environ.get("EXPERTREE_EXAMPLES", "30"))
Loader = Callable[..., Model]
PROMPT = [5, 9, 5, 9, 33, 60, 5, 9]

# What a selector takes after its name, where it must have something.
ARGUMENTS = {"chain": "3", "threshold": "0.8", "ecospec": "6", "ecospec-static": "6", "moespec": "2"}
LOSSY = {"moespec"}

DRAFTERS: dict[str, Callable[[list[int]], Any]] = {
    "ngram": lambda truth: "ngram",
    "scripted 0": lambda truth: ScriptedDrafter(truth, rates=[0.0]),
    "scripted 0.5": lambda truth: ScriptedDrafter(truth, rates=[0.5], score_noise=0.5),
    "scripted 1": lambda truth: ScriptedDrafter(truth, rates=[1.0]),
    "wrong": lambda truth: WrongDrafter(truth, 96),
    "wild": lambda truth: WildDrafter(truth, 96),
    "nothing": lambda truth: NothingDrafter(),
    "merged": lambda truth: ["ngram", WildDrafter(truth, 96, 1), ScriptedDrafter(truth, rates=[0.6])],
}
SELECTORS: dict[str, Callable[[], Any]] = {
    **{
        name: lambda name=name: f"{name}:{ARGUMENTS[name]}" if name in ARGUMENTS else name
        for name in selector_names()
        if name not in LOSSY
    },
    "random": RandomSelector,
}
SAMPLERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "filters": {"top_k": 20, "top_p": 0.9, "min_p": 0.02},
    "penalties": {"repeat_penalty": 1.5, "presence_penalty": 0.3, "frequency_penalty": 0.2, "penalty_last_n": 24},
    "bias": {"logit_bias": {3: 2.5, 5: -1.0, 7: float("-inf")}, "penalty_last_n": -1, "repeat_penalty": 1.1},
}
FACTORS: dict[str, list[Any]] = {
    "arch": list(ARCHITECTURES),
    "drafter": list(DRAFTERS),
    "selector": list(SELECTORS),
    "predictor": ["none", *(name for name in predictor_names() if ":" not in name)],
    "temperature": [0.0, 0.7, 1.0],
    "sampler": list(SAMPLERS),
    "memory": ["all", "paged"],
    "cache": ["f32", "f16", "q8_0"],
    "nodes": [1, 8, 32],
}


def pairwise(factors: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Rows of values such that every two values of two factors come together in one of them; greedy."""
    names = list(factors)
    left = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i in range(len(factors[a]))
        for j in range(len(factors[b]))
    }
    while left:
        row: dict[str, int] = dict(min(left, key=repr))
        for name in (n for n in names if n not in row):
            gains = [
                sum((((k, v), (name, i)) in left) + (((name, i), (k, v)) in left) for k, v in row.items())
                for i in range(len(factors[name]))
            ]
            row[name] = int(np.argmax(gains))
        left -= set(itertools.product(row.items(), row.items()))
        yield {name: factors[name][row[name]] for name in names}


def load(load_tiny: Loader, arch: str, memory: str = "all", cache: str = "f32", **fields: Any) -> Model:
    """A tiny model; "paged" leaves it two experts more than a layer uses, and "device" that and half of them on a GPU
    (EXPERTREE_DEVICE)."""
    spec = {"arch": arch, "format": "Q8_0", "n_ctx": 1024, **fields}
    resident = load_tiny(spec, ram="all", cache_type=cache)
    if memory == "all" or resident.n_experts == 0:
        return resident
    least = resident.experts["least_bytes"]
    slot = resident.experts["all_bytes"] // resident.experts["slots"]
    if memory == "device":
        all_on_it = load_tiny(spec, ram="all", vram="all", cache_type=cache).gpu
        vram = (all_on_it["least_bytes"] + all_on_it["all_bytes"]) // 2
        return load_tiny(spec, ram=int(least + slot), vram=vram, threads=2, cache_type=cache)
    return load_tiny(spec, ram=int(least + slot), threads=2, cache_type=cache)


def run(session: Session, n: int, **step: Any) -> list[int]:
    """The next n tokens, fewer when the context ends."""
    tokens: list[int] = []
    while len(tokens) < n:
        done = session.step(max_tokens=n - len(tokens), **step)
        if done is None:
            break
        tokens += done.tokens
    return tokens


def plain_run(model: Model, prompt: Sequence[int], n: int, n_ctx: int = 1024, **sampling: Any) -> list[int]:
    """Prompt and continuation without a drafter."""
    session = model.session(n_ctx=n_ctx, **sampling)
    session.prefill(prompt)
    run(session, n)
    return session.tokens


def assert_same_state(one: Session, other: Session, lengths: Sequence[int] = ()) -> None:
    """Equal tokens; the next token and logits of the same bits after them, and after each shorter length (falling)."""
    for length in (len(one), *lengths):
        for session in (one, other):
            session.truncate(length)
        assert one.tokens == other.tokens
        assert one.step(max_tokens=1) == other.step(max_tokens=1)
        logits = [session.evaluate([17, 4], [-1, -1]) for session in (one, other)]
        one.rollback()
        other.rollback()
        assert (logits[0].view(np.uint32) == logits[1].view(np.uint32)).all(), f"at length {length}"


@pytest.mark.parametrize("case", list(pairwise(FACTORS)), ids=lambda case: " ".join(map(str, case.values())))
def test_lossless(case: dict[str, Any], load_tiny: Loader) -> None:
    check_lossless(case, load_tiny, N_TOKENS)


def check_lossless(case: dict[str, Any], load_tiny: Loader, n_tokens: int) -> None:
    model = load(load_tiny, case["arch"], case["memory"], case["cache"])
    sampling = {"temperature": case["temperature"], "seed": 11, **SAMPLERS[case["sampler"]]}
    plain = load(load_tiny, case["arch"], cache=case["cache"]).session(n_ctx=1024, **sampling)
    plain.prefill(PROMPT)
    truth = PROMPT + run(plain, n_tokens + 4)
    plain.truncate(len(PROMPT) + n_tokens)
    session = model.session(
        n_ctx=1024,
        draft=DRAFTERS[case["drafter"]](truth),
        select=SELECTORS[case["selector"]](),
        predict=case["predictor"],
        draft_nodes=min(case["nodes"], 16) if case["selector"] == "exhaustive" else case["nodes"],
        **sampling,
    )
    session.prefill(PROMPT)
    run(session, n_tokens)
    assert session.tokens == truth[: len(PROMPT) + n_tokens]
    n = len(session)
    session.truncate(n - 1)  # all of it has been run
    plain.truncate(n - 1)
    assert_same_state(session, plain, [len(PROMPT) + n_tokens // 2, len(PROMPT) + 1])


@pytest.mark.parametrize("arch", RECORDED)
def test_lossless_in_every_architecture(arch: str, load_tiny: Loader) -> None:
    """One run each; which drafter, selector and predictor goes round with the architectures."""
    i = RECORDED.index(arch)
    turn: dict[str, Any] = {name: values[i % len(values)] for name, values in FACTORS.items() if name != "arch"}
    drafter = ("scripted 0.5", "wild", "scripted 1", "ngram")[i % 4]
    case = {**turn, "arch": arch, "drafter": drafter, "nodes": 8, "memory": "paged" if i % 2 else "all"}
    check_lossless(case, load_tiny, 64)


def test_the_pairs_are_all_there() -> None:
    rows = list(pairwise(FACTORS))
    for a, b in itertools.combinations(FACTORS, 2):
        assert {(row[a], row[b]) for row in rows} == set(itertools.product(FACTORS[a], FACTORS[b]))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_are_accepted_at_their_rate(temperature: float, load_tiny: Loader) -> None:
    """Else the tests above would show nothing: a scripted drafter that is right has its whole depth accepted."""
    model = load(load_tiny, "qwen3moe")
    sampling = {"temperature": temperature, "seed": 3}
    truth = plain_run(model, PROMPT, 410, **sampling)
    for rate, low, high in ((1.0, 4.0, 4.0), (0.0, 0.0, 0.0), (0.5, 0.7, 1.1)):  # 0.5: 0.94 on average
        draft = ScriptedDrafter(truth, rates=[rate], spread=0.0)
        session = model.session(n_ctx=1024, draft=draft, select="all", predict="none", **sampling)
        session.prefill(PROMPT)
        steps = []
        while len(session) < 400:
            steps.append(session.step())
        accepted = [len(step.accepted) for step in steps[1:]]
        assert low <= np.mean(accepted) <= high
        for step in steps[1:]:
            assert len(step.tokens) == len(step.accepted) + 1
            assert [int(step.tree.tokens[node]) for node in step.accepted] == step.tokens[:-1]
            assert step.cost.rows == len(step.selected) + 1
        assert steps[0].cost.rows == 0  # the prompt had been run
        assert session.stats["accepted"] == sum(accepted) and session.stats["steps"] == len(steps)


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_any_mixture_of_steps_with_everything_else(data: st.DataObject, load_tiny: Loader) -> None:
    """Drafted steps between prefills, commits, rollbacks, truncations and branches: a session as good as a new one."""
    arch = data.draw(st.sampled_from(["qwen3moe", "mixtral", "llama"]))
    model = load(load_tiny, arch, data.draw(st.sampled_from(["all", "paged"])))
    sampling = {"temperature": data.draw(st.sampled_from([0.0, 1.0])), "seed": 5, "repeat_penalty": 1.2}
    tokens = st.lists(st.integers(0, 95), min_size=1, max_size=8)
    session = model.session(n_ctx=200, draft="ngram", select=RandomSelector(data.draw(st.integers(0, 99))), **sampling)
    session.prefill(data.draw(tokens) * 2)
    kept = session.tokens
    for _ in range(data.draw(st.integers(1, 8))):
        action = data.draw(st.sampled_from(["step", "step", "prefill", "commit", "rollback", "truncate", "branch"]))
        if action == "prefill":
            session.prefill(more := data.draw(tokens))
            kept += more
        elif action in ("commit", "rollback"):
            session.evaluate(more := data.draw(tokens))
            path = range(data.draw(st.integers(0, len(more)))) if action == "commit" else []
            session.commit(path) if action == "commit" else session.rollback()
            kept += [more[row] for row in path]
        elif action == "truncate":
            kept = kept[: data.draw(st.integers(1, len(kept)))]
            session.truncate(len(kept))
        elif action == "branch":
            session.branch().prefill([1, 2, 3])  # what happens to the copy is nothing to this one
        else:
            fresh = model.session(n_ctx=200, **sampling)
            fresh.prefill(kept)
            for token in session.step(max_tokens=data.draw(st.integers(1, 6))).tokens:  # type: ignore[union-attr]
                assert fresh.step().tokens == [token]  # type: ignore[union-attr]
                kept.append(token)
        assert session.tokens == kept
    fresh = model.session(n_ctx=200, **sampling)
    fresh.prefill(kept)
    assert_same_state(session, fresh)
