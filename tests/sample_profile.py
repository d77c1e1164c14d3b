"""Makes a profile like those of a model larger than its budget, without running one.

python tests/sample_profile.py OUT.npz
"""

import sys

import numpy as np
from expertree.profile import KINDS, PURPOSES, ZONES, Profile, Steps
from expertree.profile.tables import read_lanes

Z = {name: i for i, name in enumerate(ZONES)}
MB = 1_000_000
STEP_COLUMNS = Steps.columns()


class Recorder:
    """A little machine: a clock, a cache of experts with LRU, a disk."""

    def __init__(self, rng, n_layers, n_experts, n_used, n_slots, depth):
        self.rng, self.n_layers, self.n_experts, self.n_used = rng, n_layers, n_experts, n_used
        self.moe = list(range(1, n_layers))  # the first layer is dense
        self.n_slots, self.depth = n_slots, depth
        self.expert_bytes, self.disk = MB, 1500 * MB
        self.clock = self.disk_free = 0.0
        self.cache = {}  # (layer, expert): when it arrived, oldest use first
        self.popular = rng.permuted(np.tile(1.0 / np.arange(1, n_experts + 1), (len(self.moe), 1)), axis=1)
        shape = (len(self.moe), n_experts)
        self.sums = {name: np.zeros(shape, np.int64) for name in ("uses", "rows", "hits", "late", "misses")}
        self.resident = np.zeros(shape)
        self.initial = np.zeros(shape, bool)
        self.layer_seconds = np.zeros((n_layers, len(KINDS), len(ZONES)))
        self.steps, self.nodes, self.routing, self.events, self.reads = [], [], [], [], []
        self.last = None

    def choose(self):
        """Experts of one row; neighbours in a text share some."""
        ids = np.empty((len(self.moe), self.n_used), np.int16)
        for m, weights in enumerate(self.popular):
            kept = [] if self.last is None else [e for e in self.last[m] if self.rng.random() < 0.4]
            p = weights / weights.sum()
            more = [e for e in self.rng.choice(self.n_experts, self.n_used * 2, False, p) if e not in kept]
            ids[m] = [*kept, *more][: self.n_used]
        self.last = ids
        return ids

    def spend(self, step, zone, seconds, layer=-1):
        seconds *= self.rng.uniform(0.9, 1.1)
        self.events.append((step["index"], Z[zone], 0, layer, self.clock, self.clock + seconds))
        step["zone_seconds"][Z[zone]] += seconds
        if layer >= 0:
            self.layer_seconds[layer, step["kind"], Z[zone]] += seconds
        self.clock += seconds

    def read(self, step, m, expert, reason):
        begin = max(self.clock, self.disk_free)
        self.disk_free = begin + self.expert_bytes / self.disk
        self.reads.append((m, expert, reason, False, self.expert_bytes, begin, self.disk_free))
        step["bytes_experts"] += self.expert_bytes
        step["bytes_disk"] += self.expert_bytes + 12288
        step["bytes_overread"] += 12288
        self.cache[m, expert] = self.disk_free
        while len(self.cache) > self.n_slots:
            del self.cache[next(iter(self.cache))]

    def run_pass(self, step, ids):
        """ids: (rows, moe layers, used)."""
        n = len(ids)
        self.spend(step, "other", 4e-5 * n)
        for layer in range(self.n_layers):
            self.spend(step, "attention", 2.5e-4 + 2e-5 * n, layer)
            if layer not in self.moe:
                self.spend(step, "dense", 3e-4 + 1e-5 * n, layer)
                continue
            m = self.moe.index(layer)
            self.spend(step, "router", 3e-5 + 2e-6 * n, layer)
            needed = np.unique(ids[:, m])
            ready = self.clock
            for e in needed.tolist():
                self.sums["uses"][m, e] += 1
                self.sums["rows"][m, e] += int((ids[:, m] == e).sum())
                there = self.cache.pop((m, e), None)
                name = "misses" if there is None else "hits" if there <= self.clock else "late"
                self.sums[name][m, e] += 1
                step[{"misses": "experts_missed", "hits": "experts_hit", "late": "experts_late"}[name]] += 1
                if there is None:
                    self.read(step, m, e, 0)
                else:
                    self.cache[m, e] = there
                ready = max(ready, self.cache[m, e])
            step["experts_touched"] += len(needed)
            self.spend(step, "predict", 2e-5, layer)
            if m + 1 < len(self.moe) and n < 16 and self.rng.random() < 0.8:
                guess = int(ids[0, m + 1, 0] if self.rng.random() < 0.7 else self.rng.integers(self.n_experts))
                if (m + 1, guess) not in self.cache:
                    self.read(step, m + 1, guess, 1)
                    step["prefetched"] += 1
                    step[self.rng.choice(["prefetch_used", "prefetch_late", "prefetch_wasted"], p=[0.5, 0.3, 0.2])] += 1
            if ready > self.clock:
                self.spend(step, "wait", ready - self.clock, layer)
            self.spend(step, "experts", 9e-5 * len(needed) + 6e-6 * n * self.n_used, layer)
        self.spend(step, "head", 6e-4 + 1e-4 * n)

    def step(self, kind, session, position, n_rows=1, tree=None, python=2e-4):
        self.clock += python
        step = {name: 0 for name in STEP_COLUMNS}
        step.update(
            index=len(self.steps),
            kind=KINDS.index(kind),
            session=session,
            start=self.clock,
            position=position,
            last_token=int(self.rng.integers(1000)),
            zone_seconds=np.zeros(len(ZONES)),
            memory_bytes=np.array([160, self.n_slots, 40, 60])[: len(PURPOSES)] * MB,
            **{f"{name}_by_depth": np.zeros(self.depth, np.int32) for name in ("drafted", "verified", "accepted")},
        )
        step["zone_seconds"][Z["python"]] = python
        selected, accepted = [], []
        if tree is not None:
            parents, depths, scores = tree
            self.spend(step, "draft", 1.2e-3)
            self.spend(step, "predict", 1e-4)
            self.spend(step, "select", 3e-4)
            selected = [i for i in range(len(parents)) if scores[i] > 0.25 or depths[i] == 1]
            path = -1
            for i in selected:
                if parents[i] == path and self.rng.random() < min(0.95, scores[i] * 1.1):
                    accepted.append(i)
                    path = i
            n_rows = 1 + len(selected)
            step.update(drafted=len(parents), verified=len(selected), accepted=len(accepted))
            for i in range(len(parents)):
                token = int(self.rng.integers(1000))
                self.nodes.append(
                    (step["index"], token, parents[i], depths[i], scores[i], i in selected, i in accepted)
                )
                for name, there in (("drafted", True), ("verified", i in selected), ("accepted", i in accepted)):
                    step[f"{name}_by_depth"][depths[i] - 1] += there
        began = self.clock
        ids = np.stack([self.choose() for _ in range(n_rows)])
        for row in range(n_rows):
            guess = (
                np.where(self.rng.random(ids[row].shape) < 0.6, ids[row], -1) if tree is not None else ids[row] * 0 - 1
            )
            node = -1 if row == 0 or tree is None else selected[row - 1]
            self.routing.append((step["index"], int(self.rng.integers(1000)), node, ids[row], guess))
        self.run_pass(step, ids)
        self.spend(step, "sample", 1e-4)
        self.spend(step, "commit", 5e-5)
        step["measured"] = self.clock - began
        step["predicted"] = step["measured"] * self.rng.lognormal(0.0, 0.12) if tree is not None else 0.0
        step["rows"] = n_rows
        step["tokens"] = n_rows if kind == "prefill" else len(accepted) + 1
        step["bytes_memory"] = 160 * MB + step["experts_touched"] * self.expert_bytes
        step["wall"] = self.clock - step["start"]
        for m, e in self.cache:
            self.resident[m, e] += 1
        self.steps.append(step)
        return step["tokens"]


def random_tree(rng, depth, width=3):
    """Parents, depths and scores of a tree whose best path is as deep as `depth`."""
    parents, depths, scores = [], [], []
    for d in range(1, depth + 1):
        above = [-1] if d == 1 else [i for i, at in enumerate(depths) if at == d - 1][:2]
        for parent in above:
            for child in range(width):
                parents.append(parent)
                depths.append(d)
                scores.append(
                    (1.0 if parent < 0 else scores[parent]) * (0.75, 0.15, 0.06)[child % 3] * rng.uniform(0.7, 1)
                )
    return parents, depths, scores


def sample_profile(seed=1, *, n_layers=13, n_experts=32, n_used=4, share=0.4, n_steps=40, depth=4, drafting=True):
    """A profile of two sessions, the second one with a drafter (drafting=False: plain as well)."""
    rng = np.random.default_rng(seed)
    n_slots = max(n_used, int(share * (n_layers - 1) * n_experts))
    r = Recorder(rng, n_layers, n_experts, n_used, n_slots, depth if drafting else 0)
    for session in range(2):
        position = r.step("prefill", session, 0, 24)
        for _ in range(n_steps):
            drafts = drafting and session == 1
            kind = "speculate" if drafts else "decode"
            position += r.step(kind, session, position, tree=random_tree(rng, depth) if drafts else None)
    r.reads.sort(key=lambda read: read[-1])
    columns = {name: np.array([s[name] for s in r.steps]) for name in STEP_COLUMNS}
    tables = {
        "steps": columns,
        "layers": {"zone_seconds": r.layer_seconds},
        "experts": {**r.sums, "initial": r.initial, "resident": (r.resident / len(r.steps)).astype(np.float32)},
        "nodes": _columns(r.nodes, ("step", "token", "parent", "depth", "score", "verified", "accepted"), "iiiif??"),
        "routing": {
            **_columns([row[:3] for row in r.routing], ("step", "token", "node"), "iii"),
            "experts": np.stack([row[3] for row in r.routing]).astype(np.int16),
            "predicted": np.stack([row[4] for row in r.routing]).astype(np.int16),
        },
        "events": _columns(r.events, ("step", "zone", "thread", "layer", "begin", "end"), "iBhhdd"),
        "reads": _columns(r.reads, ("layer", "expert", "reason", "failed", "bytes", "begin", "end"), "hhB?qdd"),
    }
    tables["reads"]["lane"] = read_lanes(tables["reads"]["begin"], tables["reads"]["end"])
    return Profile.of(_facts(r, drafting), tables)


def _columns(rows, names, dtypes):
    return {name: np.array([row[i] for row in rows], dtypes[i]) for i, name in enumerate(names)}


def _facts(r, drafting):
    n_moe = len(r.moe)
    session = {"category": "chat", "draft": None, "select": None, "predict": None, "n_ctx": 512}
    drafted = {**session, "draft": "ngram", "select": "residency", "predict": "last"} if drafting else session
    return {
        "model": {
            "path": "sample.gguf",
            "name": "sample",
            "arch": "qwen3moe",
            "n_layers": r.n_layers,
            "n_moe_layers": n_moe,
            "n_experts": r.n_experts,
            "n_experts_used": r.n_used,
            "n_vocab": 1000,
            "moe_layers": r.moe,
            "expert_bytes": [r.expert_bytes] * n_moe,
            "slot_bytes": [r.expert_bytes + 24576] * n_moe,
            "other_bytes": 160 * MB,
            "n_multiply_adds": 400_000_000,
        },
        "machine": {
            "isa": "avx512",
            "threads": 2,
            "cores": 2,
            "read_gb_per_s": 18.0,
            "int8_gops": 260.0,
            "disk_gb_per_s": r.disk / 1e9,
        },
        "options": {"ram": f"{r.n_slots}MB", "policy": "auto"},
        "budget": {
            "bytes": r.n_slots * (r.expert_bytes + 24576),
            "all_bytes": n_moe * r.n_experts * (r.expert_bytes + 24576),
            "slots": [r.n_slots],
            "class_of_layer": [0] * n_moe,
            "policy": "lru",
        },
        "costs": {
            "read_bytes_per_second": float(r.disk),
            "run_base_seconds": 9e-5,
            "run_row_seconds": 6e-6,
            "step_seconds": 9e-3,
        },
        "sessions": [{"label": "chat-1", **session}, {"label": "chat-2", **drafted}],
        "totals": {
            "wall_seconds": r.clock,
            "events_dropped": 0,
            "process_read_bytes": int(sum(s["bytes_disk"] for s in r.steps)),
        },
    }


if __name__ == "__main__":
    sample_profile().save(sys.argv[1])
