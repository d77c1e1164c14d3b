#!/usr/bin/env python3
"""Hours of mixed prompts under a budget: does memory stay within it, and does the answer stay the same?

    python tools/soak.py MODEL --ram SIZE [--minutes N] [--context N] [--seed N] [--json]

Each turn is a prompt of 1 to 600 random ids, then up to 48 tokens, at random with drafts, a temperature, a session
that goes on from the last turn, or a generation that is broken off. After every tenth turn a fixed prompt is answered
and compared with its first answer. Every minute one line: resident memory, its peak, what is accounted (the process
before the model was loaded, the budget's slots, weights, KV caches of two sessions, scratch), tokens and hit rate.

Exit status 1 when the peak passes what is accounted, 48 MiB of heap, and 2 % of the budget; when memory grew by more
than 2 % of the budget after the first tenth of the time and twenty turns; or when the fixed prompt was answered
differently.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

HEAP_BYTES = 48 << 20  # metadata of the file, answers, what the heap holds back
SLACK = 0.02
PAGE_BYTES = 2 << 20  # a huge page more or less is no growth
MAX_STEP_TOKENS = 64
OPTIONS = ({}, {"draft": "ngram"}, {"temperature": 0.8}, {"draft": "ngram", "temperature": 1.0})


def memory_of_process():
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name: int(status[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM")}


class Turns:
    """Mixed use of one model; `take` runs one turn and returns the tokens it read and wrote."""

    def __init__(self, model, seed):
        self.model = model
        self.random = random.Random(seed)
        self.session = None

    def prompt(self, n):
        return [self.random.randrange(self.model.n_vocab) for _ in range(n)]

    def take(self):
        n_prompt = self.random.choice((1, 8, 40, 150, 600))
        n_tokens = self.random.randrange(1, 49)
        n_more = n_prompt + n_tokens + MAX_STEP_TOKENS
        if self.session is None or len(self.session) + n_more > self.session.n_ctx or self.random.random() < 0.5:
            self.session = None  # frees the old one's cache first
            self.session = self.model.session(seed=self.random.randrange(1 << 30), **self.random.choice(OPTIONS))
        self.session.prefill(self.prompt(n_prompt))
        n_done = 0
        while n_done < n_tokens:  # broken off wherever that is
            n_done += len(self.session.step().tokens)
        return n_prompt + n_done


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--ram", required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    import expertree

    before = memory_of_process()["VmRSS"]
    model = expertree.Model(arguments.model, ram=arguments.ram, n_ctx=arguments.context, threads=arguments.threads)
    parts = model.memory(arguments.context)
    accounted = before + sum(parts.values()) + parts["kv_bytes"]
    turns = Turns(model, arguments.seed)
    fixed = turns.prompt(24)

    def answer():
        return model.generate(fixed, max_tokens=24, ignore_eos=True).tokens

    # Touches what a session may take at most: pages of a cache take memory only when they are first used.
    full = model.session(draft="ngram")
    full.prefill(turns.prompt(model.n_ctx - MAX_STEP_TOKENS))
    full.step()
    expected = answer()
    del full
    start = time.monotonic()
    end = start + 60.0 * arguments.minutes
    settled = None
    n_tokens = n_turns = n_different = 0
    next_line = start
    while (now := time.monotonic()) < end:
        n_tokens += turns.take()
        n_turns += 1
        if n_turns % 10 == 0:
            n_different += answer() != expected
        resident = memory_of_process()
        if settled is None and now > start + (end - start) / 10 and n_turns > 20:
            settled = resident["VmHWM"]
        if now < next_line and time.monotonic() < end:
            continue
        next_line += 60.0
        counts = model.experts
        row = {
            "minutes": round((now - start) / 60, 2),
            "resident_bytes": resident["VmRSS"],
            "peak_bytes": resident["VmHWM"],
            "accounted_bytes": accounted,
            "budget_bytes": parts["expert_bytes"],
            "tokens": n_tokens,
            "turns": n_turns,
            "hit_rate": counts["hits"] / max(1, counts["uses"]),
            "evictions": counts["evictions"],
            "different_answers": n_different,
        }
        if arguments.json:
            print(json.dumps({"schema": "expertree.soak/1", **row}), flush=True)
        else:
            sizes = (f"{part} {row[part + '_bytes'] / 1e6:.0f} MB" for part in ("resident", "peak", "accounted"))
            print(
                f"{row['minutes']:6.1f} min: {', '.join(sizes)}; {n_turns} turns, {n_tokens} tokens, "
                f"hits {row['hit_rate']:.0%}, {row['evictions']} evictions, {n_different} different answers",
                flush=True,
            )
    slack = max(SLACK * parts["expert_bytes"], PAGE_BYTES)
    peak = memory_of_process()["VmHWM"]
    faults = []
    if peak > accounted + HEAP_BYTES + slack:
        faults.append(f"the peak of {peak / 1e6:.0f} MB passes {(accounted + HEAP_BYTES + slack) / 1e6:.0f} MB")
    if settled is not None and peak > settled + slack:
        faults.append(f"memory grew by {(peak - settled) / 1e6:.1f} MB, more than {slack / 1e6:.1f} MB")
    if n_different:
        faults.append(f"{n_different} answers to the fixed prompt differ from the first")
    print("; ".join(faults) or "within bounds", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
