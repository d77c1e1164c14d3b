"""Speed of whole models: prefill, decoding, and the cost of verifying k rows, beside what the machine can do.

    python tools/bench_engine.py [MODEL.gguf ...]       # without a file: the default model

Each figure is the median of --rounds interleaved rounds; the memory probe (plain reads with huge pages on the same
number of threads) runs in every round, since shared machines drift. GB/s counts the weights that a step must read:
everything but the experts once, and the experts that its rows use. C(k) is for k siblings of a tree, all logits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import expertree
import numpy as np
from expertree._core import GgufReader, _testing
from expertree.models.registry import resolve_model
from rich.console import Console

VERIFY = (2, 4, 8, 16, 32, 64)


def probe_read(n_threads: int, seconds: float = 0.15) -> float:
    """GB/s of n threads reading at once."""
    rates = [0.0] * n_threads

    def read(i: int) -> None:
        rates[i] = _testing.time_memory_read(seconds)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates)


class Weights:
    """Bytes that a step must read."""

    def __init__(self, path: Path) -> None:
        tensors = {t.name: t.size_bytes for t in GgufReader(str(path)).tensors}
        tied = "output.weight" not in tensors
        experts = sum(size for name, size in tensors.items() if "_exps." in name)
        self.fixed = sum(tensors.values()) - experts - (0 if tied else tensors["token_embd.weight"])
        self.experts = experts

    def of_step(self, model: expertree.Model, ids: np.ndarray | None) -> float:
        """ids: experts (layers, rows, used) of the step's rows."""
        if ids is None:
            return float(self.fixed)
        union = np.mean([np.unique(layer).size for layer in ids])
        return float(self.fixed + self.experts * union / model.n_experts)


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(model: expertree.Model, path: Path, rounds: int, n_prefill: int, n_decode: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, model.n_vocab, n_prefill)
    session = model.session(n_ctx=n_prefill + n_decode + 64)
    times: dict[str, list[float]] = {}
    weights, unions = Weights(path), {}
    for _ in range(rounds):
        times.setdefault("read", []).append(probe_read(model.threads))
        session.truncate(0)
        times.setdefault("prefill", []).append(timed(lambda: session.prefill(prompt)) / n_prefill)
        session.truncate(32)
        session.step()
        times.setdefault("decode", []).append(timed(lambda: [session.step() for _ in range(n_decode)]) / n_decode)
        session.truncate(32)
        session.prefill([1])
        for k in (1, *VERIFY):
            rows = rng.integers(0, model.n_vocab, k).astype(np.int32)
            parents = np.full(k, -1, np.int32)
            start = time.perf_counter()
            _, routed = session._core.evaluate(rows, parents, bool(model.n_experts))
            times.setdefault(f"verify {k}", []).append(time.perf_counter() - start)
            unions[k] = weights.of_step(model, routed[0] if routed else None)
            session.rollback()
    median = {name: statistics.median(values) for name, values in times.items()}
    read = median.pop("read")
    decode_gb_s = unions[1] / median["decode"] * 1e-9
    return {
        "model": path.name,
        "isa": model.isa,
        "threads": model.threads,
        "memory_read_gb_s": read,
        "prefill_tokens_per_s": 1 / median["prefill"],
        "decode_tokens_per_s": 1 / median["decode"],
        "decode_gb_s": decode_gb_s,
        "decode_of_memory_read": decode_gb_s / read,
        "cost_of_k_rows": {k: median[f"verify {k}"] / median["verify 1"] for k in VERIFY},
        "bytes_of_k_rows": {k: unions[k] / unions[1] for k in VERIFY},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--isa")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    for path in args.models or [resolve_model(None, Console(stderr=True))]:
        model = expertree.Model(path, threads=args.threads, isa=args.isa)
        row = measure(model, path, args.rounds, args.prefill, args.decode)
        if args.json:
            print(json.dumps(row), flush=True)
            continue
        print(f"{row['model']}: {row['isa']}, {row['threads']} threads, memory read {row['memory_read_gb_s']:.1f} GB/s")
        print(f"  prefill {args.prefill}: {row['prefill_tokens_per_s']:.0f} tokens/s")
        print(
            f"  decode {args.decode}: {row['decode_tokens_per_s']:.1f} tokens/s, {row['decode_gb_s']:.1f} GB/s of weights,"
            f" {row['decode_of_memory_read']:.0%} of the memory read"
        )
        costs = ", ".join(f"{k}: {c:.2f} ({row['bytes_of_k_rows'][k]:.2f})" for k, c in row["cost_of_k_rows"].items())
        print(f"  C(k) / C(1) in time (in bytes): {costs}", flush=True)


if __name__ == "__main__":
    main()
