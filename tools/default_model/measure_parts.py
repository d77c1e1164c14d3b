"""The figures of the default model's card that need its insides: perplexity by routing rule, what the experts are used
for, recall of the expert predictor, tokens per verified step of both drafters. On the parts as they are shipped.

    python tools/default_model/measure_parts.py --work DIR --base FILE [--parts models/default] [--rows N] [--prompts N]

DIR holds corpus/heldout-DOMAIN.npy and prompts.json; results go to DIR/measures.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import measure
import numpy as np
import torch
from acceptance import Acceptance, eagle_acceptance, medusa_acceptance
from base_model import load_weights
from self_text import conversations
from shipped import read_experts, read_heads
from text_data import DOMAINS, load_rows
from torch import Tensor
from train_heads import Heads, predictor_recall
from upcycled import UpcycledModel

_POSITIONS = 512
_GREEDY_TOKENS = 160


def routing_figures(model: UpcycledModel, held: dict[str, Tensor]) -> dict[str, object]:
    by_rule = {}
    for name, rule in (
        ("dense", "dense"), ("experts", "router"), ("random experts", "random"), ("experts 0 and 1", "fixed"),
    ):  # fmt: skip
        model.routing = rule
        by_rule[name] = {d: round(measure.perplexity(model, rows), 3) for d, rows in held.items()}
        print(name, by_rule[name], flush=True)
    model.routing = "router"
    chosen = {d: measure.chosen_experts(model, rows) for d, rows in held.items()}
    shares = {d: measure.expert_shares(c) for d, c in chosen.items()}
    mean = torch.stack(list(shares.values())).mean(0)
    figures: dict[str, object] = {
        "perplexity": by_rule,
        "share of a layer's choices": {"least": mean.min().item(), "most": mean.max().item()},
        "shares by domain, layers 0, 7, 14, 21, 28": {d: s[::7].tolist() for d, s in shares.items()},
        "experts shared with the token before": {d: measure.overlap(c) for d, c in chosen.items()},
        "union of consecutive tokens, and if independent": {d: measure.unions(c) for d, c in chosen.items()},
    }
    for name in list(figures)[1:]:
        print(name, figures[name], flush=True)
    return figures


def greedy_texts(
    model: UpcycledModel, prompts: list[list[int]], answer_start: list[int]
) -> list[tuple[np.ndarray, int]]:
    """Each prompt with the model's greedy answer, and the prompt's length."""
    found = []
    for prompt in prompts:
        rows = conversations(model, [prompt], [True], answer_start, [0.0], len(prompt) + _GREEDY_TOKENS, seed=0)
        found += [(row, len(prompt)) for row in rows if len(row) > len(prompt) + 8]
    return found


def drafting_figures(heads: Heads, model: UpcycledModel, texts: list[tuple[np.ndarray, int]]) -> dict[str, object]:
    figures: dict[str, object] = {}
    for name, measured in (("eagle3", eagle_acceptance), ("medusa", medusa_acceptance)):
        total = Acceptance()
        for text, prompt in texts:
            measured(heads, model, text, prompt, total)
        figures[name] = {
            "tokens per step": round(total.tokens_per_step, 3),
            "steps": total.steps,
            "accepted by depth": [round(n / max(1, total.steps), 3) for n in total.per_depth],
            "calibration error": round(total.calibration_error, 4),
        }
    return figures


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--base", type=Path, required=True, help="SmolLM2-135M-Instruct, the Q4_1 GGUF file")
    parser.add_argument("--parts", type=Path, default=Path("models/default"))
    parser.add_argument("--rows", type=int, default=36, help="rows of 512 tokens per domain")
    parser.add_argument("--prompts", type=int, default=40, help="prompts per category")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    weights = load_weights(arguments.base)
    model = read_experts(arguments.parts / "experts.gguf", weights, arguments.device)
    heads = read_heads(arguments.parts, arguments.device)
    prompts = json.loads((arguments.work / "prompts.json").read_text())
    held = {d: load_rows(arguments.work / "corpus" / f"heldout-{d}.npy", _POSITIONS)[: arguments.rows] for d in DOMAINS}
    figures = routing_figures(model, held)
    figures["drafting"], recall_texts = {}, []
    for category, openings in prompts["held_out"].items():
        chosen = openings[:: max(1, len(openings) // arguments.prompts)][: arguments.prompts]
        texts = greedy_texts(model, chosen, prompts["answer_start"])
        recall_texts += [text for text, _ in texts[:8]]
        figures["drafting"][category] = drafting_figures(heads, model, texts)
        print(category, len(texts), figures["drafting"][category], flush=True)
    recall = predictor_recall(heads, model, recall_texts)
    figures["predictor recall by layer"] = recall
    print({name: sum(values) / len(values) for name, values in recall.items()}, flush=True)
    (arguments.work / "measures.json").write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
