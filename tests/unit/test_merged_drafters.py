"""Several drafters in one tree: who is asked, who is told, what a node scores."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import expertree
import numpy as np
import pytest
from drafters import CallDrafter, NothingDrafter, chain
from expertree import Drafter, DraftLimits, Model, _core
from expertree.comparison.drafts import Draft
from expertree.models.parts import EAGLE3, GENERAL_NAME, PREDICTOR, trained_part
from expertree.shipped_drafting import draft_name, predictor_name
from test_drafters import TREE, Trial
from test_drafting import Watcher
from tiny_heads import TinyEagle, TinyMedusa
from typer.testing import CliRunner

Loader = Callable[..., Model]
QWEN = {"arch": "qwen3moe", "format": "Q8_0"}
PROMPT = [5, 9, 5, 9, 33]


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("ngram", ["ngram"]),
        ("eagle3+ngram", ["eagle3", "ngram"]),
        ("eagle3:a.gguf+ngram+model:b.gguf", ["eagle3:a.gguf", "ngram", "model:b.gguf"]),
        ("eagle3:c++.gguf", ["eagle3:c++.gguf"]),
        ("model:my+model.gguf+mtp", ["model:my+model.gguf", "mtp"]),
        ("ngram+nobody", ["ngram+nobody"]),
    ],
)
def test_a_plus_divides_where_a_drafter_follows(spec: str, parts: list[str]) -> None:
    assert _core.split_drafters(spec) == parts


def fixed(tree: Any) -> CallDrafter:
    return CallDrafter(lambda history, limits: tree)


def drafted(model: Model, parts: Sequence[Any], **options: Any) -> dict[tuple[int, ...], float]:
    """Scores by path of the first tree of a session with these drafters."""
    session = model.session(draft=parts, select="all", predict="none", **options)
    session.prefill(PROMPT)
    session.step()
    tree = session.step().tree  # type: ignore[union-attr]
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return dict(zip(paths, tree.scores.tolist(), strict=True))


def test_scores_are_a_mixture(load_tiny: Loader) -> None:
    """At first both count the same; a tree without a path counts 0 for it."""
    model = load_tiny(QWEN)
    one = ([1, 2, 3], [-1, 0, -1], [0.6, 0.4, 0.2])
    other = ([3, 1, 7], [-1, -1, 1], [0.8, 0.1, 0.1])
    expected = {(1,): 0.35, (1, 2): 0.2, (3,): 0.5, (1, 7): 0.05}
    assert drafted(model, [fixed(one), fixed(other)]) == pytest.approx(expected)
    assert drafted(model, [fixed(other), fixed(one)]) == pytest.approx(expected)
    # One that has nothing to say does not count.
    assert drafted(model, [NothingDrafter(), fixed(one)]) == pytest.approx({(1,): 0.6, (1, 2): 0.4, (3,): 0.2})
    assert drafted(model, [NothingDrafter(), NothingDrafter()]) == {}
    # The best of all are kept, within the limits.
    assert drafted(model, [fixed(one), fixed(other)], draft_nodes=2) == pytest.approx({(3,): 0.5, (1,): 0.35})
    assert drafted(model, [fixed(one), fixed(other)], draft_depth=1) == pytest.approx({(3,): 0.5, (1,): 0.35})
    # Scores of a mixture add up to no more than 1, however sure both are.
    sure = drafted(model, [fixed(chain([1, 2], 1.0)), fixed(chain([4, 5], 1.0))])
    assert sure == pytest.approx({(1,): 0.5, (1, 2): 0.5, (4,): 0.5, (4, 5): 0.5})


def test_weights_follow_who_is_right(load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    plain = model.session()
    plain.prefill(PROMPT)
    for _ in range(300):
        plain.step()
    truth = plain.tokens

    def right(history: list[int], limits: DraftLimits) -> Any:
        return chain(truth[len(history) : len(history) + 1], 0.9)

    def wrong(history: list[int], limits: DraftLimits) -> Any:
        return chain([(truth[len(history)] + 1) % 96], 0.9) if len(history) < len(truth) else ([], [], [])

    session = model.session(draft=[CallDrafter(wrong), CallDrafter(right)], select="all")
    session.prefill(PROMPT)
    scores = []
    while len(session) < 200:
        step = session.step()
        assert step is not None
        by_token = dict(zip(step.tree.tokens.tolist(), step.tree.scores.tolist(), strict=True))
        if by_token:
            scores.append(by_token[truth[len(session) - len(step.tokens)]])
    assert scores[0] == pytest.approx(0.45)
    assert all(b >= a - 1e-6 for a, b in itertools.pairwise(scores))
    assert scores[-1] > 0.85  # of 0.9, and never all of it: the other may come back
    assert scores[-1] < 0.9


def test_who_is_silent_keeps_its_weight(load_tiny: Loader) -> None:
    """A drafter that is asleep most of the time is worth as much as before when it wakes."""
    model = load_tiny(QWEN)
    state = {"awake": True}

    def rare(history: list[int], limits: DraftLimits) -> Any:
        return chain([7], 0.8) if state["awake"] else ([], [], [])

    session = model.session(draft=[CallDrafter(rare), fixed(chain([8], 0.6))], select="all")
    session.prefill(PROMPT)
    session.step()
    state["awake"] = False
    for _ in range(60):
        tree = session.step().tree  # type: ignore[union-attr]
        assert tree.scores.tolist() == pytest.approx([0.6])
    state["awake"] = True
    tree = session.step().tree  # type: ignore[union-attr]
    assert dict(zip(tree.tokens.tolist(), tree.scores.tolist(), strict=True)) == pytest.approx({7: 0.4, 8: 0.3})


def test_each_part_sees_what_it_asked_for(load_tiny: Loader) -> None:
    """Two drafters want different layers; both see every kept position once, with the hidden states of a plain run."""
    model = load_tiny({**QWEN, "n_layers": 3})
    plain = model.session()
    plain.prefill(PROMPT)
    for _ in range(60):
        plain.step()
    truth = plain.tokens
    watchers = [Watcher([2, 0], truth), Watcher([0, 1], truth)]
    blind = CallDrafter(lambda history, limits: chain([3]))
    session = model.session(draft=[watchers[0], blind, watchers[1]], select="all", draft_nodes=8)
    session.prefill(PROMPT)
    for i in range(12):
        session.step()
        if i % 4 == 3:
            session.truncate(len(session) - 2)
    session.step()
    tokens = session.tokens
    assert tokens == truth[: len(tokens)]
    taps, last, _ = expertree._core._testing.hidden_states(
        model._core, tokens, list(range(-1, len(tokens) - 1)), [0, 1, 2], True
    )
    for watcher in watchers:
        n = len(watcher.tokens)
        assert n >= len(tokens) - 1 and watcher.tokens == tokens[:n]
        expected = np.concatenate([taps[:n, list(watcher.tap_layers)].reshape(n, -1), last[:n]], 1)
        assert (np.stack(watcher.rows).view(np.uint32) == expected.view(np.uint32)).all()


@pytest.fixture
def heads(load_tiny: Loader, tmp_path: Path) -> tuple[Model, str]:
    model = load_tiny({"n_layers": 4})
    eagle = TinyEagle().write(tmp_path / "eagle+head.gguf")
    medusa = TinyMedusa().write(tmp_path / "medusa.gguf")
    return model, f"eagle3:{eagle}+ngram+medusa:{medusa}"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_trained_heads_and_ngrams_in_one_tree(heads: tuple[Model, str], temperature: float) -> None:
    model, spec = heads
    sampling = {"temperature": temperature, "seed": 5, "repeat_penalty": 1.2}
    plain = model.session(**sampling)
    plain.prefill(PROMPT * 3)
    session = model.session(draft=spec, select="all", **sampling)
    session.prefill(PROMPT * 3)
    for _ in range(40):
        step = session.step()
        assert step is not None
        for token in step.tokens:
            assert plain.step().tokens == [token]  # type: ignore[union-attr]
    assert session.stats["drafted"] > 40 * 8


def test_the_contract_of_a_drafter(heads: tuple[Model, str]) -> None:
    """Within the limits, the same however it was fed, and after going back; the parts' memory together."""
    model, spec = heads
    tokens = np.random.default_rng(5).integers(0, 96, 40).tolist()
    whole, pieces, back = Trial(model, spec), Trial(model, spec), Trial(model, spec)
    whole.observe(tokens[:-1])
    pieces.observe(tokens[:-1], [5, 1, 20, 13])
    back.observe([*tokens[:20], *tokens[10:30]])
    back.truncate(20)
    back.observe(tokens[:-1])
    tree = whole.draft(tokens)
    assert tree == pieces.draft(tokens) == back.draft(tokens)
    for nodes, depth, top_k in ((60, 7, 10), (1, 4, 8), (3, 1, 8), (0, 4, 8)):
        found = whole.draft(tokens, (nodes, depth, top_k))
        assert len(found[0]) <= nodes and all(d <= depth for d in found[2])
    assert whole.drafter.name == "eagle3+ngram+medusa"
    assert whole.drafter.tap_layers == [1, 2, 3] and whole.drafter.last_hidden
    parts = [Trial(model, part) for part in _core.split_drafters(spec)]
    for part in parts:
        part.observe(tokens[:-1])
        part.draft(tokens, TREE)
    assert whole.drafter.memory_bytes >= 0.99 * sum(part.drafter.memory_bytes for part in parts)


class _Slow(Drafter):
    def draft(self, history: Any, limits: DraftLimits) -> Any:
        time.sleep(0.005)
        return [1], [-1], [0.5]


def test_drafting_time_is_that_of_all(load_tiny: Loader) -> None:
    session = load_tiny(QWEN).session(draft=[_Slow(), _Slow()], select="all")
    session.prefill(PROMPT)
    session.step()
    assert session.step().cost.draft >= 0.01  # type: ignore[union-attr]


def test_names_of_several(load_tiny: Loader) -> None:
    ours = {"general.name": GENERAL_NAME}
    head = f"eagle3:{trained_part(EAGLE3)}"
    assert draft_name("eagle3+ngram", lambda: ours) == f"{head}+ngram"
    assert draft_name("ngram+eagle3:my.gguf", lambda: ours) == "ngram+eagle3:my.gguf"
    assert predictor_name(None, f"{head}+ngram", lambda: ours) == f"head:{trained_part(PREDICTOR)}"
    assert Draft("eagle3:/a/b.gguf+ngram").label == "eagle3:b.gguf+ngram"
    model = load_tiny(QWEN)
    for draft, words in (
        ("ngram+eagle3", "needs an argument"),
        ("auto+ngram", "no drafter 'auto'"),
        (["ngram", "none"], "no drafter 'none'"),
        (["ngram", 5], "expected a name"),
        ([], "empty list"),
    ):
        with pytest.raises(expertree.InvalidRequestError, match=words):
            model.session(draft=draft)
    with pytest.raises(ValueError, match="never"):
        failing = model.session(draft=["ngram", CallDrafter(_fail)])
        failing.prefill(PROMPT)
        failing.step()
        failing.step()


def _fail(history: list[int], limits: DraftLimits) -> Any:
    raise ValueError("never")


def test_the_command_line_takes_several(tiny: Callable[..., Path]) -> None:
    from expertree.cli.main import app

    model = str(tiny(**QWEN))
    refused = CliRunner().invoke(app, ["generate", model, "-p", "a", "--draft", "ngram+auto"])
    assert refused.exit_code == 2 and "drafter" in refused.output
