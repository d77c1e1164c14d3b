"""Cache policies written in Python: what they are told, and that the pager keeps to what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import expertree
import numpy as np
import pytest
from expertree import CachePolicy, Model
from expertree.model import policy_names

Tiny = Callable[..., Path]
SPEC: dict[str, Any] = {"arch": "qwen3moe", "format": "Q8_0"}
PROMPT = [5, 9, 5, 9, 33, 60, 5, 9]


class Favourites(CachePolicy):
    """Some experts are worth all, and it remembers what it was told."""

    def __init__(self, favourites: dict[int, list[int]]) -> None:
        self.favourites = favourites
        self.told: list[tuple[np.ndarray, int]] = []

    def update(self, uses: Any, n_rows: int) -> Any:
        self.told.append((uses, n_rows))
        values = np.zeros(uses.shape)
        for layer, experts in self.favourites.items():
            values[layer, experts] = 1.0
        return values


def load(path: Path, policy: Any, n_slots: int = 6) -> Model:
    slot = int(Model(path)._core.experts.slot_bytes[0])
    return Model(path, ram=n_slots * slot, policy=policy)


def run(model: Model, n: int = 120, **options: Any) -> expertree.Session:
    session = model.session(n_ctx=256, temperature=1.0, seed=3, **options)
    session.prefill(PROMPT)
    while len(session) < n:
        session.step()
    return session


@pytest.mark.parametrize("favourites", [{0: [1, 4], 1: [2]}, {0: [7], 1: [0, 5]}])
def test_the_experts_worth_most_stay(favourites: dict[int, list[int]], tiny: Tiny) -> None:
    """Of 16 experts 8 have room. What was read ahead is spared by every policy, so that now and then a favourite is all
    that can go; which of the others goes is the policy's choice alone."""

    def n_times_gone(policy: Any) -> int:
        model = load(tiny(**SPEC), policy, 8)
        session = model.session(n_ctx=256, temperature=1.0, seed=3)
        session.prefill(PROMPT)
        n, there = 0, np.zeros((2, 8), bool)
        for _ in range(200):
            session.step()
            now = model._core.experts.states == 2
            n += sum(int((there & ~now)[layer, e]) for layer, experts in favourites.items() for e in experts)
            there = now
        return n

    assert 3 * n_times_gone(Favourites(favourites)) < n_times_gone("lru")


def test_it_is_told_every_use_once(tiny: Tiny) -> None:
    policy = Favourites({})
    model = load(tiny(**SPEC), policy)
    session = run(model)
    assert (policy.told[0][0] == 0).all() and policy.told[0][1] == 0
    session.step()  # the last call tells of all before
    uses = sum(uses for uses, _ in policy.told)
    ids = model.routing(session.tokens[:-2])[0]
    expected = np.stack([np.bincount(layer.ravel(), minlength=8) for layer in ids])
    # The prompt's rows but the last leave the last layer out.
    expected[-1] -= np.bincount(ids[-1, : len(PROMPT) - 1].ravel(), minlength=8)
    assert (uses == expected).all()
    assert sum(n for _, n in policy.told) == len(session) - 2


def test_the_text_stays_the_same_and_the_cost_is_shown(tiny: Tiny) -> None:
    path = tiny(**SPEC)
    model = load(path, Favourites({0: [3]}))
    assert model.experts["policy_seconds"] == 0.0
    assert run(model).tokens == run(Model(path)).tokens
    assert 0.0 < model.experts["policy_seconds"] < 60.0
    assert "policy_seconds" not in Model(path).experts


def test_drafts_and_joint_steps_ask_it_too(tiny: Tiny) -> None:
    path = tiny(**SPEC)
    policy = Favourites({1: [0, 1, 2]})
    model = load(path, policy)
    plain = run(Model(path)).tokens
    assert run(model, draft="ngram").tokens[:120] == plain[:120]
    n_calls = len(policy.told)
    session = model.session(n_ctx=256, temperature=1.0, seed=3)
    session.prefill(PROMPT)
    engine = expertree.Engine(model)
    for _ in range(20):
        engine.step([session])
    assert session.tokens == plain[: len(session)]
    assert len(policy.told) > n_calls + 15


class Odd(CachePolicy):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def update(self, uses: Any, n_rows: int) -> Any:
        return self.answer if n_rows > 0 else None


@pytest.mark.parametrize(
    "answer",
    [np.zeros((2, 7)), np.zeros(16), np.full((2, 8), np.nan), np.full((2, 8), "x"), 5, "none", [[1.0], [1.0, 2.0]]],
)
def test_an_answer_that_makes_no_sense_is_an_error(answer: Any, tiny: Tiny) -> None:
    path = tiny(**SPEC)
    policy = Odd(answer)
    model = load(path, policy)
    session = model.session(n_ctx=256, temperature=1.0, seed=3)
    session.prefill(PROMPT)
    for _ in range(2):
        with pytest.raises(expertree.InvalidRequestError, match=r"policy Odd gave .*shape \(2, 8\)"):
            session.step()
    assert session.tokens == PROMPT
    policy.answer = np.arange(16).reshape(2, 8)
    session.step()
    assert session.tokens == run(Model(path), len(PROMPT) + 1).tokens


def test_what_it_raises_comes_through(tiny: Tiny) -> None:
    model = load(tiny(**SPEC), CachePolicy())
    session = model.session()
    with pytest.raises(NotImplementedError):
        session.prefill(PROMPT)
    assert session.tokens == []


def test_it_may_not_run_the_model(tiny: Tiny) -> None:
    class Runs(CachePolicy):
        def update(self, uses: Any, n_rows: int) -> None:
            model.generate(PROMPT, max_tokens=1)

    model = load(tiny(**SPEC), Runs())
    with pytest.raises(expertree.InvalidRequestError, match="Runs runs the model that asks it"):
        model.session().prefill(PROMPT)


def test_a_dense_model_has_no_use_for_it(tiny: Tiny) -> None:
    policy = Favourites({})
    model = Model(tiny(arch="qwen3"), policy=policy)
    model.generate(PROMPT, max_tokens=4)
    assert policy.told == []


def test_values_are_not_a_policy_by_name(tiny: Tiny) -> None:
    path = tiny(**SPEC)
    assert "values" not in policy_names()
    with pytest.raises(expertree.InvalidRequestError, match="give the object itself"):
        Model(path, policy="values")
    model = Model(path)
    with pytest.raises(expertree.InvalidRequestError, match="CachePolicy"):
        model._core.experts.set_policy("values")
    with pytest.raises(expertree.InvalidRequestError, match="goes by no values"):
        model._core.experts.set_values(np.zeros(16, np.float32))


def test_a_profile_of_it_can_be_read(tiny: Tiny) -> None:
    """What the object said is not in it: replays take all experts to be worth the same."""
    model = load(tiny(**SPEC), Favourites({0: [1]}))
    with model.profile() as profiling:
        run(model, 40)
    assert "policy values" in profiling.profile.summary()
