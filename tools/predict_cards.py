#!/usr/bin/env python3
"""Writes docs/gpu/predictions.md: tokens/s that consumer cards should reach, from recorded routing. Nothing is timed.

    python tools/predict_cards.py --routing MODEL.gguf:TRACE.npz ... --speculation MODEL.gguf:TRACE.npz ...
                                  [--set NAME=NUMBER ...] [--output FILE]

--routing takes what `tools/pager_sim.py record` writes, or ids of `Model.routing`; the first steps warm the cache.
--speculation takes what `expertree bench --speculate ... --out DIR` writes (trace-t0.npz). Of a model's file only the
description is read. --set replaces an assumption. Needs a build with the emulated device, which counts calls.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from call_counts import Calls, count_calls
from expertree import _core
from expertree.comparison.machine import LINKS, Machine
from expertree.comparison.replay import Replayer
from expertree.comparison.settings import PLAIN, chosen_settings, comparison_settings
from expertree.comparison.speculation_trace import RecordedSequence, SpeculationTrace, TraceCosts
from expertree.expert_plan import layer_slots
from expertree.inspect_model import describe
from expertree.placement import buffer_bytes, dense_parts, place

ROOT = Path(__file__).resolve().parents[1]
WARM_STEPS = 64  # of a routing trace: they fill the cache and do not count


@dataclass(frozen=True)
class Assumptions:
    copy_share: float = 0.9
    kernel_share: float = 0.8
    launch_us: float = 2.5
    graph_us: float = 5.0
    node_us: float = 0.9
    copy_us: float = 5.0
    wait_us: float = 10.0
    host_us: float = 20.0
    note_us: float = 5.0
    host_gb_per_s: float = 40.0
    context: float = 2048.0
    row_us: float = 10.0
    expert_row_us: float = 0.5


SOURCES = {
    "copy_share": "of the memory's data rate that a large copy reaches; assumed, tools/gpu_check.sh measures it",
    "kernel_share": "of a copy's rate that kernels reach: the goal that tools/gpu_check.sh measures against",
    "launch_us": "from one kernel's start to the next one's in a stream, when each is short; assumed, 2 to 3 are usual",
    "graph_us": "from a graph's launch to its first kernel's start, beyond what a kernel of a graph takes; assumed",
    "node_us": "from one kernel's start to the next one's in a graph, when each is short: 80 of them in 70 us, as the "
    'documentation of CUDA.jl has it (cuda.juliagpu.org, "Graphs": 260 us without a graph)',
    "copy_us": "what a copy of a few KB takes in its stream or graph; assumed",
    "wait_us": "from the end of work on the device until the host goes on; assumed",
    "host_us": "a layer's share of the CPU: norms, router, grouping rows, summing; assumed",
    "note_us": "the same of a layer that runs as a whole: its keys and values, and what was chosen; assumed",
    "host_gb_per_s": "at which the CPU runs experts from its memory: half of two channels of DDR5-5600 (89.6), or "
    "four fifths of DDR4-3200 (51.2)",
    "context": "tokens whose keys and values a step reads, f32",
    "row_us": "what a row more adds to a step that verifies drafts; as `expertree replay` has it",
    "expert_row_us": "what a row more adds to an expert; as `expertree replay` has it",
}


@dataclass(frozen=True)
class Card:
    """name: one that has this memory. bus_bits and gbit_per_pin: its data sheet's."""

    gib: int
    name: str
    bus_bits: int
    gbit_per_pin: float

    def gb_per_s(self, a: Assumptions) -> float:
        """That kernels reach."""
        return self.bus_bits * self.gbit_per_pin / 8 * a.copy_share * a.kernel_share


CARDS = (
    Card(8, "RTX 4060", 128, 17),
    Card(12, "RTX 4070", 192, 21),
    Card(16, "RTX 4070 Ti SUPER", 256, 21),
    Card(24, "RTX 4090", 384, 21),
)


@dataclass(frozen=True)
class LayerCalls:
    """layer_by_layer: with experts missing. whole: with all of them on the card."""

    layer_by_layer: Calls
    whole: Calls

    def layer_us(self, whole: bool, n_layers: int, a: Assumptions) -> float:
        """A layer's share of a step, beside reading weights."""
        calls = self.whole if whole else self.layer_by_layer
        return (
            calls.step.micros(a) / n_layers
            + calls.layer.micros(a)
            + (a.note_us if self.is_one_call(whole) else a.host_us)
        )

    def is_one_call(self, whole: bool) -> bool:
        return whole and self.whole != self.layer_by_layer


class CardModel:
    """What a model's description says about running it on a card.

    kernel_bytes: what each kernel reads per token when everything is on the card, by kernel and what it is for.
    """

    def __init__(self, path: Path, a: Assumptions) -> None:
        reader = _core.GgufReader(path)
        self.path, self.tensors = path, reader.tensors
        self.about = describe(path, n_ctx=4096)
        if self.about.experts is None:
            raise SystemExit(f"{path}: a dense model; give one with experts")
        self.layers = layer_slots(self.tensors, 1)
        self.n_used = int(np.max(self.about.experts.n_used))
        kv_bytes = int((self.about.need.kv_cache_bytes or 0) / 4096 * a.context)
        self.kernel_bytes = {("attention_scores, attention_values", "keys and values"): kv_bytes}
        for part in dense_parts(self.tensors, self.about.n_layers):
            kernel = ("product_*", part.group)
            self.kernel_bytes[kernel] = self.kernel_bytes.get(kernel, 0) + part.size_bytes
        for matrix in ("gate", "up", "down"):
            kernel = ("expert_down" if matrix == "down" else "expert_hidden", f"experts' {matrix}")
            size = sum(t.size_bytes for t in self.tensors if f"ffn_{matrix}_exps.weight" in t.name)
            self.kernel_bytes[kernel] = size * self.n_used // self.about.experts.n_experts
        experts = sum(layer.file_bytes for layer in self.layers) * self.n_used
        self.other_bytes = sum(self.kernel_bytes.values()) - experts

    def expert_budget(self, card: Card) -> int:
        """Bytes for experts that `expertree inspect` would find on the card."""
        need, experts = self.about.need, self.about.experts
        device = {
            "name": card.name,
            "backend": "cuda",
            "devices": 1,
            "free_bytes": card.gib * 2**30,
            "formats": sorted({tensor.type for tensor in self.tensors}),
        }
        n_ff = next(t.shape[1] for t in self.tensors if "ffn_gate_exps.weight" in t.name)
        buffers = buffer_bytes(self.about.width, n_ff, self.n_used)
        parts = dense_parts(self.tensors, self.about.n_layers)
        placed = place(need, experts, parts, None, device, buffers)
        return sum(part.size_bytes for part in placed if part.place == "GPU" and part.what.startswith("experts"))


def machine_of(model: CardModel, card: Card, calls: LayerCalls, link: float, a: Assumptions) -> Machine:
    """The card as `expertree replay` takes it, for steps of one row."""
    budget = model.expert_budget(card)
    whole = budget >= sum(layer.n_experts * layer.file_bytes for layer in model.layers)
    return Machine(
        card.name,
        "all" if whole else str(budget),
        run=card.gb_per_s(a),
        link=link,
        layer_us=calls.layer_us(whole, len(model.layers), a),
        row_us=0.0,
        expert_row_us=0.0,
    )


def routing_trace(path: Path, model: CardModel) -> SpeculationTrace:
    """A recorded routing as a run without drafts."""
    with np.load(path) as saved:
        if "ids" in saved:
            routed = np.ascontiguousarray(saved["ids"].transpose(1, 0, 2), np.int32)
        else:
            routed = saved["experts"].astype(np.int32).reshape(-1, int(saved["n_layers"]), model.n_used)
    n, nothing = len(routed), np.zeros(0, np.int32)
    n_experts, sizes = model.layers[0].n_experts, [layer.file_bytes for layer in model.layers]
    # A prompt that uses every expert: the cache begins full, as background copies leave it.
    every = np.arange(-(-n_experts // model.n_used) * model.n_used, dtype=np.int32) % n_experts
    prompt = np.repeat(every.reshape(-1, 1, model.n_used), len(sizes), axis=1)
    if n <= WARM_STEPS or routed.shape[1] != len(model.layers):
        raise SystemExit(
            f"{path}: {n} steps of {routed.shape[1]} layers; record more than {WARM_STEPS} with this model"
        )
    run = RecordedSequence(
        "routing",
        path.stem,
        text=np.zeros(n + 1, np.int32),
        prompt=prompt,
        node_begin=np.zeros(n + 1, np.int64),
        tokens=nothing,
        parents=nothing,
        scores=np.zeros(0, np.float32),
        routed=routed,
        predicted=np.full_like(routed, -1),
        draft_seconds=np.zeros(n),
    )
    return SpeculationTrace(
        model.path.name, "", "", 0.0, 0, n_experts, model.n_used, 1, sizes, model.other_bytes, TraceCosts(), [run]
    )


def routing_rows(trace: SpeculationTrace, model: CardModel, calls: LayerCalls, a: Assumptions) -> list[str]:
    replayer, rows = Replayer(trace), []
    for card in CARDS:
        cells = []
        for link in (a.host_gb_per_s, *LINKS.values()):
            machine = machine_of(model, card, calls, link, a)
            steps = {name: column[WARM_STEPS:] for name, column in replayer.steps(PLAIN, machine).items()}
            cells.append(f"{len(steps['tokens']) / steps['verify_seconds'].sum():.1f}")
        hits = 1 - steps["fetched"].sum() / steps["experts"].sum()
        share = model.expert_budget(card) / trace.all_expert_bytes
        megabytes = steps["bytes_fetched"].mean() * 1e-6
        rows.append(
            f"| {card.gib} GB ({card.name}) | {min(share, 1.0):.0%} | {hits:.0%} | {megabytes:.0f} | "
            + " | ".join(cells)
            + " |"
        )
    return rows


def speculation_rows(trace: SpeculationTrace, model: CardModel, calls: LayerCalls, a: Assumptions) -> list[str]:
    trace, rows = replace(trace, other_bytes=model.other_bytes), []
    replayer = Replayer(trace)
    settings = chosen_settings(["residency"], comparison_settings(trace.n_experts, trace.n_used, "small"))
    for card in CARDS:
        machine = machine_of(model, card, calls, LINKS["pcie4"], a)
        machine = replace(machine, row_us=a.row_us, expert_row_us=a.expert_row_us)
        plain, as_recorded = replayer.summaries(settings, machine)[:2]
        at_once = replayer.summaries(settings, machine, draft_seconds=0.0)[1]
        rows.append(
            f"| {card.gib} GB ({card.name}) | {machine.budget} | {plain.tokens_per_second:.0f} | "
            f"{as_recorded.tokens_per_second:.0f} | {at_once.tokens_per_second:.0f} | {at_once.accepted:.2f} |"
        )
    return rows


HEAD = """# Predicted tokens/s on consumer cards

**Predictions, not measurements**: none of these cards has run this. Written by `tools/predict_cards.py` from recorded
routing, the bytes that kernels read, and the calls of the CUDA runtime that the emulated device counts, through the
cost model and the cache policy of `expertree replay`. Decoding one token after another, all experts in RAM, on the
card what `--vram auto` puts there.

```
python tools/predict_cards.py {arguments}
```

Traces: `python tools/pager_sim.py record MODEL.gguf TRACE.npz --tokens 160`, or ids of `Model.routing` (here of 160
random tokens; the first {warm} only warm the cache); `expertree bench --speculate --out FOLDER` leaves `trace-t0.npz`.

*Misses run by the CPU*: experts that are not on the card run where they are, at `host_gb_per_s`, beside the card's own;
so the engine does it with one row per expert ([vram.md](../vram.md)). *Copied*: they come over the link and run on the
card, straight from pinned memory, which the engine does not do yet. Writes and activations are left out: under 1 % of
what is read. A step takes the time of its calls, of reading what every token needs, and layer by layer the longer of
running experts and bringing those that are missing.

## Assumptions

`--set NAME=NUMBER` replaces one.

| name | value | what, and why |
| --- | ---: | --- |"""


def head(arguments: list[str], a: Assumptions) -> list[str]:
    lines = [HEAD.format(arguments=" ".join(arguments), warm=WARM_STEPS)]
    lines += [f"| {field.name} | {getattr(a, field.name):g} | {SOURCES[field.name]} |" for field in fields(a)]
    lines += ["", "| card | memory's data rate | kernels reach |", "| --- | ---: | ---: |"]
    for card in CARDS:
        rate = card.bus_bits * card.gbit_per_pin / 8
        lines.append(f"| {card.gib} GB ({card.name}) | {rate:.0f} GB/s | {card.gb_per_s(a):.0f} GB/s |")
    links = ", ".join(f"{name} {speed:g}" for name, speed in LINKS.items())
    return [*lines, "", f"Links, GB/s of a copy of some MB, sixteen lanes: {links}. Cards with eight lanes get half."]


def model_lines(model: CardModel, calls: LayerCalls, a: Assumptions) -> list[str]:
    lines = ["", f"## {model.path.name}", "", "| kernel | reads | MB per token |", "| --- | --- | ---: |"]
    for (kernel, what), size in model.kernel_bytes.items():
        lines.append(f"| {kernel} | {what} | {size * 1e-6:.1f} |")
    n = len(model.layers)
    for whole, when in ((False, "With experts missing"), (True, "With all on the card")):
        layer = (calls.whole if whole else calls.layer_by_layer).layer
        total = n * calls.layer_us(whole, n, a)
        lines += [
            "",
            f"{when} a layer is {layer.graphs:g} graphs of {layer.nodes:g} kernels in all, {layer.launches:g} launches "
            f"beside them, {layer.copies:g} copies and {layer.waits:g} waits; {n} layers and the head take "
            f"{total * 1e-3:.2f} ms per token beside reading weights.",
        ]
    return lines


ROUTING_HEAD = [
    "",
    "| card | experts on it | hits | MB missed per token | misses run by the CPU | "
    + " | ".join(f"copied, {name}" for name in LINKS)
    + " |",
    "| --- | ---: | ---: | ---: | ---: |" + " ---: |" * len(LINKS),
]
SPECULATION_HEAD = [
    "",
    "| card | experts on it | plain | `residency`, drafting as recorded | `residency`, drafts for nothing | accepted |",
    "| --- | ---: | ---: | ---: | ---: | ---: |",
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routing", action="append", default=[], metavar="MODEL:TRACE")
    parser.add_argument("--speculation", action="append", default=[], metavar="MODEL:TRACE")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/gpu/predictions.md")
    options = parser.parse_args()
    names = {field.name for field in fields(Assumptions)}
    given = dict(text.split("=", 1) for text in options.set if text.partition("=")[0] in names)
    if len(given) != len(options.set):
        parser.error(f"--set takes {', '.join(sorted(names))}")
    a = Assumptions(**{name: float(value) for name, value in given.items()})
    # Without folders: where files lie is nobody's business.
    shown = [":".join(Path(part).name for part in text.split(":")) if ":" in text else text for text in sys.argv[1:]]
    if "--output" in shown:
        del shown[shown.index("--output") : shown.index("--output") + 2]
    lines = head(shown, a)
    for text in [*options.routing, *options.speculation]:
        path, _, trace_path = text.partition(":")
        model = CardModel(Path(path), a)
        calls = LayerCalls(*(count_calls(model.about.architecture or "", whole) for whole in (False, True)))
        lines += model_lines(model, calls, a)
        if text in options.routing:
            lines += ROUTING_HEAD + routing_rows(routing_trace(Path(trace_path), model), model, calls, a)
        else:
            lines += SPECULATION_HEAD + speculation_rows(SpeculationTrace.load(Path(trace_path)), model, calls, a)
    options.output.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
