"""SmolLM2's chat template as text, and the held-out prompts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

SYSTEM_PROMPT = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
SYSTEM = f"<|im_start|>system\n{SYSTEM_PROMPT}<|im_end|>\n"
USER, ANSWER = "<|im_start|>user\n", "\n<|im_start|>assistant\n"


def prompt_text(question: str) -> str:
    """A conversation up to where the answer begins."""
    return f"{SYSTEM}{USER}{question}<|im_end|>{ANSWER}"


def first_turns(folder: Path, names: Iterable[str]) -> list[str]:
    """The first user message of every conversation in the JSON lines files {name}.jsonl, which hold "turns"."""
    lines = [line for name in names for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return [json.loads(line)["turns"][0] for line in lines]
