"""Prints JSON: decoding and C(n) of a model with shares of its experts on the device, and on the CPU alone.

    python tools/gpu_check/measure_decode.py MODEL [--tiny] [--seconds N]

Each share runs in a process of its own. Shares that do not fit in the device's memory say so; the rest is left out, and
named, when the time is over. `residency` and the other selectors run at half of the experts (`expertree bench
--speculate`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from expertree import Model

SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
COMMAND = [sys.executable, "-m", "expertree", "bench"]


def budget(model: Path, share: float) -> str:
    if share == 0:
        return "0"
    gpu = Model(str(model), vram="all").gpu
    return "all" if share == 1 else str(max(int(gpu["all_bytes"] * share), int(gpu["least_bytes"])))


def run(arguments: list[str], seconds: float) -> tuple[str, str]:
    """(output, "") or ("", what went wrong)."""
    try:
        done = subprocess.run(
            [*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=max(seconds, 1)
        )
    except subprocess.TimeoutExpired:
        return "", "out of time"
    return (done.stdout, "") if done.returncode == 0 else ("", done.stderr.strip()[-500:])


def measure(model: Path, share: float, tiny: bool, seconds: float) -> dict[str, object]:
    tests = ["decode"] if tiny else ["decode", "verify-chain", "verify-tree"]
    arguments = [str(model), "--json", "--rounds", "1" if tiny else "3", "--vram", budget(model, share)]
    if tiny:
        arguments += ["--ctx", "64"]
    output, fault = run([*arguments, *(f"--test={test}" for test in tests)], seconds)
    return {"share": share, "fault": fault, "results": [json.loads(line) for line in output.splitlines()]}


def compare_selectors(model: Path, tiny: bool, seconds: float) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(model), "--speculate", "--draft", "scripted:0.8,0.7,0.6", "--rounds", "1", "--out", folder]
        arguments += ["--vram", budget(model, 0.5), "--ram", "all"]
        if tiny:
            arguments += ["--ctx", "128", "-n", "4"]
        _, fault = run(arguments, seconds)
        results = Path(folder) / "results.json"
        return {"fault": fault, "results": json.loads(results.read_text()) if results.exists() else None}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tiny", action="store_true", help="one round, for the emulated device")
    parser.add_argument("--seconds", type=float, default=300)
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    shares = []
    for share in (1.0, 0.5, 0.0) if options.tiny else SHARES:
        shares.append(measure(options.model, share, options.tiny, end - time.monotonic()))
    selectors = compare_selectors(options.model, options.tiny, end - time.monotonic())
    print(json.dumps({"model": options.model.name, "shares": shares, "selectors": selectors}))
    return 1 if any(share["fault"] not in ("", "out of time") for share in shares) else 0


if __name__ == "__main__":
    sys.exit(main())
