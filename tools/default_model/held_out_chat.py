"""Writes DIR/corpus/heldout-chat.npy: answers of the dense model, drawn at temperature 0.8, to prompts that nothing was
trained on.

    python tools/default_model/held_out_chat.py --work DIR --base FILE --held-out FOLDER

FOLDER holds the JSON lines files mt_bench.jsonl and alpaca.jsonl with "turns" (lists of user messages).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import expertree
import numpy as np
from chat_text import first_turns, prompt_text

_TOKENS = 240


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    arguments = parser.parse_args()
    model = expertree.Model(arguments.base, n_ctx=2048)
    ids: list[int] = []
    questions = first_turns(arguments.held_out, ("mt_bench", "alpaca"))
    for seed, question in enumerate(questions):
        tokens = model.tokenizer.encode(prompt_text(question), parse_special=True)
        if len(tokens) > 400:
            continue
        answer = model.generate(tokens, max_tokens=_TOKENS, temperature=0.8, top_p=0.95, seed=seed)
        ids += [*tokens, *answer.tokens]
    np.save(arguments.work / "corpus" / "heldout-chat.npy", np.array(ids, dtype=np.uint16))
    print(f"{len(ids)} tokens of {len(questions)} conversations")


if __name__ == "__main__":
    main()
