"""`moespec`, the one selector that changes the text: it keeps to its budget of experts, and says what it does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import expertree
import numpy as np
import numpy.typing as npt
import pytest
from chat_model import write_chat_model
from expertree import Model, ScriptedDrafter
from expertree.cli.main import app
from typer.testing import CliRunner

Loader = Callable[..., Model]
PROMPT = [5, 9, 5, 9, 33, 60, 5, 9]


def plain_tokens(model: Model, n: int) -> list[int]:
    session = model.session(n_ctx=256)
    session.prefill(PROMPT)
    while len(session) < n:
        session.step()
    return session.tokens


class Watcher(expertree.Predictor):
    """Remembers what the rows of each step that were kept did use."""

    def __init__(self) -> None:
        self.tokens: list[list[int]] = []
        self.experts: list[npt.NDArray[np.int32]] = []

    def predict(self, root_token: int, tree: expertree.DraftTree) -> None:
        return None

    def observe(self, tokens: Any, experts: npt.NDArray[np.int32]) -> None:
        self.tokens.append(tokens.tolist())
        self.experts.append(experts)


def drafting(model: Model, truth: list[int], select: str, **options: Any) -> expertree.Session:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = model.session(
            n_ctx=256, draft=ScriptedDrafter(truth, rates=[1.0], spread=0.0), select=select, **options
        )
    session.prefill(PROMPT)
    return session


@pytest.mark.parametrize("arch", ["mixtral", "qwen2moe", "qwen3moe", "olmoe"])
@pytest.mark.parametrize("budget", [2, 4])
def test_a_tree_uses_no_more_experts_than_the_budget(arch: str, budget: int, load_tiny: Loader) -> None:
    model = load_tiny({"arch": arch}, ram="all")
    truth = plain_tokens(model, 80)
    free, limited = (drafting(model, truth, select) for select in ("all", f"moespec:{budget}"))
    most_free = 0
    for _ in range(8):
        most_free = max(most_free, free.step().cost.experts)  # type: ignore[union-attr]
        step = limited.step()
        assert step is not None
        assert step.cost.experts <= budget * model.n_layers or step.cost.rows == 0
    assert most_free > budget * model.n_layers  # else the budget would bind nothing


def test_a_budget_of_all_experts_changes_nothing(load_tiny: Loader) -> None:
    model = load_tiny({"arch": "qwen3moe"}, ram="all")
    truth = plain_tokens(model, 80)
    session = drafting(model, truth, f"moespec:{model.n_experts}")
    while len(session) < 70:
        session.step()
    assert session.tokens == truth[: len(session)]


def test_a_small_budget_changes_the_text(load_tiny: Loader) -> None:
    """Else the tests of its being lossy would show nothing."""
    model = load_tiny({"arch": "qwen3moe"}, ram="all")
    truth = plain_tokens(model, 120)
    session = drafting(model, truth, "moespec:2")
    while len(session) < 110:
        session.step()
    assert session.tokens != truth[: len(session)]


def test_rows_take_the_next_best_of_the_experts_with_most_probability(load_tiny: Loader) -> None:
    """Layer 0 of a twin that uses all experts tells every probability: what comes before experts is the same."""
    model = load_tiny({"arch": "qwen3moe"}, ram="all")
    twin = load_tiny({"arch": "qwen3moe", "n_used": 8}, ram="all")
    truth = plain_tokens(model, 80)
    watcher = Watcher()
    session = drafting(model, truth, "moespec:3", predict=watcher)
    session.step()
    n_before = len(session)
    step = session.step()
    assert step is not None and step.cost.rows == 5
    rows = [session.tokens[n_before - 1], *step.tree.tokens.tolist()]
    ids, weights = twin.routing([*session.tokens[: n_before - 1], *rows])
    probability = np.zeros((5, 8))
    for row in range(5):
        probability[row, ids[0, n_before - 1 + row]] = weights[0, n_before - 1 + row]
    kept = np.argsort(-probability.sum(axis=0), kind="stable")[:3]
    kept_experts = watcher.experts[-1][:, 0]
    changed = 0
    for row, used in enumerate(kept_experts):
        best = sorted(kept.tolist(), key=lambda e, row=row: (-probability[row, e], e))[:2]
        assert used.tolist() == best
        changed += best != np.argsort(-probability[row], kind="stable")[:2].tolist()
    assert changed > 0


def test_it_is_never_chosen_by_itself() -> None:
    assert expertree.speculation.DEFAULT_SELECTOR != "moespec"


def test_it_says_that_it_is_lossy(load_tiny: Loader) -> None:
    model = load_tiny({"arch": "qwen3moe"}, ram="all")
    for select in ("moespec:4", "cascade:moespec:4"):
        with pytest.warns(UserWarning, match=r"moespec:4.*lossy"):
            session = model.session(draft="ngram", select=select)
        assert not session.lossless and session.stats["lossless"] is False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = model.session(draft="ngram", select="residency")
    assert session.lossless and session.stats["lossless"] is True
    with pytest.warns(UserWarning, match="lossy"):
        assert model.generate(PROMPT, max_tokens=3, draft="ngram", select="moespec:4").stats["lossless"] is False


def test_the_command_line_says_so_on_stderr(tmp_path: Path) -> None:
    path = write_chat_model(tmp_path / "chat.gguf", arch="qwen3moe")
    arguments = ["generate", str(path), "-p", "hello", "-n", "4", "--draft", "ngram", "--select"]
    lossy = CliRunner().invoke(app, [*arguments, "moespec:4"])
    assert lossy.exit_code == 0, lossy.output
    assert "lossy" in lossy.stderr
    faithful = CliRunner().invoke(app, [*arguments, "all"])
    assert faithful.exit_code == 0 and "lossy" not in faithful.stderr


def test_a_budget_below_one_tokens_experts_is_refused(load_tiny: Loader) -> None:
    model = load_tiny({"arch": "qwen3moe"}, ram="all")
    with pytest.raises(expertree.InvalidRequestError, match=r"moespec leaves 1 experts.*uses 2"):
        model.session(draft="ngram", select="moespec:1")


def test_groups_that_hold_too_few_of_the_kept_experts_are_no_bound(load_tiny: Loader) -> None:
    """2 of 4 groups of 2 experts are open, a token uses 3: of 3 kept experts the open groups may hold only 2."""
    groups = {f"qwen3moe.expert_group_{name}": n for name, n in (("count", 4), ("used_count", 2))}
    fields = {"arch": "qwen3moe", "n_used": 3, "keys": groups}
    model = load_tiny(fields, ram="all")
    truth = plain_tokens(model, 80)
    session = drafting(model, truth, "moespec:3")
    while len(session) < 60:
        session.step()
