"""How well the two predictors without training tell a token's experts: `last` (those of the token before) and
`token-table` (the most frequent ones of that token id so far, `last` for an id not seen yet). In the engine.

    python tools/default_model/simple_predictors.py --work DIR MODEL.gguf

Reads DIR/own.npz (conversations that the model wrote): the first ones fill the table, the rest are predicted.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import expertree
import numpy as np
import numpy.typing as npt


def used_experts(model: expertree.Model, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """(tokens, layers, experts), 1 where used."""
    ids, _ = model.routing(tokens)
    used = np.zeros((ids.shape[1], ids.shape[0], model.n_experts), np.float32)
    np.put_along_axis(used, ids.transpose(1, 0, 2), 1, -1)
    return used


def recall(scores: npt.NDArray[np.float32], used: npt.NDArray[np.float32], n_used: int) -> float:
    best = np.argsort(-scores, -1, kind="stable")[..., :n_used]
    return float(np.take_along_axis(used, best, -1).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--learn", type=int, default=200, help="conversations that fill the table")
    parser.add_argument("--test", type=int, default=30, help="conversations that are predicted")
    arguments = parser.parse_args()
    model = expertree.Model(arguments.model, n_ctx=512)
    with np.load(arguments.work / "own.npz") as saved:
        rows = np.split(saved["tokens"], np.cumsum(saved["lengths"])[:-1])[: arguments.learn + arguments.test]
    table: dict[int, npt.NDArray[np.float32]] = defaultdict(lambda: np.zeros((0,), np.float32))
    last, by_token = [], []
    for i, row in enumerate(rows):
        used = used_experts(model, row.astype(np.int32))
        for t, token in enumerate(row.tolist()):
            if i >= arguments.learn and t > 0:
                last.append(recall(used[t - 1], used[t], model.n_experts_used))
                guess = table[token] if table[token].size else used[t - 1]
                by_token.append(recall(guess, used[t], model.n_experts_used))
            table[token] = used[t] + table[token] if table[token].size else used[t].copy()
    print(f"recall over {len(last)} tokens: last {np.mean(last):.3f}, token-table {np.mean(by_token):.3f}")


if __name__ == "__main__":
    main()
