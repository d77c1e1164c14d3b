#!/usr/bin/env python3
"""Measures the profiler: what zones leave out of the wall time, what it costs, and whether disk bytes are the system's.

    python tools/check_profiler.py MODEL [--tokens N] [--pairs N] [--ram SIZE]

Zones: the share of the steps' wall time that no zone claims, by kind of step; the limit is 2 %. Cost: the same few
steps with the profiler on and off, in pairs; the median of the ratios with its 95 % interval; the limit is 1 %. Disk:
bytes that the pager counted (over-read included) beside those that the operating system counted for the process, in a
run whose file is not in the page cache; the limit is 2 %. Run it on an idle machine.
"""

import argparse
import os
import time
from contextlib import nullcontext

import numpy as np
from expertree import Model
from expertree.profile import KINDS


def prompt_of(model, n=64):
    return np.random.default_rng(1).integers(0, model.n_vocab, n).tolist()


def decode(model, n_tokens, **settings):
    """Seconds of decoding."""
    session = model.session(**settings)
    session.prefill(prompt_of(model))
    start = time.perf_counter()
    while len(session) < 64 + n_tokens:
        session.step(64 + n_tokens - len(session))
    return time.perf_counter() - start


def zones(model, n_tokens):
    with model.profile() as run:
        outside = decode(model, n_tokens) + decode(model, n_tokens, draft="ngram", select="all")
    s = run.profile.steps
    steps = s.wall[s.of_kind("decode", "speculate")].sum()
    print(f"zones     {'decode':10} steps take {steps / outside:.4%} of the time that the caller's clock says")
    for number, kind in enumerate(KINDS):
        chosen = s.kind == number
        if chosen.any():
            left = 1 - s.zone_seconds[chosen, :-1].sum() / s.wall[chosen].sum()
            print(f"zones     {kind:10} {left:8.4%} of the wall time in no zone, {int(chosen.sum())} steps")
    ends = s.start + s.wall
    print(f"zones     {'all':10} {1 - s.zone_seconds.sum() / ends[-1]:8.4%}, time between steps included")


def cost(model, n_pairs):
    """Pairs of the same few steps, so that both sides of one meet the same machine; the order alternates."""
    session = model.session()
    session.prefill(prompt_of(model))

    def steps():
        session.truncate(63)
        session.prefill([1])
        start = time.perf_counter()
        for _ in range(4):
            session.step()
        return time.perf_counter() - start

    ratios = []
    for i in range(n_pairs):
        seconds = {}
        for on in (True, False) if i % 2 else (False, True):
            with model.profile() if on else nullcontext():
                seconds[on] = steps()
        ratios.append(seconds[True] / seconds[False])
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, (2000, n_pairs)), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    print(f"cost      {np.median(ratios) - 1:+.3%} with the profiler on", end=" ")
    print(f"({low - 1:+.3%} to {high - 1:+.3%}, 95 % of the median; {n_pairs} pairs of 4 steps)")


def disk(path, ram, n_tokens):
    all_bytes = Model(path).experts.get("all_bytes", 0)
    if not all_bytes:
        print("disk      a dense model reads no experts")
        return
    model = Model(path, ram=ram or int(0.3 * all_bytes))
    model.load_experts()
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    before = model.experts
    with model.profile() as run:
        decode(model, n_tokens)
    after = model.experts
    os.close(file)
    counted, over, asked = (after[k] - before[k] for k in ("bytes_from_disk", "bytes_overread", "bytes_read"))
    system = run.profile.facts["totals"]["process_read_bytes"]
    if not system:
        print(f"disk      {counted:,} bytes counted; the operating system says {system}")
        return
    print(
        f"disk      {counted:,} bytes counted, {over:,} of them over-read ({asked:,} asked for); "
        f"the operating system: {system:,} ({counted / system - 1:+.3%})"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--ram", default=None, help="for the disk's part; default: 30 % of the experts")
    arguments = parser.parse_args()
    model = Model(arguments.model)
    model.load_experts()
    decode(model, 8)
    zones(model, arguments.tokens)
    cost(model, arguments.pairs)
    del model
    disk(arguments.model, arguments.ram, arguments.tokens)


if __name__ == "__main__":
    main()
