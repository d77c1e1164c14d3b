"""Writes DIR/corpus/heldout-chat.npy: answers of the dense model, drawn at temperature 0.8, to prompts that nothing was
trained on.

    python tools/default_model/held_out_chat.py --work DIR --base FILE --held-out FOLDER

FOLDER holds the JSON lines files mt_bench.jsonl and alpaca.jsonl with "turns" (lists of user messages).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import expertree
import numpy as np

_TOKENS = 240


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    arguments = parser.parse_args()
    model = expertree.Model(arguments.base, n_ctx=2048)
    ids: list[int] = []
    rows = [
        line for f in ("mt_bench", "alpaca") for line in (arguments.held_out / f"{f}.jsonl").read_text().splitlines()
    ]
    for seed, row in enumerate(rows):
        prompt = json.loads(row)["turns"][0]
        text = (
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
        )
        tokens = model.tokenizer.encode(text, parse_special=True)
        if len(tokens) > 400:
            continue
        answer = model.generate(tokens, max_tokens=_TOKENS, temperature=0.8, top_p=0.95, seed=seed)
        ids += [*tokens, *answer.tokens]
    np.save(arguments.work / "corpus" / "heldout-chat.npy", np.array(ids, dtype=np.uint16))
    print(f"{len(ids)} tokens of {len(rows)} conversations")


if __name__ == "__main__":
    main()
