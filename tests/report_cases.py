"""Profiles whose reports must be readable: usual ones and awkward ones."""

import dataclasses

import numpy as np
from expertree.profile import KINDS, Profile
from sample_profile import sample_profile

HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x00\x1b[31m\ud800 " + "W" * 300


def _cut(profile, keep):
    """Of the steps only some. Sums over steps stay those of the whole run."""
    number = np.cumsum(keep) - 1
    made = {}
    for name, table in profile.tables().items():
        columns = table.arrays()
        if name == "steps":
            columns = {column: values[keep] for column, values in columns.items()}
        elif "step" in columns:
            there = keep[columns["step"]]
            columns = {column: values[there] for column, values in columns.items()}
            columns["step"] = number[columns["step"]].astype(np.int32)
        made[name] = columns
    return Profile.of(profile.facts, made)


def _dense():
    profile = sample_profile(drafting=True, n_steps=12)
    facts = {**profile.facts, "costs": {}}
    facts["model"] = {**facts["model"], "n_moe_layers": 0, "n_experts": 0, "n_experts_used": 0, "moe_layers": []}
    facts["model"] |= {"expert_bytes": [], "slot_bytes": []}
    facts["budget"] = {"bytes": 0, "all_bytes": 0, "slots": [], "class_of_layer": [], "policy": ""}
    tables = {name: dict(table.arrays()) for name, table in profile.tables().items()}
    for column, values in tables["experts"].items():
        tables["experts"][column] = values[:0, :0]
    for column in ("experts", "predicted"):
        tables["routing"][column] = tables["routing"][column][:, :0, :0]
    tables["reads"] = {column: values[:0] for column, values in tables["reads"].items()}
    for column, values in tables["steps"].items():
        if column.startswith(("experts_", "prefetch")) or column in ("bytes_experts", "bytes_disk", "bytes_overread"):
            tables["steps"][column] = values * 0
    return Profile.of(facts, tables)


def _hostile():
    profile = sample_profile(n_steps=4)
    facts = {**profile.facts, "options": {"ram": HOSTILE, HOSTILE: [HOSTILE]}}
    facts["model"] = {**facts["model"], "name": HOSTILE, "arch": HOSTILE, "path": HOSTILE}
    facts["budget"] = {**facts["budget"]}
    facts["sessions"] = [{**session, "label": HOSTILE, "category": HOSTILE} for session in facts["sessions"]]
    change = {"change": HOSTILE, "option": HOSTILE, "why": HOSTILE, "gain": 1.5, "tokens_per_second": 12.0}
    limit = {"name": "disk", "share": 0.5, "text": HOSTILE}
    facts["advice"] = {"limit": limit, "changes": [change], "budgets": [b.to_json() for b in profile.budget_curve()]}
    return dataclasses.replace(profile, facts=facts)


def _slow():
    """Times, sizes and counts with many digits."""
    profile = sample_profile(n_steps=6)
    steps = dict(profile.steps.arrays())
    for column in ("wall", "start", "zone_seconds", "measured", "predicted"):
        steps[column] = steps[column] * 4321.0
    steps["memory_bytes"] = steps["memory_bytes"] * 123_456
    tables = {**{name: dict(table.arrays()) for name, table in profile.tables().items()}, "steps": steps}
    for name in ("events", "reads"):
        for column in ("begin", "end"):
            tables[name][column] = tables[name][column] * 4321.0
    return Profile.of(profile.facts, tables)


def _prompts_only():
    profile = sample_profile(n_steps=3)
    return _cut(profile, profile.steps.kind == KINDS.index("prefill"))


def _one_step():
    profile = sample_profile(n_steps=3)
    keep = np.zeros(len(profile.steps), bool)
    keep[[0, 1]] = True
    return _cut(profile, keep)


def _nothing():
    profile = sample_profile(n_steps=1)
    return _cut(profile, np.zeros(len(profile.steps), bool))


CASES = {
    "drafting": lambda: sample_profile(),
    "plain": lambda: sample_profile(drafting=False),
    "all in memory": lambda: sample_profile(share=1.0, n_steps=8),
    "large": lambda: sample_profile(n_layers=49, n_experts=128, n_used=8, n_steps=6, depth=6),
    "few experts": lambda: sample_profile(n_layers=3, n_experts=4, n_used=2, n_steps=90),
    "dense": _dense,
    "hostile": _hostile,
    "slow": _slow,
    "prompts only": _prompts_only,
    "one step": _one_step,
    "nothing": _nothing,
}
