"""Sessions that draft: limits, ends, errors that leave everything as it was (CASES S1, S2, S10, S11, S17, S20)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import expertree
import numpy as np
import pytest
from drafters import AllSelector, CallDrafter, Drafted, NothingDrafter, WildDrafter, chain
from expertree import Drafter, DraftLimits, DraftTree, Model, Predictor, ScriptedDrafter, Selector, Session
from tiny_model import TinyModel

Loader = Callable[..., Model]
QWEN = {"arch": "qwen3moe", "format": "Q8_0"}
PROMPT = [5, 9, 5, 9, 33, 60, 5, 9]
ALL = {"select": "all", "predict": "none"}


def continuation(model: Model, prompt: Sequence[int], n: int, **sampling: Any) -> list[int]:
    """Prompt and n tokens, without a drafter."""
    session = model.session(**sampling)
    session.prefill(prompt)
    for _ in range(n):
        session.step()
    return session.tokens


def same_bits(one: Session, other: Session) -> bool:
    logits = [session.evaluate([4, 17]) for session in (one, other)]
    one.rollback()
    other.rollback()
    return bool((logits[0].view(np.uint32) == logits[1].view(np.uint32)).all())


def test_s1_end_of_text_inside_an_accepted_run(load_tiny: Loader) -> None:
    """Steps of seven tokens that are all accepted, and an end of text at each place in them."""
    model = load_tiny(QWEN)
    sampling = {"temperature": 1.0, "seed": 2}
    truth = continuation(model, PROMPT, 40, **sampling)
    ends = [end for i, end in enumerate(truth[:30]) if i > len(PROMPT) and end not in truth[len(PROMPT) : i]]
    assert len(ends) > 8
    for end in ends:
        n = truth.index(end, len(PROMPT)) + 1
        draft = ScriptedDrafter(truth, rates=[1.0], spread=0.0)
        session = model.session(draft=draft, draft_depth=6, **ALL, **sampling)
        session.prefill(PROMPT)
        while session.tokens[-1] != end or len(session) == len(PROMPT):
            session.step(end_tokens=[end])
        assert session.tokens == truth[:n]  # the tokens that would have been accepted after it are not there
        plain = model.session(**sampling)
        plain.prefill(truth[: n - 1])
        plain.step()
        assert same_bits(session, plain)
        session.step()  # who goes on regardless gets what plain decoding gives
        assert session.tokens == truth[: len(session)]


def test_s1_a_rejected_end_of_text_has_no_effect(load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    truth = continuation(model, PROMPT, 30)
    end = next(t for t in range(96) if t not in truth)
    drafter = CallDrafter(lambda history, limits: chain([end, end, *truth[len(history) :]][: limits.depth]))
    session = model.session(draft=drafter, **ALL)
    session.prefill(PROMPT)
    for _ in range(30):
        session.step(end_tokens=[end])
    assert session.tokens == truth


@pytest.mark.parametrize("depth", [4, 8, 16])
def test_s2_steps_shrink_at_the_end_of_the_context(depth: int, load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    plain = model.session(n_ctx=32)
    plain.prefill(PROMPT)
    list(plain)
    assert len(plain) == 33  # the last token is sampled, and has no room to be run
    for drafter in (ScriptedDrafter(plain.tokens + [1] * 20, rates=[1.0]), WildDrafter(plain.tokens, 96), "ngram"):
        session = model.session(n_ctx=32, draft=drafter, draft_depth=depth, draft_nodes=16, **ALL)
        session.prefill(PROMPT)
        list(session)
        assert session.tokens == plain.tokens
        assert session.step() is None


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_a_step_gives_at_most_max_tokens(limit: int, load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    truth = continuation(model, PROMPT, 60)
    session = model.session(draft=ScriptedDrafter(truth, rates=[1.0]), **ALL)
    plain = model.session()
    session.prefill(PROMPT)
    plain.prefill(PROMPT)
    sizes = set()
    for _ in range(8):
        sizes.add(len(session.step(max_tokens=limit).tokens))  # type: ignore[union-attr]
    assert max(sizes) == limit
    while len(plain) < len(session):
        plain.step()
    assert session.tokens == plain.tokens and same_bits(session, plain)
    with pytest.raises(expertree.InvalidRequestError, match="at least 1"):
        session.step(max_tokens=0)


def test_s10_seeds(load_tiny: Loader) -> None:
    """The seed decides, drafted or not; sessions that draft at once do not share a stream."""
    model = load_tiny(QWEN)

    def text(seed: int | None, **drafting: Any) -> list[int]:
        return model.generate(PROMPT, max_tokens=40, temperature=1.0, seed=seed, ignore_eos=True, **drafting).tokens

    assert text(7) == text(7, draft="ngram", **ALL) == text(7, draft="ngram", **ALL)
    assert text(7, draft="ngram", **ALL) != text(8, draft="ngram", **ALL)
    assert text(None, draft="ngram", **ALL) != text(None, draft="ngram", **ALL)
    a, b = (model.session(temperature=1.0, seed=seed, draft="ngram", **ALL) for seed in (7, 8))
    a.prefill(PROMPT)
    b.prefill(PROMPT)
    while min(len(a), len(b)) < len(PROMPT) + 40:
        a.step()
        b.step()
    assert [s.tokens[len(PROMPT) :][:40] for s in (a, b)] == [text(7), text(8)]


@pytest.mark.parametrize(
    "sampling",
    [
        {"repeat_penalty": 1.5},
        {"repeat_penalty": 1.5, "temperature": 0.8, "penalty_last_n": 3},
        {"presence_penalty": 2.0, "frequency_penalty": 1.0, "temperature": 0.8},
        {"logit_bias": {9: 4.0, 5: 4.0}, "temperature": 0.8},
        {"top_k": 3, "temperature": 2.0},
        {"top_p": 0.5, "min_p": 0.1, "temperature": 2.0},
    ],
)
def test_s11_each_row_has_the_sampler_and_history_of_its_own(sampling: dict[str, Any], load_tiny: Loader) -> None:
    """Drafts of one repeated token, of the truth, and of both mixed, under every kind of sampler setting."""
    model = load_tiny(QWEN)
    truth = continuation(model, PROMPT, 80, seed=5, **sampling)

    def repeat(history: list[int], limits: DraftLimits) -> Drafted:
        return chain([history[-1]] * limits.depth)

    for drafter in (CallDrafter(repeat), ScriptedDrafter(truth, rates=[1.0]), WildDrafter(truth, 96)):
        session = model.session(seed=5, draft=drafter, **ALL, **sampling)
        session.prefill(PROMPT)
        while len(session) < 80:
            session.step()
        assert session.tokens == truth[: len(session)]


def test_stop_strings_and_end_of_text_cut_a_step(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A stop string in the middle of an accepted run: text, tokens and session are those of plain decoding."""
    from chat_model import write_chat_model

    model = Model(write_chat_model(tmp_path_factory.mktemp("chat") / "m.gguf", arch="qwen3moe"), n_ctx=512)
    whole = model.generate("abcabc", max_tokens=60)
    truth = model.tokenizer.encode("abcabc", add_special=True, parse_special=True) + whole.tokens
    for at in range(5, 11):
        stop = whole.text[at : at + 2]
        plain = model.generate("abcabc", max_tokens=60, stop=stop)
        cut = model.generate("abcabc", max_tokens=60, stop=stop, draft=ScriptedDrafter(truth, rates=[1.0]), **ALL)
        assert (cut.text, cut.tokens, cut.finish_reason) == (plain.text, plain.tokens, "stop")
        assert cut.stats["decode_tokens"] == len(cut.tokens)
    sessions = [model.session(), model.session(draft=ScriptedDrafter(truth, rates=[1.0]), **ALL)]
    for session in sessions:
        options = expertree.generation.TextOptions(60, [whole.text[5:7]])
        expertree.generation.run_generation(session, model.tokenizer, truth[:6], options)
    assert sessions[0].tokens == sessions[1].tokens and same_bits(*sessions)


def test_s17_the_ngram_table_follows_the_real_history(load_tiny: Loader) -> None:
    """After any detour the drafts are those of a session that went straight to the same tokens."""
    model = load_tiny(QWEN)
    random = np.random.default_rng(4)
    session = model.session(draft="ngram", **ALL)
    for _ in range(40):
        kind = random.integers(5)
        if kind == 0:
            session.prefill(random.integers(0, 4, 12).tolist())
        elif kind == 1:
            session.truncate(int(random.integers(0, len(session) + 1)))
        elif kind == 2:
            session.evaluate([1, 2, 3], [-1, 0, 0])
            session.commit([0, int(random.integers(1, 3))])
        elif kind == 3:
            session = session.branch()
        if len(session) == 0 or len(session) > 300:
            session.truncate(0)
            session.prefill([1, 2, 1, 2])
        step = session.step()
        assert step is not None
        before = session.tokens[: len(session) - len(step.tokens)]
        if step.cost.rows == 0 or len(before) < 2:
            continue
        expected = fresh_tree(model.session(draft="ngram", **ALL), before)
        for got, wanted in zip((step.tree.tokens, step.tree.parents, step.tree.scores), expected, strict=True):
            assert got.tolist() == wanted.tolist()


def fresh_tree(session: Session, tokens: list[int]) -> tuple[Any, Any, Any]:
    """What a new session drafts below the last of these tokens."""
    session.prefill(tokens[:-1])
    session.set_sampling(expertree.sampling.SamplingParams(logit_bias={tokens[-1]: 1e9}))
    assert session.step().tokens == tokens[-1:]  # type: ignore[union-attr]  # sampled, not yet run
    tree = session.step().tree  # type: ignore[union-attr]
    return tree.tokens, tree.parents, tree.scores


def expected_continuations(history: list[int]) -> dict[int, float]:
    """Prediction by partial matching from every suffix that repeats, straight from its definition."""
    found: dict[int, float] = {}
    weight, last_ends = 1.0, None
    n = len(history)
    for length in range(n - 1, 0, -1):
        suffix = history[n - length :]
        ends = [i + length for i in range(n - length) if history[i : i + length] == suffix]
        if not ends or ends == last_ends:
            continue
        last_ends = ends
        counts: dict[int, int] = {}
        for end in ends:
            counts[history[end]] = counts.get(history[end], 0) + 1
        escaped = 3 * len(counts) / (len(ends) * length + 3 * len(counts))
        for token, count in counts.items():
            found[token] = found.get(token, 0.0) + weight * (1 - escaped) * count / len(ends)
        weight *= escaped
        if len(found) >= 8:
            break
    return found


def test_ngram_proposes_what_followed_before(load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    random = np.random.default_rng(8)
    for alphabet, n in ((2, 30), (4, 60), (20, 100), (90, 60)):
        history = random.integers(0, alphabet, n).tolist()
        tokens, parents, scores = fresh_tree(
            model.session(draft="ngram", draft_nodes=100, draft_depth=1, **ALL), history
        )
        assert (parents == -1).all()
        expected = expected_continuations(history)
        best = sorted(expected.values(), reverse=True)[:8]
        np.testing.assert_allclose(sorted(scores, reverse=True), best, rtol=1e-5)
        for token, score in zip(tokens, scores, strict=True):
            assert score == pytest.approx(expected[int(token)], rel=1e-5)


def test_ngram_follows_a_path_through_the_text(load_tiny: Loader) -> None:
    history = [7, 1, 2, 3, 4, 5, 6, 8, 1, 2, 3]
    tokens, parents, scores = fresh_tree(load_tiny(QWEN).session(draft="ngram", **ALL), history)
    assert tokens.tolist() == [4, 5, 6, 8] and parents.tolist() == [-1, 0, 1, 2]
    assert (np.diff(scores) <= 0).all()


def test_ngram_has_nothing_to_say_about_new_text(load_tiny: Loader) -> None:
    tokens, _, _ = fresh_tree(load_tiny(QWEN).session(draft="ngram", **ALL), [1, 2, 3, 4])
    assert tokens.size == 0


def test_scripted_scores_are_the_chances_of_acceptance(load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    truth = continuation(model, PROMPT, 400)
    draft = ScriptedDrafter(truth, rates=[0.8, 0.6], spread=0.4)
    session = model.session(draft=draft, draft_depth=2, draft_nodes=100, **ALL)
    session.prefill(PROMPT)
    expected, accepted = np.zeros(2), np.zeros(2)
    while len(session) < 390:
        tree = (step := session.step()).tree  # type: ignore[union-attr]
        for depth in (1, 2):
            expected[depth - 1] += tree.scores[tree.depths == depth].sum()
            accepted[depth - 1] += len(step.accepted) >= depth  # type: ignore[union-attr]
    np.testing.assert_allclose(accepted, expected, rtol=0.15)


def test_s20_drafting_time_is_part_of_decoding(load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    truth = continuation(model, PROMPT, 40)
    draft = ScriptedDrafter(truth, rates=[1.0], spread=0.0, seconds_per_depth=0.005)
    result = model.generate(PROMPT, max_tokens=21, ignore_eos=True, draft=draft, **ALL)
    stats = result.stats
    assert stats["steps"] == 5 and stats["accepted"] == 16 and stats["accepted_per_step"] == 16 / 5
    assert stats["decode_seconds"] >= stats["draft_seconds"] >= 0.005 * 16
    assert stats["decode_tokens_per_second"] == 21 / stats["decode_seconds"] < 21 / 0.08
    assert "steps" not in model.generate(PROMPT, max_tokens=4).stats


class Watcher(Drafter):
    """Asks for hidden states and keeps what it is shown; drafts the truth."""

    last_hidden = True

    def __init__(self, layers: Sequence[int], truth: Sequence[int] = ()) -> None:
        self.tap_layers = layers
        self.tokens: list[int] = []
        self.rows: list[np.ndarray] = []
        self._truth = truth

    def observe(self, tokens: Any, first_position: int, taps: Any, last_hidden: Any) -> None:
        assert first_position == len(self.tokens)
        assert taps.shape[:2] == (len(tokens), len(self.tap_layers)) and len(last_hidden) == len(tokens)
        self.tokens += tokens.tolist()
        self.rows += list(np.concatenate([taps.reshape(len(tokens), -1), last_hidden], 1))

    def truncate(self, length: int) -> None:
        del self.tokens[length:]
        del self.rows[length:]

    def draft(self, history: Any, limits: DraftLimits) -> Drafted:
        assert history[:-1].tolist() == self.tokens  # all but the root have been seen
        following = list(self._truth[len(history) : len(history) + limits.depth])
        if not following:
            return [], [], []
        path = [*following[:2], *((t + 1) % 96 for t in following[2:])]
        # A wrong sibling first, so that kept rows are not the first ones.
        tokens, _, scores = chain(path)
        return [(path[0] + 1) % 96, *tokens], [-1, -1, *range(1, len(path))], [0.95, *scores]


def test_a_drafter_sees_every_kept_position_once(load_tiny: Loader) -> None:
    """With the hidden states of a plain run, whatever steps, commits, truncations and prefills came between."""
    model = load_tiny({**QWEN, "n_layers": 3})
    random = np.random.default_rng(1)
    truth = continuation(model, PROMPT, 200)
    watcher = Watcher([2, 0], truth)
    session = model.session(**ALL, draft=watcher)
    session.prefill(PROMPT)
    for _ in range(60):
        kind = random.integers(6)
        if kind == 0:
            session.evaluate(truth[len(session) : len(session) + 2])
            session.commit([0, 1])
        elif kind == 1 and len(session) > 20:
            session.truncate(len(session) - int(random.integers(0, 12)))
        elif kind == 2:
            session.prefill(truth[len(session) : len(session) + 3])
        session.step()
        assert session.tokens == truth[: len(session)]
    session.prefill([1])
    reference = Watcher([2, 0])
    other = model.session(**ALL, draft=reference)
    other.prefill(session.tokens)
    assert watcher.tokens == reference.tokens == session.tokens
    assert (np.array(watcher.rows).view(np.uint32) == np.array(reference.rows).view(np.uint32)).all()
    assert np.array(watcher.rows).std() > 0.1


def test_a_drafter_may_come_late(load_tiny: Loader) -> None:
    """Set on a session that has tokens, it learns them first; one with hidden states has them run again."""
    model = load_tiny(QWEN)
    truth = continuation(model, PROMPT, 60)
    session = model.session()
    session.prefill(PROMPT)
    session.step()
    watcher = Watcher([1], truth)
    expertree.speculation.Speculation(watcher, "all", None).apply(session._core)
    session.step()
    assert watcher.tokens == session.tokens[: len(watcher.tokens)] and len(watcher.tokens) >= len(PROMPT) + 1
    assert session.tokens == truth[: len(session)]


def test_truncating_to_what_is_left_of_a_cancelled_run(load_tiny: Loader) -> None:
    """A drafter that comes late has tokens run again; when that is stopped, fewer have been run than there are."""
    model = load_tiny(QWEN)
    truth = continuation(model, PROMPT, 20)
    for length in (1, 2, 5):
        session = model.session(draft=Watcher([1], truth), **ALL)
        session.prefill(truth[: length + 6])
        session.step()
        session.truncate(length + 3)
        expertree.speculation.Speculation(Watcher([1], truth), "all", None).apply(session._core)
        session.cancel()
        with pytest.raises(expertree.Cancelled):
            session.step()
        for shorter in (length + 2, length + 1, length):
            session.truncate(shorter)
            if shorter > 0:
                tokens = session.tokens
                session.step(max_tokens=1)
                assert session.tokens == continuation(model, tokens, 1)


class Fails(Exception):
    pass


class Failing:
    """Raises Fails at every third call of `moment`."""

    def __init__(self, moment: str) -> None:
        self.moment, self.n = moment, 0

    def at(self, moment: str) -> None:
        self.n += moment == self.moment
        if moment == self.moment and self.n % 3 == 0:
            raise Fails


@pytest.mark.parametrize("moment", ["draft", "select", "predict", "drafter", "predictor", "selector", "truncate"])
def test_a_plug_that_fails_leaves_the_session_as_it_was(moment: str, load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    truth = continuation(model, PROMPT, 60)
    failing = Failing(moment)

    class D(WildDrafter):
        def draft(self, history: Any, limits: DraftLimits) -> Drafted:
            failing.at("draft")
            return super().draft(history, limits)

        def observe(self, *rest: Any) -> None:
            failing.at("drafter")

        def truncate(self, length: int) -> None:
            failing.at("truncate")

    class S(AllSelector):
        def select(self, tree: DraftTree, cost: Any) -> Sequence[int]:
            failing.at("select")
            return super().select(tree, cost)

        def observe(self, *rest: Any) -> None:
            failing.at("selector")

    class P(Predictor):
        def predict(self, root_token: int, tree: DraftTree) -> None:
            failing.at("predict")

        def observe(self, tokens: Any, experts: Any) -> None:
            failing.at("predictor")

    session = model.session(draft=D(truth, 96), select=S(), predict=P())
    session.prefill(PROMPT)
    n_failed = 0
    while len(session) < 50:
        before = session.tokens
        try:
            session.step()
        except Fails:
            n_failed += 1
            assert session.tokens == before
        if moment == "truncate" and len(session) > 20:
            try:
                session.truncate(len(session) - 2)
                session.prefill(truth[len(session) : len(session) + 3])
            except Fails:
                n_failed += 1
        assert session.tokens == truth[: len(session)]
    assert n_failed >= 2
    failing.moment = "none"
    plain = model.session()
    plain.prefill(session.tokens)
    assert same_bits(session, plain)


def test_a_cancelled_step_leaves_the_session_as_it_was(load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    truth = continuation(model, PROMPT, 60)
    sessions: list[Session] = []

    def cancel_and_draft(history: list[int], limits: DraftLimits) -> Drafted:
        if len(history) % 2 and len(history) not in seen:
            seen.add(len(history))
            sessions[0].cancel()
        return chain(truth[len(history) : len(history) + limits.depth])

    seen: set[int] = set()
    sessions.append(session := model.session(draft=CallDrafter(cancel_and_draft), **ALL))
    session.prefill(PROMPT)
    n_cancelled = 0
    while len(session) < 50:
        before = session.tokens
        try:
            session.step(max_tokens=2)
        except expertree.Cancelled:
            n_cancelled += 1
            assert session.tokens == before
    assert n_cancelled >= 3 and session.tokens == truth[: len(session)]
    sessions.clear()  # the session holds its drafter, and that would hold the session


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (([96], [-1], [0.5]), "node 0 has token 96"),
        (([-1], [-1], [0.5]), "node 0 has token -1"),
        (([1], [0], [0.5]), "node 0 has parent 0"),
        (([1, 2], [-1, -2], [0.5, 0.5]), "node 1 has parent -2"),
        (([1, 2], [-1], [0.5, 0.5]), "equally many"),
        (([1], [-1], [0.0]), "score 0"),
        (([1], [-1], [float("nan")]), "score nan"),
        (([1, 2], [-1, 0], [0.5, 0.6]), "node 1 has score 0.6"),
        (([1, 1], [-1, -1], [0.5, 0.5]), "repeats token 1"),
    ],
)
def test_a_bad_tree_is_refused(tree: Drafted, words: str, load_tiny: Loader) -> None:
    session = load_tiny(QWEN).session(draft=CallDrafter(lambda *_: tree), **ALL)
    session.prefill([1, 2])
    session.step()
    tokens = session.tokens
    with pytest.raises(expertree.InvalidRequestError, match=f"drafter CallDrafter.*{words}"):
        session.step()
    assert session.tokens == tokens


@pytest.mark.parametrize(("nodes", "words"), [([1], "without its parent 0"), ([5], "not in the tree"), ([-1], "-1")])
def test_a_bad_selection_is_refused(nodes: list[int], words: str, load_tiny: Loader) -> None:
    class Bad(Selector):
        def select(self, tree: DraftTree, cost: Any) -> Sequence[int]:
            return nodes

    session = load_tiny(QWEN).session(draft=CallDrafter(lambda *_: chain([1, 2])), select=Bad(), predict="none")
    session.prefill([1, 2])
    session.step()
    with pytest.raises(expertree.InvalidRequestError, match=f"selector Bad.*{words}"):
        session.step()


def test_a_tree_over_the_limits_is_cut_to_its_best(load_tiny: Loader) -> None:
    drafter = CallDrafter(lambda *_: ([1, 2, 3, 4], [-1, -1, 1, 2], [0.1, 0.9, 0.8, 0.7]))
    session = load_tiny(QWEN).session(draft=drafter, draft_nodes=2, draft_depth=2, **ALL)
    session.prefill([1, 2])
    session.step()
    tree = session.step().tree  # type: ignore[union-attr]
    assert (tree.tokens.tolist(), tree.parents.tolist()) == ([2, 3], [-1, 0])


def test_bad_drafting_settings(load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    truth = [1, 2, 3]
    for bad, words in (
        ({"draft": "nobody"}, "nobody.*ngram"), ({"draft": "ngram:4"}, "takes no argument"),
        ({"draft": "ngram", "select": "nobody"}, "nobody"), ({"draft": "ngram", "predict": "nobody"}, "nobody"),
        ({"draft": "ngram", "draft_nodes": 0}, "draft_nodes is 0"), ({"draft": "ngram", "draft_depth": -1}, "depth"),
        ({"draft": "ngram", "draft_top_k": 2**40}, "draft_top_k"), ({"draft": "ngram", "draft_nodes": "4"}, "nodes"),
        ({"draft": 5}, "draft is 5"), ({"draft": "ngram", "select": NothingDrafter()}, "select is"),
        ({"select": "all"}, "needs a drafter"), ({"predict": "last"}, "needs a drafter"),
        ({"draft": Watcher([9])}, "layer 9"), ({"draft": ScriptedDrafter(truth, rates=[])}, "rates is empty"),
        ({"draft": ScriptedDrafter(truth, rates=[1.5])}, "rate is 1.5"), ({"draft": ScriptedDrafter("ab")}, "truth"),
        ({"draft": ScriptedDrafter(truth, spread=-1.0)}, "spread"),
    ):  # fmt: skip
        with pytest.raises(expertree.InvalidRequestError, match=words):
            model.session(**bad)


def test_plugs_written_in_python_see_what_they_should(load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    truth = continuation(model, PROMPT, 60)
    ids = model.routing(truth)[0].transpose(1, 0, 2)  # (tokens, layers, used)
    outcomes = []

    class Truth(Predictor):
        n_seen = 0

        def predict(self, root_token: int, tree: DraftTree) -> Any:
            at = self.n_seen + np.concatenate([[0], tree.depths])
            assert truth[self.n_seen] == root_token
            return ids[np.minimum(at, len(ids) - 1)]

        def observe(self, tokens: Any, experts: Any) -> None:
            assert (experts == ids[self.n_seen : self.n_seen + len(tokens)]).all()
            self.n_seen += len(tokens)

    class Priced(Selector):
        def select(self, tree: DraftTree, cost: Any) -> Sequence[int]:
            self.cost = cost
            assert tree.experts is not None and tree.experts.shape == (len(tree) + 1, 2, 2)
            assert cost.step_seconds([]) >= 0 and cost.base_seconds(1) >= 0 and cost.draft_seconds() >= 0
            assert cost.run_seconds(0, 1, 2) >= 0 and cost.read_seconds(0, 1) == 0  # all are in memory
            return np.arange(len(tree))

        def observe(self, tree: DraftTree, selected: Any, accepted: Any, draft: float, verify: float) -> None:
            outcomes.append((len(tree), selected.tolist(), accepted.tolist()))
            assert verify > 0

    selector = Priced()
    session = model.session(draft=ScriptedDrafter(truth, rates=[0.7]), select=selector, predict=Truth())
    session.prefill(PROMPT)
    steps = [session.step() for _ in range(10)]
    assert outcomes == [(len(s.tree), s.selected, s.accepted) for s in steps[1:]]  # type: ignore[union-attr]
    with pytest.raises(expertree.InvalidRequestError, match=r"during select\(\)"):
        selector.cost.base_seconds(1)
    assert steps[1].tree.experts is not None  # type: ignore[union-attr]


def test_a_branch_tells_the_model_what_it_learned(load_tiny: Loader) -> None:
    model = load_tiny({"arch": "qwen3moe"})
    session = model.session(draft="ngram")
    session.prefill([1, 2] * 8)
    copy = session.branch()
    for _ in range(8):
        assert copy.step() is not None
    copy.remember_costs()
    assert model._step_costs is not None and len(model._selector_states) == 1
    with_object = model.session(draft=NothingDrafter())
    with_object.prefill([1, 2])
    with_object.branch().remember_costs()  # its copy decodes plainly and has nothing to tell


def draft_in_threads(model: Model, n: int, options_of: Callable[[int, list[int]], dict[str, Any]]) -> None:
    """Four sessions at once, each with a drafter, get the texts that plain decoding gives one after the other."""
    expected = [continuation(model, [i, i + 1, i], n, temperature=0.7 * (i % 2), seed=i) for i in range(4)]
    got: list[list[int]] = [[]] * 4

    def work(i: int) -> None:
        session = model.session(temperature=0.7 * (i % 2), seed=i, **options_of(i, expected[i]), **ALL)
        session.prefill([i, i + 1, i])
        while len(session) < n:
            session.step()
        got[i] = session.tokens

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [tokens[:n] for tokens in got] == [tokens[:n] for tokens in expected]


def test_many_threads_draft_on_one_model(load_tiny: Loader) -> None:
    draft_in_threads(load_tiny(QWEN), 60, lambda i, truth: {"draft": WildDrafter(truth, 96)})


def test_many_threads_draft_with_one_draft_model(tiny: Callable[..., Path]) -> None:
    """Its thread pool serves one caller at a time, whatever the session. Ranking a large vocabulary takes a while."""
    path = tiny(**QWEN, n_vocab=20000)
    draft_in_threads(Model(path, threads=2), 150, lambda i, truth: {"draft": f"model:{path}", "draft_top_k": 8})


@pytest.mark.parametrize("kind", ["model", "mtp"])
def test_h8_cancel_while_a_drafter_runs_the_prompt(kind: str, tmp_path: Path) -> None:
    """The draft model is 48 times the target's work; mtp's block takes the prompt in pieces."""
    slow = TinyModel(arch="qwen3moe", n_layers=48, n_ctx=4096).write(tmp_path / "slow.gguf")
    target = TinyModel(arch="qwen35moe", n_layers=1, n_ctx=4096, n_nextn=1).write(tmp_path / "target.gguf")
    model = Model(target, isa="scalar", threads=1)
    session = model.session(n_ctx=4096, draft="mtp" if kind == "mtp" else f"model:{slow}", **ALL)
    session.prefill([i % 90 for i in range(3000)])
    session.step()  # samples from the prompt's last row
    before = session.tokens
    if kind == "mtp":
        session.cancel()
    else:
        threading.Timer(0.2, session.cancel).start()
    start = time.monotonic()
    with pytest.raises(expertree.Cancelled):
        session.step()
    assert time.monotonic() - start < 30.0  # the whole prompt takes a minute and more
    assert session.tokens == before


ODD_ANSWERS: dict[str, dict[str, Any]] = {
    "tokens": {"draft": CallDrafter(lambda history, limits: ([2**31], [-1], [0.5]))},
    "parents": {"draft": CallDrafter(lambda history, limits: ([1], [2**31], [0.5]))},
    "indices": {"select": type("Far", (Selector,), {"select": lambda self, tree, cost: [2**31]})()},
}


@pytest.mark.parametrize("case", ODD_ANSWERS)
def test_answers_beyond_32_bits_are_errors(case: str, load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    truth = continuation(model, PROMPT, 20)
    session = model.session(**{"draft": ScriptedDrafter(truth), **ALL, **ODD_ANSWERS[case]})
    session.prefill(PROMPT)
    session.step()
    with pytest.raises(expertree.InvalidRequestError, match=r"(CallDrafter.draft|Far.select) gives something else"):
        session.step()
    assert session.tokens == truth[: len(session)]


def test_wants_draft_may_give_any_truth_value(load_tiny: Loader) -> None:
    """Such as numpy's own."""
    model = load_tiny(QWEN)
    truth = continuation(model, PROMPT, 30)

    class Numpy(AllSelector):
        n = 0

        def wants_draft(self) -> Any:
            self.n += 1
            return np.float64(self.n) > 5

    session = model.session(draft=ScriptedDrafter(truth, rates=[1.0]), select=Numpy(), predict="none")
    session.prefill(PROMPT)
    drafted = [len(session.step().tree) > 0 for _ in range(8)]  # type: ignore[union-attr]
    assert drafted == [False] * 6 + [True] * 2
    assert session.tokens == truth[: len(session)]
