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
from collections.abc import Sequence
from pathlib import Path

from expertree import Error, Model

SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
COMMAND = [sys.executable, "-m", "expertree", "bench"]


def budgets(model: Path, shares: Sequence[float]) -> dict[float, str]:
    """The sizes of the shares that lie between nothing and all, {} where not all of the model has room."""
    try:
        gpu = Model(str(model), vram="all").gpu
    except Error:
        return {}
    # Dense parts go there first.
    fixed, every = int(gpu["fixed_bytes"]) + int(gpu["dense_bytes"]), int(gpu["all_bytes"])
    return {
        share: str(max(int(fixed + share * (every - fixed)), int(gpu["least_bytes"])))
        for share in shares
        if 0 < share < 1
    }


def run(arguments: list[str], seconds: float) -> tuple[str, str]:
    """(output, "") or ("", what went wrong)."""
    try:
        done = subprocess.run(
            [*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=max(seconds, 1)
        )
    except subprocess.TimeoutExpired:
        return "", "out of time"
    return (
        (done.stdout, "") if done.returncode == 0 else ("", done.stderr.strip()[-500:] or f"status {done.returncode}")
    )


def measure(model: Path, share: float, vram: str | None, tiny: bool, seconds: float) -> dict[str, object]:
    if vram is None or seconds <= 0:
        fault = "out of time" if seconds <= 0 else "the model does not fit, so its shares have no size"
        return {"share": share, "fault": fault, "results": []}
    tests = ["decode"] if tiny else ["decode", "verify-chain", "verify-tree"]
    arguments = [str(model), "--json", "--rounds", "1" if tiny else "3", "--vram", vram]
    output, fault = run([*arguments, *(f"--test={test}" for test in tests)], seconds)
    return {"share": share, "fault": fault, "results": [json.loads(line) for line in output.splitlines()]}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tiny", action="store_true", help="one round, for the emulated device")
    parser.add_argument("--seconds", type=float, default=300)
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    wanted = (1.0, 0.5, 0.0) if options.tiny else SHARES
    sizes = {0.0: "0", 1.0: "all", **budgets(options.model, wanted)}
    shares = [measure(options.model, share, sizes.get(share), options.tiny, end - time.monotonic()) for share in wanted]
    print(json.dumps({"model": options.model.name, "shares": shares}))
    return 1 if any(share["fault"] not in ("", "out of time") for share in shares) else 0


if __name__ == "__main__":
    sys.exit(main())
