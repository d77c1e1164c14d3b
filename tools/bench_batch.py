#!/usr/bin/env python3
"""Speed of several sessions that share passes, beside the same sessions one at a time.

    python tools/bench_batch.py MODEL [--batch 1,2,4,8] [--setting DRAFT/SELECT ...] [--ram SIZE] [--rounds N]
                                [--tokens N] [--temperature T] [--max-rows N] [--threads N] [--json]

The prompts are the project's own, one of each category in turn, through the model's chat template where it has one. For
each batch size and setting (none/- is plain decoding) the first B prompts are prefilled, then stepped together until
each has --tokens more; only steps are timed, drafting included. Settings and batch sizes alternate, and the medians of
the rounds are shown.

total: tokens/s of all sessions. each: of one of them. vs 1: total over that of batch 1 with the same setting. vs plain:
total over plain decoding's at the same batch. rows, experts: of a pass, experts per layer. independent: experts per
layer if the sessions' own sets overlapped by chance alone, n (1 - product of (1 - own / n)). misses: of a pass.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import expertree
from expertree.comparison.prompts import load_prompts
from expertree.errors import UnsupportedError
from expertree.model import encode_messages

SCHEMA = "expertree.bench_batch/1"
DEFAULT_SETTINGS = ("none/-", "auto/residency", "auto/all", "auto/evict")


def prompt_ids(model, prompts):
    ids = []
    for prompt in prompts:
        try:
            ids.append(encode_messages(model, [{"role": "user", "content": prompt.text}])[0])
        except UnsupportedError:
            ids.append([1 + i % (model.n_vocab - 1) for i in range(8, 8 + len(prompt.text) // 4)])
    return ids


def run(model, setting, prompts, arguments):
    """One timed run: counts and sums over its passes."""
    draft, _, select = setting.partition("/")
    options = {} if draft == "none" else {"draft": draft, "select": select or "residency"}
    sessions = []
    for i, ids in enumerate(prompts):
        n_ctx = len(ids) + arguments.tokens + 1
        sessions.append(model.session(n_ctx=n_ctx, temperature=arguments.temperature, seed=i, **options))
        sessions[-1].prefill(ids)
    ends = [len(ids) + arguments.tokens for ids in prompts]
    engine = expertree.Engine(model, max_rows=arguments.max_rows)
    engine.step(sessions, max_tokens=1)  # the prompts' own passes give these
    n_layers, n_experts = int(model._core.n_moe_layers), model.n_experts
    sums = {"passes": 0, "rows": 0, "experts": 0, "independent": 0.0, "accepted": 0, "steps": 0}
    n_before = sum(map(len, sessions))
    misses = model.experts.get("misses", 0)
    start = time.perf_counter()
    while left := [(s, end - len(s)) for s, end in zip(sessions, ends, strict=True) if len(s) < end]:
        steps = engine.step([s for s, _ in left], max_tokens=[n for _, n in left])
        sums["passes"] += 1
        sums["steps"] += len(steps)
        sums["accepted"] += sum(len(step.tokens) - 1 for step in steps)
        cost = steps[0].cost
        sums["rows"] += cost.pass_rows
        # A plain session alone does not count them.
        alone = n_layers * model.n_experts_used
        sums["experts"] += cost.pass_experts or alone
        unused = 1.0
        for step in steps:
            unused *= 1.0 - (step.cost.experts or alone) / (n_layers * n_experts) if n_layers else 1.0
        sums["independent"] += n_layers * n_experts * (1.0 - unused)
    seconds = time.perf_counter() - start
    for session in sessions:
        session.remember_costs()
    return {
        "seconds": seconds,
        "tokens": sum(map(len, sessions)) - n_before,
        "misses": model.experts.get("misses", 0) - misses,
        **sums,
    }


def summary(setting, batch, runs, base, plain, n_layers):
    rate = statistics.median(r["tokens"] / r["seconds"] for r in runs)

    def per_pass(name):
        return sum(r[name] for r in runs) / sum(r["passes"] for r in runs)

    return {
        "schema": SCHEMA,
        "setting": setting,
        "batch": batch,
        "runs": len(runs),
        "tokens_per_second": rate,
        "spread": [min(r["tokens"] / r["seconds"] for r in runs), max(r["tokens"] / r["seconds"] for r in runs)],
        "per_session": rate / batch,
        "ratio_to_one": rate / base if base else 1.0,
        "ratio_to_plain": rate / plain if plain else 1.0,
        "accepted_per_step": sum(r["accepted"] for r in runs) / sum(r["steps"] for r in runs),
        "rows_per_pass": per_pass("rows"),
        "experts_per_layer": per_pass("experts") / max(1, n_layers),
        "experts_if_independent": per_pass("independent") / max(1, n_layers),
        "misses_per_pass": per_pass("misses"),
    }


COLUMNS = (
    *(("setting", "setting", "s"), ("batch", "batch", "d"), ("total", "tokens_per_second", ".1f")),
    *(("each", "per_session", ".1f"), ("vs 1", "ratio_to_one", ".2f"), ("vs plain", "ratio_to_plain", ".2f")),
    *(("accepted", "accepted_per_step", ".2f"), ("rows", "rows_per_pass", ".1f")),
    *(("experts", "experts_per_layer", ".2f"), ("independent", "experts_if_independent", ".2f")),
    ("misses", "misses_per_pass", ".1f"),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--batch", default="1,2,4,8", help="batch sizes, up to 8")
    parser.add_argument("--setting", action="append", help=f"default: {' '.join(DEFAULT_SETTINGS)}")
    parser.add_argument("--ram", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="of each session")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-rows", type=int, default=64, help="of a pass")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    batches = [int(size) for size in arguments.batch.split(",")]
    settings = arguments.setting or list(DEFAULT_SETTINGS)
    model = expertree.Model(arguments.model, ram=arguments.ram, threads=arguments.threads)
    model.load_experts()
    by_category = load_prompts(per_category=2)
    prompts = prompt_ids(model, by_category[0::2] + by_category[1::2])
    runs = {}
    for round_ in range(arguments.rounds + 1):  # the first one teaches prices and is not counted
        for batch in batches:
            for setting in settings:
                result = run(model, setting, prompts[:batch], arguments)
                if round_ > 0:
                    runs.setdefault((setting, batch), []).append(result)
    rates = {key: statistics.median(r["tokens"] / r["seconds"] for r in found) for key, found in runs.items()}
    n_layers = int(model._core.n_moe_layers)
    if not arguments.json:
        print("| " + " | ".join(title for title, _, _ in COLUMNS) + " |")
        print("| " + " | ".join("---" for _ in COLUMNS) + " |")
    for (setting, batch), found in sorted(runs.items(), key=lambda item: (settings.index(item[0][0]), item[0][1])):
        plain = next((rates[key] for key in rates if key[0].startswith("none") and key[1] == batch), None)
        row = summary(setting, batch, found, rates.get((setting, 1)), plain, n_layers)
        if arguments.json:
            print(json.dumps(row))
        else:
            print("| " + " | ".join(format(row[name], form) for _, name, form in COLUMNS) + " |")


if __name__ == "__main__":
    main()
