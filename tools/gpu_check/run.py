#!/usr/bin/env python3
"""The steps of tools/gpu_check.sh: runs each as a process with a limit, and writes one JSON and one Markdown file.

    python tools/gpu_check/run.py --output docs/gpu/NAME [--tiny] [--seconds N] [--only STEP ...]

A step that fails or runs out of time is recorded, and the next one runs: whatever happens, the files are written. The
exit status says whether all steps passed. --tiny: sizes for the emulated device (EXPERTREE_DEVICE=emulated).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from report import markdown

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
KERNEL_TESTS = [f"tests/cuda/test_{name}.py" for name in ("products", "rows", "experts", "attention", "top_k")]
CHECKERS = ("memcheck", "racecheck", "synccheck", "initcheck")


@dataclass
class Step:
    name: str
    command: list[str]
    seconds: float  # at most
    environment: dict[str, str] = field(default_factory=dict)
    skipped: str = ""  # why it does not run


TINY_MODEL = """
import sys
sys.path.insert(0, sys.argv[1])
from tiny_model import TinyModel  # the tests' own writer
TinyModel(arch="qwen3moe", format="Q4_K").write(sys.argv[2])
"""


def model_step(path: Path, tiny: bool) -> Step:
    tiny_command = [sys.executable, "-c", TINY_MODEL, str(ROOT / "tests"), str(path)]
    full_command = [sys.executable, str(ROOT / "tools/make_synthetic_moe.py"), "A", str(path)]
    return Step("synthetic model", tiny_command if tiny else full_command, 120)


def checker_step(checker: str, tiny: bool) -> Step:
    tool = shutil.which("compute-sanitizer")
    why = "" if tool and not tiny else "no compute-sanitizer" if not tiny else "tools/run_emulated.sh does it here"
    command = [tool or "compute-sanitizer", "--tool", checker, "--error-exitcode", "9", *PYTEST]
    return Step(checker, [*command, "tests/cuda/test_experts.py", "-k", "units or differ"], 60, skipped=why)


def steps(folder: Path, tiny: bool) -> list[Step]:
    small = ["--tiny"] if tiny else []
    script = [sys.executable]
    kernel_tests = [*KERNEL_TESTS[:1], "-k", "Q4_K"] if tiny else KERNEL_TESTS
    model = folder / "model.gguf"
    return [
        Step("conformance", [*PYTEST, "tests/cuda/test_emulation.py", "-k", "conformance"], 60),
        Step("kernel tests", [*PYTEST, *kernel_tests], 240),
        Step("models", [*script, str(HERE / "check_models.py"), *small], 120),
        *[checker_step(checker, tiny) for checker in CHECKERS],
        Step("kernel times", [*script, str(HERE / "time_kernels.py"), *small], 90),
        model_step(model, tiny),
        Step("decode", [*script, str(HERE / "measure_decode.py"), str(model), *small], 240),
        Step("selectors", [*script, str(HERE / "measure_selectors.py"), str(model), *small], 90),
    ]


def run(step: Step, left: float) -> dict[str, object]:
    """What became of it: status, seconds, the JSON that it printed last or the end of what it said."""
    if step.skipped:
        return {"step": step.name, "status": f"skipped: {step.skipped}", "seconds": 0.0}
    limit = min(step.seconds, left)
    if limit < 1:
        return {"step": step.name, "status": "skipped: out of time", "seconds": 0.0}
    began = time.monotonic()
    command = [*step.command, "--seconds", str(limit - 5)] if step.name == "decode" else step.command
    # A group of its own: what it started must not go on beside the next step.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, **step.environment}, start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=limit)
        status = "passed" if process.returncode == 0 else f"failed with status {process.returncode}"
        lines = output.strip().splitlines()
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        status, lines = f"out of time after {limit:.0f} s", []
    said = output + errors
    result: dict[str, object] = {"step": step.name, "status": status, "seconds": time.monotonic() - began}
    try:
        result["data"] = json.loads(lines[-1]) if lines else None
    except json.JSONDecodeError:
        result["said"] = lines[-1] if status == "passed" else said[-2000:]
    if status != "passed" and "said" not in result:
        result["said"] = said[-2000:]
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the two files, without suffix")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, default=600, help="for all steps together")
    parser.add_argument("--only", nargs="+", metavar="STEP")
    options = parser.parse_args()
    wanted = set(options.only or ())
    if wanted & {"decode", "selectors"}:
        wanted.add("synthetic model")
    end = time.monotonic() + options.seconds
    options.output.parent.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="expertree-gpu-") as temporary:
        folder = Path(temporary)
        for step in steps(folder, options.tiny):
            if options.only and step.name not in wanted:
                continue
            results.append(run(step, end - time.monotonic()))
            print(f"{step.name}: {results[-1]['status']} ({results[-1]['seconds']:.0f} s)", flush=True)
            # Written after each step: a machine that goes away leaves what was measured.
            found = {"schema": "expertree.gpu_check/1", "device": os.environ.get("EXPERTREE_DEVICE", "cuda")}
            found["steps"] = results  # type: ignore[assignment]
            options.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
            options.output.with_suffix(".md").write_text(markdown(found))
    bad = [result["step"] for result in results if not str(result["status"]).startswith(("passed", "skipped"))]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
