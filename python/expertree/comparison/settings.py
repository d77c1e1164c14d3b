"""The rows of the comparison: every way to choose that the engine has, its parameter swept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from expertree import _core
from expertree.errors import InvalidRequestError


@dataclass(frozen=True)
class Setting:
    """name: unique. family: rows of one method, of which the best counts. select: None is plain decoding. is_oracle:
    the selector is told which experts nodes will use, from a recorded run."""

    name: str
    family: str
    select: str | None
    is_oracle: bool = False

    @property
    def is_lossless(self) -> bool:
        return self.select is None or "moespec" not in self.select


PLAIN = Setting("plain", "plain", None)
SWEEPS = ("small", "large")
_CHAINS = (1, 2, 3, 4)
_RHOS = {"small": (0.5, 0.8), "large": (0.3, 0.5, 0.7, 0.8, 0.9)}
_GAMMAS = {"small": (4, 8), "large": (2, 4, 8, 16)}


def comparison_settings(n_experts: int, n_used: int, sweep: str = "small") -> list[Setting]:
    """METHODS' rows besides plain decoding. n_experts, n_used: of a layer and per token; they size moespec's budget."""
    if sweep not in SWEEPS:
        raise InvalidRequestError(f"sweep is {sweep!r}; expected one of {', '.join(SWEEPS)}")
    rows = [_row("all", "all")]
    rows += [_row("chain", f"chain:{k}") for k in _CHAINS]
    rows += [_row("threshold", f"threshold:{rho:g}") for rho in _RHOS[sweep]]
    rows += [_row("evict", "evict")] + ([_row("evict", "evict:bonus=ignored")] if sweep == "large" else [])
    for name in ("ecospec", "ecospec-static"):
        rows += [_row(name, f"{name}:{gamma}") for gamma in _GAMMAS[sweep]]
    rows += [_row("s2moe", "s2moe"), _row("cascade", "cascade")]
    if sweep == "large":
        rows.append(_row("cascade", "cascade:all"))
    rows += [
        _row("residency", "residency"),
        Setting("residency (oracle)", "residency (oracle)", "residency", is_oracle=True),
        Setting("residency (blind)", "residency (blind)", "residency:places=ignored"),
    ]
    budgets = sorted({min(n_experts, max(n_used, n_experts * share // 8)) for share in (4, 6)})
    return rows + [_row("moespec", f"moespec:{budget}") for budget in budgets]


def chosen_settings(specs: Sequence[str], rows: Sequence[Setting]) -> list[Setting]:
    """The rows that specs name by their name or family; another spec is a selector's and makes a row of its own.

    Raises:
        InvalidRequestError: neither.
    """
    chosen: list[Setting] = []
    selectors = [name for name, _, _ in _core.selector_infos()]
    for spec in specs:
        named = [row for row in rows if spec in (row.name, row.family) and row not in chosen]
        family = spec.partition(":")[0]
        if not named and not any(spec in (row.name, row.family) for row in rows):
            if family not in selectors:
                raise InvalidRequestError(f"{spec!r} is no row and no selector; there are: {', '.join(selectors)}")
            named = [_row(family, spec)]
        chosen += named
    return chosen


def _row(family: str, select: str) -> Setting:
    return Setting(select, family, select)
