"""Prompts answered under a profile: what `expertree profile` measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from expertree.comparison.prompts import load_prompts
from expertree.errors import UnsupportedError
from expertree.generation import run_generation
from expertree.model import Model, encode_messages, text_options
from expertree.profile.profile import Profile

_RANDOM_TOKENS = 32


@dataclass(frozen=True)
class ProfilePrompt:
    """tokens: what the session is given."""

    label: str
    category: str
    tokens: list[int]


def default_prompts(model: Model) -> list[ProfilePrompt]:
    """One of each category of the project's own; random tokens for a model whose tokenizer is missing or unknown. No
    more of a prompt than half of the context."""
    room = max(1, model.n_ctx // 2)
    try:
        prompts = [text_prompt(model, p.text, p.id, p.category) for p in load_prompts(per_category=1)]
    except UnsupportedError:
        tokens = np.random.default_rng(0).integers(0, model.n_vocab, _RANDOM_TOKENS).tolist()
        prompts = [ProfilePrompt("random tokens", "random", tokens)]
    return [ProfilePrompt(p.label, p.category, p.tokens[:room]) for p in prompts]


def text_prompt(model: Model, text: str, label: str = "prompt", category: str = "") -> ProfilePrompt:
    """A message in the model's chat template; the text as it is for a model without one.

    Raises:
        UnsupportedError: the model's tokenizer is missing or unknown.
    """
    if model.tokenizer.chat_template is None:
        return ProfilePrompt(label, category, model.tokenizer.encode(text, add_special=True, parse_special=True))
    return ProfilePrompt(label, category, encode_messages(model, [{"role": "user", "content": text}])[0])


def profile_prompts(
    model: Model,
    prompts: Sequence[ProfilePrompt],
    max_tokens: int,
    progress: Callable[[], object] = lambda: None,
    **settings: Any,
) -> Profile:
    """Answers each prompt in a session of its own. Experts that have room are in memory before the first.

    Args:
        settings: as of `Model.session`.

    Raises:
        InvalidRequestError: a prompt longer than the context, or a setting out of range.
    """
    try:
        tokenizer = model.tokenizer
    except UnsupportedError:
        tokenizer = None
    options = text_options(max_tokens, None)
    model.load_experts()
    with model.profile() as run:
        for prompt in prompts:
            session = model.session(**settings)
            session.set_label(prompt.label, prompt.category)
            run_generation(session, tokenizer, prompt.tokens, options)
            progress()
    return run.profile
