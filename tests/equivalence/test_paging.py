"""Paging changes no bit: logits equal those of the fully resident model at every budget, with poisoned freed slots."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_session import CoreSession, same_bits
from expertree import Model, OutOfMemoryError
from expertree._core import _testing
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_model import MOE_ARCHITECTURES as RECORDED
from tiny_model import FORMATS, MOE_ARCHITECTURES, TinyModel

EXAMPLES = int(os.environ.get("EXPERTREE_EXAMPLES", "60"))
TOKENS = np.random.default_rng(5).integers(0, 96, 60).astype(np.int32)
Tiny = Callable[..., Path]


def load_paged(path: Path, faults: Any = None, **options: Any) -> Any:
    """A core model that reads as the product does, with faults where they are given."""
    rules = _testing.Faults() if faults is None else faults
    rules.descriptor = True
    return _testing.load_paged(path.as_posix(), faults=rules, **options)


class Paged(CoreSession):
    """A core model with poisoned slots, and a session on it."""

    def __init__(self, path: Path, n_ctx: int = 4096, **options: Any) -> None:
        super().__init__(load_paged(path, **options), n_ctx)

    @property
    def stats(self) -> dict[str, Any]:
        return dict(self.model.experts.stats)


def budgets(path: Path) -> list[int]:
    """From the least that works to all, a slot at a time where there are few."""
    pager = load_paged(path).experts
    least, most = pager.stats["least_bytes"], pager.stats["all_bytes"]
    n = pager.stats["slots"]
    return sorted({least + (most - least) * i // n for i in range(n + 1)})


@pytest.mark.parametrize("arch", MOE_ARCHITECTURES)
def test_every_budget_gives_the_bits_of_the_resident_model(arch: str, tiny: Tiny) -> None:
    path = tiny(arch=arch, format="Q8_0")
    resident = Model(path, ram="all")
    expected = resident.logits(TOKENS)
    n_used = sum(len(np.unique(layer)) for layer in resident.routing(TOKENS)[0])
    with pytest.raises(OutOfMemoryError, match=f"works with {budgets(path)[0]} bytes"):
        Paged(path, budget=budgets(path)[0] - 1)
    for budget in budgets(path):
        paged = Paged(path, budget=budget)
        assert paged.stats["budget_bytes"] <= budget
        for chunk in (1, 7, len(TOKENS)):
            assert same_bits(paged.logits(TOKENS, chunk), expected), (budget, chunk)
            paged.session.truncate(0)
        stats = paged.stats
        assert stats["uses"] == stats["hits"] + stats["late"] + stats["misses"]
        assert (stats["evictions"] > 0) == (stats["slots"] < n_used)


@pytest.mark.parametrize("arch", RECORDED)
def test_few_budgets_of_every_architecture(arch: str, tiny: Tiny) -> None:
    path = tiny(arch=arch, format="Q8_0")
    expected = Model(path, ram="all").logits(TOKENS)
    every = budgets(path)
    for budget, chunk in ((every[0], 7), (every[len(every) // 2], 1), (every[-1], len(TOKENS))):
        paged = Paged(path, n_ctx=256, budget=budget, read_ahead=chunk == 1, background=chunk == 1)
        assert same_bits(paged.logits(TOKENS, chunk), expected), (budget, chunk)
        assert (paged.stats["evictions"] > 0) == (budget < every[-1])


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_at_few_slots(form: str, tiny: Tiny) -> None:
    path = tiny(arch="qwen3moe", format=form)
    expected = Model(path, ram="all").logits(TOKENS)
    for reader in ("threads", "auto"):
        for direct, use_cached in ((True, True), (True, False), (False, True)):
            budget = budgets(path)[3]
            paged = Paged(path, budget=budget, reader=reader, direct=direct, use_cached=use_cached)
            assert same_bits(paged.logits(TOKENS, 1), expected)
            assert paged.stats["evictions"] > 0


def test_layers_of_different_sizes(tiny: Tiny) -> None:
    """A Q4_K_M file: some down projections are larger, which makes two classes of slots."""
    path = tiny(arch="qwen3moe", format="Q4_K", n_layers=3, formats={"blk.1.ffn_down_exps.weight": "Q6_K"})
    expected = Model(path, ram="all").logits(TOKENS)
    pager = Paged(path).model.experts
    assert len(set(pager.class_of_layer)) == 2
    for budget in budgets(path)[::3]:
        assert same_bits(Paged(path, budget=budget).logits(TOKENS, 5), expected)


@pytest.mark.parametrize("arch", ["mixtral", "qwen3moe"])
def test_one_tensor_per_expert(arch: str, tmp_path: Path) -> None:
    path = TinyModel(arch=arch, format="Q8_0", per_expert_tensors=True).write(tmp_path / "m.gguf")
    expected = Model(path, ram="all").logits(TOKENS)
    assert same_bits(Paged(path, budget=budgets(path)[2]).logits(TOKENS, 4), expected)


@pytest.mark.parametrize("policy", ["lru", "lfu-decay", "layer-lfu", "auto"])
def test_e1_thousands_of_tokens_with_poisoned_slots(policy: str, tiny: Tiny) -> None:
    """Slots for one layer's experts and one more; random tokens route everywhere."""
    path = tiny(arch="qwen3moe", format="Q8_0", n_experts=16, n_ctx=4096)
    tokens = np.random.default_rng(11).integers(0, 96, 2000).astype(np.int32)
    expected = Model(path, ram="all", n_ctx=4096).logits(tokens)
    slot = load_paged(path).experts.slot_bytes[0]
    paged = Paged(
        path, budget=3 * slot, policy=policy, background=True, threads=2, use_cached=policy == "lru", read_ahead=True
    )
    assert same_bits(paged.logits(tokens, 1), expected)
    assert paged.stats["slots"] == 3
    assert paged.stats["evictions"] > 1000


@st.composite
def trees(draw: st.DrawFn, max_rows: int = 20) -> tuple[list[int], list[int]]:
    n = draw(st.integers(1, max_rows))
    return [draw(st.integers(0, 95)) for _ in range(n)], [draw(st.integers(-1, i - 1)) for i in range(n)]


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_trees_hints_and_policy_changes_at_any_budget(data: st.DataObject, tiny: Tiny) -> None:
    """Whatever is hinted, and whichever policy rules from one step to the next."""
    path = tiny(arch=data.draw(st.sampled_from(MOE_ARCHITECTURES)), format=data.draw(st.sampled_from(["Q8_0", "F32"])))
    resident = Model(path, ram="all").session(n_ctx=4096)
    faults = _testing.Faults()
    faults.delay_every, faults.delay_us = 3, 200
    paged = Paged(
        path,
        budget=data.draw(st.sampled_from(budgets(path))),
        threads=data.draw(st.integers(1, 3)),
        background=data.draw(st.booleans()),
        read_ahead=data.draw(st.booleans()),
        use_cached=data.draw(st.booleans()),
        reader=data.draw(st.sampled_from(["auto", "threads"])),
        faults=faults,
    )
    pager = paged.model.experts
    for _ in range(data.draw(st.integers(1, 6))):
        if data.draw(st.booleans()):
            layer, experts = st.integers(0, pager.n_layers - 1), st.lists(st.integers(0, 7), max_size=5)
            pager.hint(data.draw(layer), data.draw(experts), 1.0)
        if data.draw(st.booleans()):
            pager.set_policy(data.draw(st.sampled_from(["lru", "lfu-decay", "layer-lfu"])))
        tokens, parents = data.draw(trees())
        assert same_bits(paged.evaluate(tokens, parents), resident.evaluate(tokens, parents))
        row = data.draw(st.integers(-1, len(tokens) - 1))
        chosen: list[int] = []
        while row >= 0:
            chosen.insert(0, row)
            row = parents[row]
        paged.session.commit(np.array(chosen, np.int32))
        resident.commit(chosen)
    states = pager.states
    assert ((states == 2).sum() + (states == 1).sum()) <= paged.stats["slots"]
