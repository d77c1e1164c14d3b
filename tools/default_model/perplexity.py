"""Perplexity of GGUF files on the held-out text of corpus.py, by the engine itself.

    python tools/default_model/perplexity.py --work DIR MODEL.gguf [MODEL.gguf ...]

Rows of 512 tokens; the first 16 of a row are context only, and tokens of the chat template are not counted.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import expertree
import numpy as np

POSITIONS, CONTEXT = 512, 16
_TURN_START = 1


def perplexity(model: expertree.Model, flat: np.ndarray, max_rows: int) -> float:
    """flat: token ids, cut into rows; the tail that fills no row is left out."""
    total, count = 0.0, 0
    for row in flat[: len(flat) // POSITIONS * POSITIONS].reshape(-1, POSITIONS)[:max_rows].astype(np.int32):
        logits = model.logits(row)[CONTEXT - 1 : -1].astype(np.float64)
        next_tokens = row[CONTEXT:]
        highest = logits.max(-1)
        log_total = highest + np.log(np.exp(logits - highest[:, None]).sum(-1))
        losses = (log_total - logits[np.arange(len(next_tokens)), next_tokens])[next_tokens != _TURN_START]
        total, count = total + losses.sum(), count + len(losses)
    return math.exp(total / count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder of corpus/heldout-DOMAIN.npy")
    parser.add_argument("--rows", type=int, default=36, help="rows of 512 tokens per domain")
    arguments = parser.parse_args()
    domains = {f.stem.removeprefix("heldout-"): np.load(f) for f in sorted(arguments.work.glob("corpus/heldout-*.npy"))}
    for path in arguments.models:
        model = expertree.Model(path, n_ctx=POSITIONS)
        found = {domain: round(perplexity(model, flat, arguments.rows), 3) for domain, flat in domains.items()}
        print(json.dumps({"model": path.name, **found}), flush=True)


if __name__ == "__main__":
    main()
