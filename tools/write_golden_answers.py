"""Writes the golden chat answers of the small real model: python tools/write_golden_answers.py

Run it after a change that is meant to change the arithmetic, read the difference, and commit it with that change.
"""

from __future__ import annotations

import json
from pathlib import Path

import expertree
from expertree.models.registry import resolve_model
from rich.console import Console

FILE = Path(__file__).parent.parent / "tests" / "golden" / "smollm2-135m-answers.json"
QUESTIONS = (
    "Why is the sky blue?",
    "What is gravity?",
    "Who wrote Hamlet?",
    "Give me three tips for a good night's sleep.",
    "Write a Python function that adds two numbers.",
)
MAX_TOKENS = 80


def main() -> None:
    model = expertree.Model(resolve_model("smollm2-135m", Console(stderr=True)))
    cases = []
    for question in QUESTIONS:
        result = model.chat([{"role": "user", "content": question}], max_tokens=MAX_TOKENS)
        cases.append(
            {
                "question": question,
                "max_tokens": MAX_TOKENS,
                "answer": result.text,
                "finish_reason": result.finish_reason,
            }
        )
        print(f"## {question}\n{result.text}\n")
    FILE.write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
