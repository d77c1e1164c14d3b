#!/usr/bin/env python3
"""Replays a recorded routing trace through cache policies and budgets: hit rate, bytes per token, predicted tokens/s.

    python tools/pager_sim.py record MODEL TRACE.npz [--tokens N] [--prompt TEXT] [--seed N] [--temperature T]
    python tools/pager_sim.py replay MODEL TRACE.npz [--ram SIZE ...] [--policy NAME ...] [--warmup N]
                                     [--read-speed BYTES_PER_SECOND] [--json]

The policies are the ones that run (cpp/experts), and so is the bookkeeping: a replay of a run's own trace from its
start counts the run's own hits. `belady` knows the future: no policy does better. Speeds come from what earlier runs of
this model on this machine measured (--read-speed replaces the disk's); prefill steps of a trace count as steps.
With --warmup, `foretold` is what `expertree inspect` would say after those steps; the other rows are what came.
A trace holds n_layers, n_experts, and as arrays begin and experts: entry i, layer i % n_layers of step i // n_layers,
is experts[begin[i]:begin[i + 1]]. Instead it may hold ids (n_layers, n_tokens, n_used), as Model.routing gives them.
"""

import argparse
import json
import sys
import time
from dataclasses import replace

import numpy as np
from expertree import Model, _core
from expertree.expert_plan import SizeClasses, layer_slots, predict
from expertree.expert_record import Costs, ExpertRecord, load_record, record_path
from expertree.memory_size import parse_size

SCHEMA = "expertree.pager_sim/1"
SHARES = (0.25, 0.4, 0.5, 0.65, 0.8)


def record(arguments):
    model = Model(arguments.model)
    pager = model._core.experts
    if pager is None:
        raise SystemExit(f"{arguments.model}: a dense model routes nothing")
    rng = np.random.default_rng(arguments.seed)
    prompt = (
        model.tokenizer.encode(arguments.prompt) if arguments.prompt else rng.integers(0, model.n_vocab, 4).tolist()
    )
    session = model.session(temperature=arguments.temperature, seed=arguments.seed)
    session.prefill(prompt)
    pager.start_trace()
    for _ in range(arguments.tokens):
        if session.step() is None:
            break
    trace = pager.take_trace()
    begin, experts = trace.arrays()
    np.savez_compressed(
        arguments.trace, begin=begin, experts=experts, n_layers=trace.n_layers, n_experts=trace.n_experts
    )
    print(f"{trace.n_steps} steps of {trace.n_layers} layers, {experts.size} uses")


def load_trace(path, n_experts):
    with np.load(path) as saved:
        if "ids" in saved:
            return _core.RoutingTrace.of_tokens(np.ascontiguousarray(saved["ids"], np.int32), n_experts)
        begin, experts = saved["begin"].astype(np.int64), saved["experts"].astype(np.int32)
        return _core.RoutingTrace.of_steps(begin, experts, int(saved["n_layers"]), int(saved["n_experts"]))


def replay(arguments):
    reader = _core.GgufReader(arguments.model)
    layers = layer_slots(reader.tensors, _core.direct_read_alignment(arguments.model))
    if not layers:
        raise SystemExit(f"{arguments.model}: no experts of a form that is run")
    classes = SizeClasses.of(layers)
    trace = load_trace(arguments.trace, max(layer.n_experts for layer in layers))
    if trace.n_layers != len(layers):
        raise SystemExit(f"{arguments.trace}: {trace.n_layers} layers, the model has {len(layers)}")
    saved = load_record(record_path(arguments.model))
    costs = saved.costs if saved else Costs()
    if arguments.read_speed:
        costs = replace(costs, read_bytes_per_second=arguments.read_speed)
    profile = saved.rates.ravel().tolist() if saved and saved.rates.size == trace.n_layers * trace.n_experts else []
    total = sum(layer.n_experts * layer.slot_bytes for layer in layers)
    budgets = [size(text) for text in arguments.ram] or [int(share * total) for share in SHARES]
    names = arguments.policy or [n for n in _core.policy_names() if n != "pinned" or profile]
    if not arguments.json:
        print(f"{trace.n_steps} steps; all experts take {total / 2**30:.2f} GiB")
        print(f"{'GiB':>8} {'share':>6} {'policy':10} {'hits':>7} {'MB/token':>9} {'tokens/s':>9} {'seconds':>8}")
    foreseen = None
    if 0 < arguments.warmup < trace.n_steps:
        rates, reuse = (np.array(v, np.float32).reshape(trace.n_layers, -1) for v in trace.use(arguments.warmup))
        foreseen = ExpertRecord(rates, costs, arguments.warmup, reuse)
        n_used = max(1, round(float(rates.sum()) / trace.n_layers))
    for budget in budgets:
        slots = classes.slots(budget)
        if foreseen is not None:
            row = foretold(predict(layers, budget, n_used, foreseen), budget)
            print(json.dumps(row) if arguments.json else line(row))
        for name in names:
            start = time.perf_counter()
            got = _core.simulate_cache(trace, classes.class_of_layer, slots, name, profile, arguments.warmup)
            row = {
                "schema": SCHEMA,
                "budget_bytes": budget,
                "resident_share": sum(slots) / sum(classes.n_experts),
                "policy": name,
                **got,
                "hit_rate": got["hits"] / max(1, got["uses"]),
                **speed(layers, got, costs),
                "simulation_seconds": time.perf_counter() - start,
            }
            print(json.dumps(row) if arguments.json else line(row))


def foretold(residency, budget):
    return {
        "schema": SCHEMA,
        "budget_bytes": budget,
        "resident_share": residency.resident_share,
        "policy": "foretold",
        "hit_rate": residency.hit_rate,
        "read_bytes_per_step": residency.read_bytes_per_token,
        "steps_per_second": residency.tokens_per_second,
        "simulation_seconds": 0.0,
    }


def speed(layers, got, costs):
    """Bytes read and seconds of a step, as expertree.expert_plan.predict reckons them."""
    steps = max(1, got["steps"])
    read_bytes = sum(n * layer.file_bytes for n, layer in zip(got["misses_by_layer"], layers, strict=True)) / steps
    if not costs.step_seconds or not costs.read_bytes_per_second:
        return {"read_bytes_per_step": read_bytes, "steps_per_second": None}
    run = got["uses"] / steps * (costs.run_base_seconds + costs.run_row_seconds)
    seconds = max(0.0, costs.step_seconds - run) + max(run, read_bytes / costs.read_bytes_per_second)
    return {"read_bytes_per_step": read_bytes, "steps_per_second": 1 / seconds}


def line(row):
    fast = "" if row["steps_per_second"] is None else f"{row['steps_per_second']:.2f}"
    return (
        f"{row['budget_bytes'] / 2**30:8.2f} {row['resident_share']:6.0%} {row['policy']:10} {row['hit_rate']:7.1%} "
        f"{row['read_bytes_per_step'] / 1e6:9.1f} {fast:>9} {row['simulation_seconds']:8.2f}"
    )


def size(text):
    parsed = parse_size(text)
    if parsed is None:
        raise SystemExit(f"{text!r} is no size; give for example 6GiB")
    return parsed


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    recorder = commands.add_parser("record", help="generate text and save what it routes to")
    recorder.add_argument("model")
    recorder.add_argument("trace")
    recorder.add_argument("--tokens", type=int, default=256)
    recorder.add_argument("--prompt", default="")
    recorder.add_argument("--seed", type=int, default=1)
    recorder.add_argument("--temperature", type=float, default=1.0)
    recorder.set_defaults(run=record)
    replayer = commands.add_parser("replay", help="what policies and budgets would make of a trace")
    replayer.add_argument("model")
    replayer.add_argument("trace")
    replayer.add_argument("--ram", action="append", default=[], metavar="SIZE")
    replayer.add_argument("--policy", action="append", default=[], choices=_core.policy_names())
    replayer.add_argument("--warmup", type=int, default=0, help="steps that do not count")
    replayer.add_argument("--read-speed", type=float, help="bytes per second from disk")
    replayer.add_argument("--json", action="store_true")
    replayer.set_defaults(run=replay)
    chosen = parser.parse_args(arguments)
    chosen.run(chosen)


if __name__ == "__main__":
    main(sys.argv[1:])
