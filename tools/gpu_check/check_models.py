"""Prints JSON: whether models of tests/conformance give the same bits on the device as without.

    python tools/gpu_check/check_models.py [--tiny]

EXPERTREE_DEVICE=emulated takes the emulated device.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import expertree
import numpy as np
from expertree import Model

MODELS = Path(__file__).resolve().parents[2] / "tests/conformance"
TINY = ("qwen3moe", "llama")


def check(path: Path, n_tokens: int) -> dict[str, object]:
    with_cpu = Model(str(path), vram=0)
    tokens = np.random.default_rng(1).integers(0, with_cpu.n_vocab, n_tokens).astype(np.int32).tolist()
    reference = with_cpu.logits(tokens)
    result: dict[str, object] = {"model": path.stem}
    try:
        with_device = Model(str(path), vram="all")
    except expertree.Error as error:
        return {**result, "status": f"not on the device: {error}"}
    taken = int(with_device.gpu.get("budget_bytes", 0))
    same = np.array_equal(with_device.logits(tokens).view(np.uint32), reference.view(np.uint32))
    return {**result, "status": "same bits" if same else "OTHER BITS", "device_bytes": taken}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="two models and few tokens, for the emulated device")
    options = parser.parse_args()
    paths = [path for path in sorted(MODELS.glob("*.gguf")) if not options.tiny or path.stem in TINY]
    results = [check(path, 6 if options.tiny else 48) for path in paths]
    print(json.dumps(results))
    return 1 if any(result["status"] == "OTHER BITS" for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
