"""Sampler settings: names, defaults, and the step from Python values to the core."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from expertree import _core
from expertree.errors import InvalidRequestError


def draw_seed() -> int:
    """A fresh random seed, short enough to read aloud (32 bits)."""
    return secrets.randbits(32)


@dataclass(frozen=True)
class SamplingParams:
    """What the sampler is asked for. The chain runs in llama.cpp's order.

    temperature 0 takes the best token, the lowest id among equals. seed None draws one; the one used is in the
    statistics. logit_bias maps token ids to what is added to their logits; -inf bans a token.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def to_core(self, seed: int) -> _core.SamplerOptions:
        """The core's form of these settings.

        Raises:
            InvalidRequestError: a value is of the wrong type or out of the core's number range.
        """
        options = _core.SamplerOptions()
        values = {name: getattr(self, name) for name in _SCALARS}
        values["seed"] = seed
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidRequestError(f"logit_bias is {self.logit_bias!r}; expected {_EXPECTED['logit_bias']}")
        values["logit_bias"] = list(self.logit_bias.items())
        for name, value in values.items():
            try:
                setattr(options, name, value)
            except (TypeError, OverflowError, ValueError) as error:
                raise InvalidRequestError(f"{name} is {value!r}; expected {_EXPECTED[name]}") from error
        return options


_SCALARS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "penalty_last_n",
)
_EXPECTED = {
    "temperature": "a number",
    "top_k": "a whole number below 2^31, 0 for off",
    "top_p": "a number from 0 to 1",
    "min_p": "a number from 0 to 1",
    "repeat_penalty": "a positive number",
    "presence_penalty": "a number",
    "frequency_penalty": "a number",
    "penalty_last_n": "a whole number below 2^31, -1 for the whole context",
    "seed": "a whole number from 0 to 2^64 - 1",
    "logit_bias": "a mapping from token id to number",
}
