"""Plots of a comparison, from the object of results.json. Needs matplotlib (`pip install expertree[plots]`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from expertree.errors import UnsupportedError

NAMES = ("curves", "speed", "predicted", "experts", "long")


def require_matplotlib() -> Any:
    """matplotlib.pyplot, drawing into files. Raises UnsupportedError when it is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise UnsupportedError(
            "plots need matplotlib, which is not installed: pip install 'expertree[plots]', or pass --no-plots"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def write_plots(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """curves.png: U(k) and C(k). speed.png: ratio by setting and category. predicted.png: predicted against measured
    time. experts.png: accepted length against unique experts. long.png: utility by window. Those without data are left
    out.

    Raises:
        UnsupportedError: no matplotlib.
    """
    pyplot = require_matplotlib()
    written: list[Path] = []
    for name, draw in zip(NAMES, (_curves, _speed, _predicted, _experts, _long), strict=True):
        figure = draw(found, pyplot)
        if figure is None:
            continue
        figure.tight_layout()
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
        written.append(path)
    return written


def _curves(found: Mapping[str, Any], pyplot: Any) -> Any:
    curves = {budget: curve for budget, curve in found["curves"].items() if curve["rows"]}
    if not curves:
        return None
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    first = next(iter(curves.values()))
    left.plot(first["rows"], first["experts"], marker="o")
    left.set(xlabel="rows verified", ylabel="unique experts per layer, U(k)", ylim=(0, None))
    for budget, curve in curves.items():
        relative = [seconds / curve["seconds"][0] for seconds in curve["seconds"]]
        right.plot(curve["rows"], relative, marker="o", label=budget)
    right.set(xlabel="rows verified", ylabel="C(k) / C(1)", ylim=(0, None))
    right.legend(title="budget")
    return figure


def _speed(found: Mapping[str, Any], pyplot: Any) -> Any:
    rows = [row for row in found["summary"] if row["ratio"] is not None]
    places = list(dict.fromkeys((row["budget"], row["temperature"]) for row in rows))
    if not places:
        return None
    figure, axes = pyplot.subplots(len(places), 1, figsize=(11, 3.6 * len(places)), squeeze=False)
    for axis, place in zip(axes[:, 0], places, strict=True):
        here = [row for row in rows if (row["budget"], row["temperature"]) == place]
        settings = [row["setting"] for row in here if row["category"] is None and row["is_best"]]
        categories = list(dict.fromkeys(row["category"] for row in here))
        width = 0.8 / max(1, len(categories))
        for i, category in enumerate(categories):
            of = {row["setting"]: row for row in here if row["category"] == category}
            shown = [(x, of[name]) for x, name in enumerate(settings) if name in of]
            middle = [row["ratio"] for _, row in shown]
            error = [
                [row["ratio"] - row["interval"][0] for _, row in shown],
                [row["interval"][1] - row["ratio"] for _, row in shown],
            ]
            at = [x + (i - len(categories) / 2 + 0.5) * width for x, _ in shown]
            axis.bar(at, middle, width, yerr=error, label=category or "all categories", error_kw={"linewidth": 0.7})
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_xticks(range(len(settings)), settings, rotation=20, ha="right")
        axis.set(ylabel="speed / plain", title=f"budget {place[0]}, temperature {place[1]:g}")
    axes[0, 0].legend(fontsize="small", ncols=4)
    return figure


def _predicted(found: Mapping[str, Any], pyplot: Any) -> Any:
    points = [step for step in _steps(found) if step["predicted_seconds"] > 0]
    if not points:
        return None
    figure, axis = pyplot.subplots(figsize=(6, 6))
    for budget in dict.fromkeys(step["budget"] for step in points):
        here = [step for step in points if step["budget"] == budget]
        axis.scatter(
            [1e3 * step["predicted_seconds"] for step in here],
            [1e3 * step["verify_seconds"] for step in here],
            s=5,
            alpha=0.4,
            label=budget,
        )
    low, high = axis.get_xlim()
    axis.plot([max(low, 0), high], [max(low, 0), high], color="black", linewidth=0.8)
    axis.set(xlabel="predicted ms", ylabel="measured ms", title="verifying a step")
    axis.legend(title="budget")
    return figure


def _experts(found: Mapping[str, Any], pyplot: Any) -> Any:
    points: dict[str, list[dict[str, Any]]] = {}
    for step in _steps(found):
        if step["experts"] > 0:
            points.setdefault(step["setting"], []).append(step)
    if not points:
        return None
    figure, axis = pyplot.subplots(figsize=(7, 5))
    for setting, steps in points.items():
        x = sum(step["experts"] for step in steps) / len(steps) / found["n_moe_layers"]
        y = 1 + sum(step["accepted"] for step in steps) / len(steps)
        axis.scatter([x], [y], s=25)
        axis.annotate(setting, (x, y), fontsize=7, xytext=(3, 3), textcoords="offset points")
    axis.set(xlabel="unique experts per layer and step", ylabel="tokens per step")
    return figure


def _long(found: Mapping[str, Any], pyplot: Any) -> Any:
    runs = [run for run in found["long_runs"] if run["utility"]]
    if not runs:
        return None
    figure, axis = pyplot.subplots(figsize=(8, 4.5))
    for run in runs:
        axis.plot(range(1, len(run["utility"]) + 1), run["utility"], label=f"{run['setting']}, {run['budget']}")
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set(xlabel="window of 100 steps", ylabel="utility (speed / plain)", ylim=(0, None))
    axis.legend(fontsize="small")
    return figure


def _steps(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    columns: Sequence[str] = found["steps"]["columns"]
    return [dict(zip(columns, values, strict=True)) for values in found["steps"]["values"]]
