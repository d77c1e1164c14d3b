"""Prints JSON: tokens per second of each selector with a scripted drafter, beside plain decoding; half of the experts
are on the device.

    python tools/gpu_check/measure_selectors.py MODEL [--tiny]

The text must be the same with every selector but the lossy one; status 1 if it is not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
from expertree import Model, ScriptedDrafter
from expertree.model import selector_names
from measure_decode import budgets

RATES = (0.8, 0.7, 0.6)
ONLY_SMALL_TREES = {"exhaustive"}
LOSSY = {"moespec"}


def generate(
    model: Model, prompt: list[int], n_tokens: int, draft: ScriptedDrafter | None, select: str | None
) -> tuple[list[int], float, int]:
    """(tokens, seconds of generating them, steps)."""
    session = model.session(draft=draft, select=select, seed=1)
    session.prefill(prompt)
    tokens: list[int] = []
    began, n_steps = time.perf_counter(), 0
    for step in session:
        tokens += step.tokens
        n_steps += 1
        if len(tokens) >= n_tokens:
            break
    return tokens[:n_tokens], time.perf_counter() - began, n_steps


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tiny", action="store_true", help="few tokens, for the emulated device")
    options = parser.parse_args()
    n_tokens = 4 if options.tiny else 96
    # Half of the experts; where not even all others have room, what has.
    model = Model(str(options.model), vram=budgets(options.model, [0.5]).get(0.5, "auto"))
    prompt = np.random.default_rng(3).integers(0, model.n_vocab, 16).tolist()
    generate(model, prompt, n_tokens, None, None)  # warms the tiers up
    plain, seconds, n_steps = generate(model, prompt, n_tokens, None, None)
    results = [{"selector": "no drafts", "tokens_per_s": n_tokens / seconds, "steps": n_steps, "same_text": True}]
    # The drafter knows what comes a little beyond the end.
    truth = prompt + generate(model, prompt, n_tokens + 16, None, None)[0]
    for name in sorted(set(selector_names()) - ONLY_SMALL_TREES):
        drafter = ScriptedDrafter(truth, rates=RATES)
        tokens, seconds, n_steps = generate(model, prompt, n_tokens, drafter, name)
        speed = n_tokens / seconds
        results.append({"selector": name, "tokens_per_s": speed, "steps": n_steps, "same_text": tokens == plain})
    print(json.dumps(results))
    return 0 if all(result["same_text"] or result["selector"] in LOSSY for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
