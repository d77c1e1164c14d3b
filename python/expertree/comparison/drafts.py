"""Who drafts in a comparison: a drafter's name as on the command line, or `scripted:RATES`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from expertree import _core
from expertree.errors import InvalidRequestError
from expertree.speculation import DraftLimits, ScriptedDrafter

_OPTIONS = {"spread": "spread", "noise": "score_noise", "ms": "seconds_per_depth", "seed": "seed"}


@dataclass(frozen=True)
class Draft:
    """draft, predict: as `Model.session` takes them; limits: how large trees may be."""

    draft: str
    predict: str = "last"
    limits: DraftLimits = field(default_factory=DraftLimits)

    def __post_init__(self) -> None:
        if self.needs_truth:
            scripted(self.draft, [0])

    @property
    def label(self) -> str:
        """The drafter's name, for reports: files without their folders."""
        return self.draft if self.needs_truth else _without_folder(self.draft)

    @property
    def predict_label(self) -> str:
        return _without_folder(self.predict)

    @property
    def needs_truth(self) -> bool:
        """Whether a plain run must come first."""
        return self.draft.partition(":")[0] == "scripted"

    def drafter(self, truth: Sequence[int]) -> str | ScriptedDrafter:
        """What a session is given. truth: all its tokens, prompt included; of use to a scripted drafter alone."""
        return scripted(self.draft, truth) if self.needs_truth else self.draft


def scripted(spec: str, truth: Sequence[int]) -> ScriptedDrafter:
    """A drafter from `scripted:RATE,RATE,..[,spread=S][,noise=N][,ms=M][,seed=I]`.

    RATE: the chance that the true token is drafted, by depth, the last for all below. ms: milliseconds charged for each
    depth, for example those of a real head. The other options: see `ScriptedDrafter`.

    Raises:
        InvalidRequestError: anything else.
    """
    rates: list[float] = []
    options: dict[str, Any] = {}
    for part in spec.partition(":")[2].split(","):
        key, equals, value = part.partition("=")
        try:
            number = float(value if equals else part)
        except ValueError:
            number = float("nan")
        if (equals and key not in _OPTIONS) or number != number or (not equals and options):
            raise InvalidRequestError(
                f"{spec!r}: {part!r} makes no sense; write scripted:RATE,RATE,..[,spread=S][,noise=N][,ms=M][,seed=I]"
            )
        if equals:
            options[_OPTIONS[key]] = number * 1e-3 if key == "ms" else number
        else:
            rates.append(number)
    seed = int(options.pop("seed", 0))
    return ScriptedDrafter(truth, rates or (0.7,), seed=seed, **options)


def _without_folder(spec: str) -> str:
    parts = [part.partition(":") for part in _core.split_drafters(spec)]
    return "+".join(f"{name}{colon}{Path(argument).name}" if argument else name for name, colon, argument in parts)
