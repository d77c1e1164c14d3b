"""Contract X1 and X2 for sessions that share passes: each gets the tokens and the bits that it gets alone.

The oracle is a session of its own without a drafter, on a model that keeps all experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import expertree
import numpy as np
import pytest
from drafters import AllSelector, CallDrafter, RandomSelector, WildDrafter, WrongDrafter, chain
from expertree import Engine, Model, ScriptedDrafter, Session
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_model import ARCHITECTURES as RECORDED
from test_speculation import EXAMPLES, assert_same_state, load, plain_run, run
from tiny_model import ARCHITECTURES

Loader = Callable[..., Model]
N_TOKENS = 48
N_VOCAB = 96

# What differs between the sessions of a step: drafter of (truth), selector, sampling, prompt.
Drafting = Callable[[list[int]], Any]
SESSIONS: list[tuple[Drafting, Any, dict[str, Any], list[int]]] = [
    (lambda truth: None, None, {}, [5, 9, 5, 9, 33, 60, 5, 9]),
    (lambda truth: ScriptedDrafter(truth, rates=[0.7]), "residency", {"temperature": 0.8, "seed": 3}, [7, 8]),
    (lambda truth: "ngram", "all", {"repeat_penalty": 1.3, "temperature": 0.5, "seed": 1}, [5, 9] * 6),
    (lambda truth: WildDrafter(truth, N_VOCAB), RandomSelector(), {"top_k": 5, "temperature": 1.0, "seed": 9}, [40]),
    (lambda truth: ScriptedDrafter(truth, rates=[1.0], seed=4), "chain:3", {}, list(range(70))),
    (lambda truth: WrongDrafter(truth, N_VOCAB), "evict", {"logit_bias": {3: 2.0}}, [1, 2, 3]),
    (lambda truth: None, None, {"temperature": 1.0, "seed": 5, "min_p": 0.05}, [5, 9, 5, 9]),
    (lambda truth: "ngram", "ecospec:4", {}, [33, 60] * 5),
]


def make_session(
    model: Model, resident: Model, kind: int, n_tokens: int, n_ctx: int = 512
) -> tuple[Session, list[int]]:
    """A session at its prompt, and all tokens that it is to come to."""
    draft, select, sampling, prompt = SESSIONS[kind]
    truth = plain_run(resident, prompt, n_tokens + 8, n_ctx=n_ctx, **sampling)
    drafter = draft(truth)
    chosen = RandomSelector(kind) if isinstance(select, RandomSelector) else select
    options = {} if drafter is None else {"draft": drafter, "select": chosen, "draft_nodes": 8}
    session = model.session(n_ctx=n_ctx, **options, **sampling)
    session.prefill(prompt)
    return session, truth[: len(prompt) + n_tokens]


def step_all(engine: Engine, sessions: Sequence[Session], totals: Sequence[int]) -> None:
    """Steps the sessions together until each has its total; the short ones drop out."""
    while left := [(s, n - len(s)) for s, n in zip(sessions, totals, strict=True) if len(s) < n]:
        for step in engine.step([s for s, _ in left], max_tokens=[n for _, n in left]):
            assert step is not None and len(step.tokens) >= 1


def check_together(model: Model, resident: Model, kinds: Sequence[int], n_tokens: int = N_TOKENS) -> None:
    made = [make_session(model, resident, kind, n_tokens) for kind in kinds]
    sessions = [session for session, _ in made]
    step_all(Engine(model), sessions, [len(tokens) for _, tokens in made])
    for kind, (session, tokens) in zip(kinds, made, strict=True):
        assert session.tokens == tokens, f"session {kind}"
        n_ctx = session.n_ctx
        alone = resident.session(n_ctx=n_ctx, **SESSIONS[kind][2])
        alone.prefill(tokens)
        assert_same_state(session, alone, [len(tokens) - n_tokens // 2])


@pytest.mark.parametrize("memory", ["all", "paged"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_together_as_alone(arch: str, memory: str, load_tiny: Loader) -> None:
    check_together(load(load_tiny, arch, memory), load(load_tiny, arch), range(len(SESSIONS)))


@pytest.mark.parametrize("cache", ["f16", "q8_0"])
@pytest.mark.parametrize("arch", ["qwen3moe", "qwen35moe"])
def test_together_as_alone_with_smaller_caches(arch: str, cache: str, load_tiny: Loader) -> None:
    check_together(load(load_tiny, arch, "paged", cache), load(load_tiny, arch, cache=cache), [0, 1, 2, 3], 24)


@pytest.mark.parametrize("arch", RECORDED)
def test_together_as_alone_in_every_architecture(arch: str, load_tiny: Loader) -> None:
    i = RECORDED.index(arch)
    kinds = [(i + offset) % len(SESSIONS) for offset in (0, 1, 2, 3)]
    check_together(load(load_tiny, arch, "paged" if i % 2 else "all"), load(load_tiny, arch), kinds, 24)


@pytest.mark.parametrize("predict", ["none", "last", "token-table", "router"])
@pytest.mark.parametrize("select", ["residency", "evict", "s2moe", "ecospec", "exhaustive", "cascade:residency"])
def test_selectors_and_predictors_together(select: str, predict: str, load_tiny: Loader) -> None:
    """Prices that count other sessions in change what is verified, never what is said."""
    model, resident = load(load_tiny, "qwen3moe", "paged"), load(load_tiny, "qwen3moe")
    sessions, totals, truths = [], [], []
    for seed in range(4):
        truth = plain_run(resident, [seed, 9, 5], 68, temperature=0.7, seed=seed)
        draft = ScriptedDrafter(truth, rates=[0.8], seed=seed)
        options = {"draft": draft, "select": select, "predict": predict, "draft_nodes": 8}
        sessions.append(model.session(n_ctx=1024, temperature=0.7, seed=seed, **options))
        sessions[-1].prefill([seed, 9, 5])
        truths.append(truth[:63])
        totals.append(63)
    step_all(Engine(model), sessions, totals)
    assert [session.tokens for session in sessions] == truths
    assert sum(session.stats["accepted"] for session in sessions) > 0 or select == "cascade:residency"


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_any_mixture_of_joint_steps_with_everything_else(data: st.DataObject, load_tiny: Loader) -> None:
    """Sessions that come and go, step alone, are given more of a prompt, go back: each stays as good as a new one."""
    arch = data.draw(st.sampled_from(["qwen3moe", "qwen35moe", "llama"]))
    model = load(load_tiny, arch, data.draw(st.sampled_from(["all", "paged"])))
    resident = load(load_tiny, arch)
    tokens = st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=6)
    settings_of = [{"seed": i, "temperature": float(i % 2)} for i in range(4)]
    sessions = []
    for i, sampling in enumerate(settings_of):
        options = {"draft": "ngram", "select": RandomSelector(i)} if i else {}
        sessions.append(model.session(n_ctx=60, **options, **sampling))
        sessions[-1].prefill(data.draw(tokens) * 2)
    engine = Engine(model, max_rows=data.draw(st.sampled_from([8, 12, 64])))
    for _ in range(data.draw(st.integers(1, 6))):
        action = data.draw(st.sampled_from(["together", "together", "together", "alone", "prefill", "truncate"]))
        one = sessions[data.draw(st.integers(0, 3))]
        if action == "prefill" and len(one) < 50:
            one.prefill(data.draw(tokens))
        elif action == "truncate":
            one.truncate(data.draw(st.integers(1, len(one))))
        else:
            some = [s for s in sessions if data.draw(st.booleans())] if action == "together" else [one]
            before = [session.tokens for session in some]
            steps = engine.step(some or [one], max_tokens=data.draw(st.integers(1, 5)))
            for session, kept, step in zip(some, before, steps, strict=False):
                fresh = resident.session(n_ctx=60, **settings_of[sessions.index(session)])
                fresh.prefill(kept)
                expected = [] if step is None else run(fresh, len(step.tokens))
                assert session.tokens == kept + expected
    for i, session in enumerate(sessions):
        fresh = resident.session(n_ctx=60, **settings_of[i])
        fresh.prefill(session.tokens)
        if len(session) < 58:
            assert_same_state(session, fresh)


def _bush(truth: Sequence[int], width: int, limits: Any) -> Any:
    """The true path, every token of it among `width` siblings."""
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    parent = -1
    for depth, token in enumerate(truth[: limits.depth]):
        siblings = [(token + i) % N_VOCAB for i in range(width)]
        if len(tokens) + width > limits.nodes:
            break
        tokens += siblings
        parents += [parent] * width
        scores += [0.9 ** (depth + 1)] * width
        parent = len(tokens) - width
    return tokens, parents, scores


def test_more_than_a_chunk_of_rows(load_tiny: Loader) -> None:
    """Rows of one sequence on both sides of a border between chunks of 512 rows."""
    for arch in ("qwen3moe", "qwen35moe", "lfm2moe"):
        model = load(load_tiny, arch)
        made = []
        for seed in range(4):
            truth = plain_run(model, [seed, 4], 30, seed=seed)
            options = {"select": "all", "draft_nodes": 200, "draft_depth": 6, "draft_top_k": 40}
            draft = CallDrafter(lambda history, limits, truth=truth: _bush(truth[len(history) :], 40, limits))
            made.append((model.session(n_ctx=1024, draft=draft, seed=seed, **options), truth[:28]))
            made[-1][0].prefill([seed, 4])
        engine = Engine(model, max_rows=1000)
        most = 0
        while left := [(s, t) for s, t in made if len(s) < len(t)]:
            limits = [len(t) - len(s) for s, t in left]
            most = max(most, *(step.cost.pass_rows for step in engine.step([s for s, _ in left], max_tokens=limits)))
        assert [session.tokens for session, _ in made] == [truth for _, truth in made]
        assert most > 512  # else this shows nothing


def test_the_budget_of_rows(load_tiny: Loader) -> None:
    """All sessions together have no more; the best nodes stay."""
    model = load(load_tiny, "qwen3moe")
    sessions = []
    for i, score in enumerate((0.9, 0.3)):
        draft = CallDrafter(lambda history, limits, score=score: chain([1, 2, 3, 4], score))
        sessions.append(model.session(draft=draft, select="all", seed=i))
        sessions[-1].prefill([i, 2])
    for max_rows, selected in ((64, [4, 4]), (8, [4, 2])):
        engine = Engine(model, max_rows=max_rows)
        engine.step(sessions)  # samples where the prompt has been run
        steps = engine.step(sessions)
        assert [len(step.selected) for step in steps] == selected
        assert {step.cost.pass_rows for step in steps} == {sum(selected) + 2}
        assert {step.cost.sessions for step in steps} == {2}
    with pytest.raises(expertree.InvalidRequestError, match="max_rows"):
        Engine(model, max_rows=7)


class _FixedPredictor(expertree.Predictor):
    """The same experts for every row."""

    def __init__(self, experts: Sequence[int]) -> None:
        self._experts = experts

    def predict(self, root_token: int, tree: Any) -> Any:
        return np.broadcast_to(np.array(self._experts, np.int32), (1 + len(tree), 2, len(self._experts)))


class _PriceReader(expertree.Selector):
    """Selects everything and notes what it is told about the prices."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def select(self, tree: Any, cost: Any) -> Sequence[int]:
        experts = range(8)
        self.seen = {
            "base": [cost.base_seconds(n) for n in (1, 2)],
            "run": [cost.run_seconds(0, e, 1) for e in experts],
            "row": [cost.run_seconds(0, e, 2) - cost.run_seconds(0, e, 1) for e in experts],
            "read": [cost.read_seconds(0, e) for e in experts],
            "all": cost.step_seconds(list(range(len(tree)))),
            "none": cost.step_seconds([]),
        }
        return range(len(tree))


def test_an_expert_that_another_session_uses_costs_its_row_alone(load_tiny: Loader) -> None:
    model = load(load_tiny, "qwen3moe", "paged")
    readers = [_PriceReader(), _PriceReader(), _PriceReader()]
    sessions = []
    for reader, experts in zip(readers, ([0, 1], [1, 2], [1, 2]), strict=True):
        draft = CallDrafter(lambda history, limits: chain([1, 2], 0.9))
        session = model.session(draft=draft, select=reader, predict=_FixedPredictor(experts))
        session.prefill([1, 2, 3])
        sessions.append(session)
    engine = Engine(model)
    for _ in range(4):  # prices are learned
        engine.step(sessions)
    seen = [reader.seen for reader in readers]
    for i, others in enumerate(([1, 2], [0, 1, 2], [0, 1, 2])):
        price = seen[i]
        for expert in range(8):
            shared = expert in others
            assert (
                price["run"][expert] == pytest.approx(price["row"][expert])
                if shared
                else (price["run"][expert] > 1.5 * price["row"][expert])
            )
            assert not shared or price["read"][expert] == 0.0
    # The second session's nodes use what is there already: they cost their rows.
    added = seen[1]["all"] - seen[1]["none"]
    rows = 2 * 2 * 2 * seen[1]["row"][1]
    assert added <= rows + 3 * abs(seen[1]["base"][1] - seen[1]["base"][0]) + 1e-4
    sessions[0].step()
    alone = readers[0].seen
    assert alone["run"][1] > 1.5 * alone["row"][1]


def test_the_steps_of_a_shared_pass_add_up(load_tiny: Loader) -> None:
    model = load(load_tiny, "qwen3moe")
    sessions = [model.session(draft="ngram", select="all", seed=i) for i in range(3)]
    for i, session in enumerate(sessions):
        session.prefill([5, 9, i] * 4)
    engine = Engine(model)
    first = engine.step(sessions)
    assert [step.cost.rows for step in first] == [0, 0, 0]  # the prompts had been run
    for _ in range(5):
        steps = engine.step(sessions)
        costs = [step.cost for step in steps]
        assert {cost.pass_rows for cost in costs} == {sum(cost.rows for cost in costs)}
        for cost in costs:
            assert cost.sessions == 3
            assert max(c.experts for c in costs) <= cost.pass_experts <= sum(c.experts for c in costs)


def test_an_error_of_one_session_is_its_own(load_tiny: Loader) -> None:
    """A drafter that raises, a context that is full, a call to cancel: the others go on, and it is as it was."""
    model = load(load_tiny, "qwen3moe")
    truth = plain_run(model, [4, 5], 30)
    fails = [False]

    def draft(history: list[int], limits: Any) -> Any:
        if fails[0]:
            raise ValueError("no idea")
        return chain(truth[len(history) : len(history) + 2])

    bad = model.session(draft=CallDrafter(draft), select="all")
    good = model.session(draft=ScriptedDrafter(truth, rates=[1.0]), select="all")
    full = model.session(n_ctx=4)
    for session in (bad, good):
        session.prefill([4, 5])
    full.prefill([4, 5, 6, 7])
    sessions = [bad, good, full]
    engine = Engine(model)
    assert [len(step.tokens) for step in engine.step(sessions)] == [1, 1, 1]
    fails[0] = True
    before = bad.tokens, len(good)
    with pytest.raises(ValueError, match="no idea"):
        engine.step(sessions)
    assert bad.tokens == before[0] and len(good) > before[1]
    steps = engine.step(sessions, return_errors=True)
    assert isinstance(steps[0], ValueError) and steps[1].tokens and steps[2] is None
    fails[0] = False
    bad.cancel()
    n_good = len(good)
    steps = engine.step([good, bad], return_errors=True)
    assert isinstance(steps[1], expertree.Cancelled) and len(good) > n_good
    step_all(engine, [bad, good], [28, 28])
    assert bad.tokens == good.tokens == truth[:28]


def test_a_pass_that_fails_for_one_session_is_made_for_the_others(load_tiny: Loader) -> None:
    """The embedding of token 50 is not a number: a session that runs into it fails, alone or with others."""
    rng = np.random.default_rng(0)
    embedding = rng.standard_normal((96, 64)).astype(np.float32)
    embedding[50] = np.nan
    fields = {"arch": "qwen3moe", "tensors": {"token_embd.weight": embedding}}
    model = load_tiny(fields)
    draft = CallDrafter(lambda history, limits: chain([50], 0.9))
    bad = model.session(draft=draft, select=AllSelector(), logit_bias={50: -1e9})
    good = [model.session(seed=i, temperature=1.0, logit_bias={50: -1e9}) for i in range(2)]
    truths = [plain_run(model, [1, i], 8, seed=i, temperature=1.0, logit_bias={50: -1e9}) for i in range(2)]
    for i, session in enumerate([*good, bad]):
        session.prefill([1, i])
    engine = Engine(model)
    for _ in range(8):
        steps = engine.step([good[0], bad, good[1]], return_errors=True)
    assert isinstance(steps[1], expertree.ModelFormatError) and len(bad) == 3
    assert [session.tokens for session in good] == truths


def test_what_cannot_be_stepped_together(load_tiny: Loader) -> None:
    model, other = load(load_tiny, "qwen3moe"), load(load_tiny, "olmoe")
    session = model.session()
    session.prefill([1])
    engine = Engine(model)
    for sessions, words in (
        ([], "0 sessions"),
        ([model.session() for _ in range(9)], "9 sessions"),
        ([session, session], "twice"),
        ([session, other.session()], "no session of this engine's model"),
        ([session, None], "no session"),
    ):
        with pytest.raises(expertree.InvalidRequestError, match=words):
            engine.step(sessions)  # type: ignore[arg-type]
    with pytest.raises(expertree.InvalidRequestError, match="2 values of max_tokens for 1"):
        engine.step([session], max_tokens=[1, 2])
    with pytest.raises(expertree.InvalidRequestError, match="whole numbers"):
        engine.step([session], max_tokens=["1"])  # type: ignore[list-item]
    with pytest.raises(expertree.InvalidRequestError, match="at least 1"):
        engine.step([session], max_tokens=0)
    with pytest.raises(expertree.InvalidRequestError, match="prefill first"):
        engine.step([session, model.session()])
    assert session.tokens != [1]  # it made its step


def test_moespec_changes_its_own_session_alone(load_tiny: Loader) -> None:
    model = load(load_tiny, "qwen3moe")
    truth = plain_run(model, [5, 9], 40)
    with pytest.warns(UserWarning, match="lossy"):
        lossy = model.session(draft=ScriptedDrafter(truth, rates=[0.5]), select="moespec:2")
    alone = plain_run(model, [5, 9], 40)
    exact = model.session(draft=ScriptedDrafter(truth, rates=[0.7]), select="all")
    for session in (lossy, exact):
        session.prefill([5, 9])
    step_all(Engine(model), [lossy, exact], [40, 40])
    assert exact.tokens == alone[:40]


@pytest.mark.parametrize("settings_of", [{}, {"temperature": 0.8, "seed": 4, "draft": "ngram"}])
def test_generate_many(settings_of: dict[str, Any], load_tiny: Loader) -> None:
    """More prompts than sessions, of different lengths, one of which ends at once."""
    model = load(load_tiny, "qwen3moe")
    prompts = [[5, 9] * (1 + i % 3) + [i] for i in range(11)]
    together = Engine(model).generate(prompts, max_tokens=20, **settings_of)
    for prompt, generation in zip(prompts, together, strict=True):
        alone = model.generate(prompt, max_tokens=20, **settings_of)
        assert (generation.tokens, generation.finish_reason) == (alone.tokens, alone.finish_reason)
        assert generation.stats["decode_tokens"] == 20
    assert Engine(model).generate([], max_tokens=3) == []
    with pytest.raises(expertree.InvalidRequestError, match="give a name"):
        Engine(model).generate(prompts, draft=WrongDrafter([], 96))
    with pytest.raises(expertree.InvalidRequestError, match="prompt brings"):
        Engine(model).generate([[1], [1] * 600], n_ctx=512)
