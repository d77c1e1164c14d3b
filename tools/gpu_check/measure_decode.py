"""Prints JSON: decoding and C(n) of a model with shares of its experts on the device, and on the CPU alone.

    python tools/gpu_check/measure_decode.py MODEL [--tiny] [--seconds N]

Each share runs in a process of its own. Shares that do not fit in the device's memory say so; the rest is left out, and
named, when the time is over.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from expertree import Model

SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
COMMAND = [sys.executable, "-m", "expertree", "bench"]


def budget(model: Path, share: float) -> str:
    if share == 0:
        return "0"
    if share == 1:
        return "all"
    gpu = Model(str(model), vram="all").gpu
    # Dense parts go there first.
    fixed, every = int(gpu["fixed_bytes"]) + int(gpu["dense_bytes"]), int(gpu["all_bytes"])
    return str(max(int(fixed + share * (every - fixed)), int(gpu["least_bytes"])))


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
    output, fault = run([*arguments, *(f"--test={test}" for test in tests)], seconds)
    return {"share": share, "fault": fault, "results": [json.loads(line) for line in output.splitlines()]}


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
    print(json.dumps({"model": options.model.name, "shares": shares}))
    return 1 if any(share["fault"] not in ("", "out of time") for share in shares) else 0


if __name__ == "__main__":
    sys.exit(main())
