"""tools/predict_cards.py: what it says of cards that hold everything, and of one that does not, worked out by hand."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from emulated_device import library
from expertree import Model, _core
from tiny_model import TinyModel

TOOLS = Path(__file__).resolve().parents[2] / "tools"
N_STEPS, N_WARM = 100, 64


def predict(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, TOOLS / "predict_cards.py", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Path(str(arguments[-1])).read_text()


def cells(page: str, card: str) -> list[str]:
    row = next(line for line in page.splitlines() if line.startswith(f"| {card} ") and line.count("|") > 5)
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.fixture
def trace(tmp_path: Path, tiny: Callable[..., Path]) -> str:
    library()
    path = tiny(arch="qwen3moe", format="Q8_0", n_experts=16)
    ids, _ = Model(path).routing(np.random.default_rng(1).integers(0, 96, N_STEPS))
    np.savez(tmp_path / "trace.npz", ids=ids)
    return f"{path}:{tmp_path / 'trace.npz'}"


def test_a_card_that_holds_everything(trace: str, tmp_path: Path) -> None:
    page = predict("--routing", trace, "--set", "context=0", "--set", "note_us=1000", "--output", tmp_path / "p.md")
    assert "Predictions, not measurements" in page
    assert str(tmp_path) not in page
    found = re.findall(
        r"a layer is ([\d.]+) graphs of ([\d.]+) kernels in all, ([\d.]+) launches beside them, ([\d.]+) copies and "
        r"([\d.]+) waits",
        page,
    )
    assert len(found) == 2
    graphs, nodes, launches, copies, waits = map(float, found[0])
    assert graphs == waits == 2  # attention and experts are one round trip each
    assert launches == 0
    assert nodes > 20
    assert copies > 4
    graphs, nodes, launches, copies, waits = map(float, found[1])
    assert graphs == launches == waits == 0  # the step is one graph
    assert nodes > 20
    # Two layers; the head's calls and reading a tiny model's weights take less than a launch's inaccuracy.
    tensors = _core.GgufReader(trace.split(":")[0]).tensors
    head = next(t.size_bytes for t in tensors if t.name == "output.weight")
    assert f"| product_* | head | {head * 1e-6:.1f} |" in page
    least = 5 + 10 + 2 * (nodes * 0.9 + copies * 5 + 1000)
    for card in ("8 GB", "24 GB"):
        row = cells(page, card)
        assert row[1:4] == ["100%", "100%", "0"]
        assert len(set(row[4:])) == 1
        assert 0.9e6 / least < float(row[4]) < 1e6 / least


def test_what_is_missing_comes_over_the_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library()
    monkeypatch.syspath_prepend(str(TOOLS))
    monkeypatch.setenv("EXPERTREE_DEVICE", "emulated")
    import predict_cards as tool
    from call_counts import CallCount, Calls

    path = TinyModel(arch="qwen3moe", format="Q8_0", n_experts=16).write(tmp_path / "m.gguf")
    a = tool.Assumptions(host_us=0.0, context=0.0)
    model, none = tool.CardModel(path, a), CallCount(0, 0, 0, 0, 0)
    rng = np.random.default_rng(2)
    ids = np.stack([[rng.permutation(16)[:2] for _ in range(N_STEPS)] for _ in range(2)]).astype(np.int32)
    np.savez(tmp_path / "t.npz", ids=ids)
    size = model.layers[0].file_bytes
    monkeypatch.setattr(model, "expert_budget", lambda card: 16 * size)
    row = cells(
        "\n".join(
            tool.routing_rows(
                tool.routing_trace(tmp_path / "t.npz", model),
                model,
                tool.LayerCalls(Calls(none, none), Calls(none, none)),
                a,
            )
        ),
        "8 GB",
    )
    hits = float(row[2].rstrip("%")) / 100
    assert row[1] == "50%"
    assert 0.3 < hits < 0.7
    # Reading on the card is far faster than the link, so a step is the missed bytes over the link.
    for cell, link in zip(row[4:], (40.0, 12.0, 24.0, 48.0), strict=True):
        missed = 2 * 2 * (1 - hits) * size
        rest = model.other_bytes / (272e9 * 0.72)
        assert float(cell) == pytest.approx(1 / (missed / (link * 1e9) + rest), rel=0.25)
