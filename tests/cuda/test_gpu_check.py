"""tools/gpu_check.sh runs to its end on the emulated device, so that on a GPU nothing is left to chance."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from emulated_library import build_folder, library_path

ROOT = Path(__file__).resolve().parents[2]


def test_the_check_runs_to_its_end(tmp_path: Path) -> None:
    library_path()  # skips where there is no emulated device
    assert build_folder() is not None
    output = tmp_path / "check"
    done = subprocess.run(
        [str(ROOT / "tools/gpu_check.sh"), "--emulated", "--output", str(output)],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(output.with_suffix(".json").read_text())
    steps = {step["step"]: step for step in found["steps"]}
    assert set(steps) >= {
        "conformance",
        "kernel tests",
        "models",
        "memcheck",
        "racecheck",
        "kernel times",
        "decode",
        "selectors",
    }
    for name, step in steps.items():
        expected = "skipped" if name.endswith("check") else "passed"
        assert step["status"].startswith(expected), step
    assert all(result["status"] == "same bits" for result in steps["models"]["data"])
    assert steps["kernel times"]["data"]["kernels"]
    text = output.with_suffix(".md").read_text()
    assert "Emulated on a CPU" in text and "expert_hidden" in text and "CPU alone" in text
