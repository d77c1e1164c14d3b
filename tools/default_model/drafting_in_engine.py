"""Mean tokens per step of the EAGLE-3 and Medusa heads in the engine, at temperature 0, whole tree verified.

    python tools/default_model/drafting_in_engine.py --work DIR MODEL.gguf [--parts models/default]

DIR/prompts.json holds the held-out prompts (prompts.py). The text is checked against plain decoding.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import expertree


def run(model: expertree.Model, prompt: list[int], n: int, draft: str | None) -> tuple[list[int], int]:
    """Tokens, and the steps that gave them, the first left out: it only samples."""
    options = {"draft": draft, "select": "all", "draft_nodes": 32, "draft_depth": 4, "draft_top_k": 8} if draft else {}
    session = model.session(temperature=0.0, **options)
    session.prefill(prompt)
    tokens: list[int] = []
    steps = -1
    for step in session:
        steps += 1
        tokens += step.tokens
        if len(tokens) >= n:
            break
    return tokens, steps


def tokens_per_step(
    model: expertree.Model, prompts: list[list[int]], n: int, drafts: dict[str, str]
) -> dict[str, float]:
    """Mean over the steps of all prompts, by name of `drafts`.

    Raises:
        AssertionError: drafting changed the text.
    """
    tokens, steps = (dict.fromkeys(drafts, 0) for _ in range(2))
    for prompt in prompts:
        plain, _ = run(model, prompt, n, None)
        for name, draft in drafts.items():
            found, taken = run(model, prompt, n, draft)
            assert found[:n] == plain[:n], f"{name} changed the text"
            tokens[name] += len(found) - 1
            steps[name] += taken
    return {name: round(tokens[name] / max(1, steps[name]), 3) for name in drafts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--parts", type=Path, default=Path("models/default"))
    parser.add_argument("--prompts", type=int, default=8, help="prompts per category")
    parser.add_argument("--tokens", type=int, default=96, help="tokens per prompt")
    arguments = parser.parse_args()
    model = expertree.Model(arguments.model, n_ctx=1024)
    held_out = json.loads((arguments.work / "prompts.json").read_text())["held_out"]
    drafts = {name: f"{name}:{arguments.parts}/{name}.gguf" for name in ("eagle3", "medusa")}
    for category, prompts in held_out.items():
        chosen = prompts[:: max(1, len(prompts) // arguments.prompts)][: arguments.prompts]
        print(category, tokens_per_step(model, chosen, arguments.tokens, drafts), flush=True)


if __name__ == "__main__":
    main()
