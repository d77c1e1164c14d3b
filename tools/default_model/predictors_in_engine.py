"""How well each predictor tells the experts of EAGLE-3 draft trees, and how many distinct experts such trees use. In
the engine, whole trees verified, at temperature 0.

    python tools/default_model/predictors_in_engine.py --work DIR MODEL.gguf [--parts models/default]

DIR/prompts.json holds the held-out prompts (prompts.py). Recall: of the true experts of every drafted node at their
true number; `token-table` knows what its session has seen. Union: of a layer, over the root and the best nodes of a
tree, beside what as many independent rows with the layer's shares over all trees would use.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path

import expertree
import numpy as np
import numpy.typing as npt

_SIZES = (2, 4, 8, 16, 32)  # nodes
Ids = npt.NDArray[np.int32]


@dataclass
class Trees:
    """Of every step: scores and parents of its tree, and the experts [1 + nodes, layers, used] that the rows chose."""

    scores: list[npt.NDArray[np.float32]] = field(default_factory=list)
    parents: list[Ids] = field(default_factory=list)
    experts: list[Ids] = field(default_factory=list)


def draft_options(parts: Path, predict: str, nodes: int) -> dict[str, object]:
    return {
        "draft": f"eagle3:{parts}/eagle3.gguf", "select": "all", "predict": predict, "draft_nodes": nodes,
        "draft_depth": 4, "draft_top_k": 8, "temperature": 0.0,
    }  # fmt: skip


def run_predictor(model: expertree.Model, prompt: list[int], n: int, options: dict[str, object]) -> list[Ids | None]:
    """What was predicted in every step that drafted."""
    session = model.session(**options)
    session.prefill(prompt)
    found = []
    while len(session) < len(prompt) + n and (step := session.step()) is not None:
        if len(step.tree):
            found.append(step.tree.experts)
    return found


def true_trees(model: expertree.Model, prompt: list[int], n: int, options: dict[str, object], into: Trees) -> None:
    """Evaluates every tree beside the session that drafted it."""
    session, beside = model.session(**options), model.session()
    session.prefill(prompt)
    beside.prefill(prompt[:-1])
    while len(session) < len(prompt) + n:
        before = session.tokens
        step = session.step()
        if step is None:
            return
        tree = step.tree
        if len(tree) == 0:
            continue
        if len(before) - 1 > len(beside):
            beside.prefill(before[len(beside) : -1])
        tokens = np.concatenate([before[-1:], tree.tokens]).astype(np.int32)
        parents = np.concatenate([[-1], tree.parents + 1]).astype(np.int32)
        _, (ids, _), _ = beside._core.evaluate(tokens, parents, True)
        beside.rollback()
        into.scores.append(tree.scores)
        into.parents.append(tree.parents)
        into.experts.append(np.asarray(ids).transpose(1, 0, 2).copy())


def recall(predicted: list[Ids | None], true: list[Ids]) -> npt.NDArray[np.float64]:
    """Per layer, over all nodes; where nothing was predicted, nothing is right."""
    assert len(predicted) == len(true), "the trees are not the same"
    hits, n = np.zeros(true[0].shape[1]), 0
    for guess, used in zip(predicted, true, strict=True):
        n += len(used) - 1
        if guess is not None:
            hits += (guess[1:, :, :, None] == used[1:, :, None, :]).any(-1).mean(-1).sum(0)
    return hits / n


def unions(trees: Trees, n_experts: int) -> dict[int, tuple[float, float]]:
    """By number of nodes: mean distinct experts of a layer, and that of independent rows."""
    n_layers = trees.experts[0].shape[1]
    all_rows = np.concatenate(trees.experts)
    share = np.stack([np.bincount(all_rows[:, layer].ravel(), minlength=n_experts) for layer in range(n_layers)])
    share = share / len(all_rows)  # chance that a row uses the expert
    found = {}
    for size in _SIZES:
        counts = []
        for scores, experts in zip(trees.scores, trees.experts, strict=True):
            if len(scores) < size:
                continue
            best = np.sort(np.argsort(-scores, kind="stable")[:size])  # closed: a child scores at most its parent
            rows = experts[np.concatenate([[0], best + 1])]
            counts.append(np.mean([len(np.unique(rows[:, layer])) for layer in range(n_layers)]))
        independent = (1 - (1 - share) ** (size + 1)).sum(1).mean()
        found[size] = (round(float(np.mean(counts)), 2), round(float(independent), 2)) if counts else (0.0, 0.0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--parts", type=Path, default=Path("models/default"))
    parser.add_argument("--prompts", type=int, default=4, help="prompts per category")
    parser.add_argument("--tokens", type=int, default=48, help="tokens per prompt")
    arguments = parser.parse_args()
    model = expertree.Model(arguments.model, n_ctx=1024)
    held_out = json.loads((arguments.work / "prompts.json").read_text())["held_out"]
    names = {n: n for n in ("last", "token-table", "router")} | {"head": f"head:{arguments.parts}/predictor.gguf"}
    trees = Trees()
    predicted: dict[str, list[Ids | None]] = {name: [] for name in names}
    for category, prompts in held_out.items():
        first = len(trees.experts)
        for prompt in prompts[:: max(1, len(prompts) // arguments.prompts)][: arguments.prompts]:
            true_trees(model, prompt, arguments.tokens, draft_options(arguments.parts, "none", 32), trees)
            for name, spec in names.items():
                options = draft_options(arguments.parts, spec, 32)
                predicted[name] += run_predictor(model, prompt, arguments.tokens, options)
        here = {n: round(float(recall(p[first:], trees.experts[first:]).mean()), 3) for n, p in predicted.items()}
        print(category, f"{len(trees.experts) - first} trees, recall", here, flush=True)
    for name, sets in predicted.items():
        by_layer = recall(sets, trees.experts)
        print(f"{name}: recall {by_layer.mean():.3f}; by layer", " ".join(f"{r:.2f}" for r in by_layer), flush=True)
    print("nodes: distinct experts of a layer (if independent)", unions(trees, model.n_experts))


if __name__ == "__main__":
    main()
