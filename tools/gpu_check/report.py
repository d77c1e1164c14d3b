"""The Markdown of a GPU check, from its JSON."""

from __future__ import annotations

from typing import Any

GIB = float(1 << 30)


def markdown(found: dict[str, Any]) -> str:
    lines = ["# GPU check", "", f"Device library: {found['device']}. Written by `tools/gpu_check.sh`.", ""]
    if found["device"] == "emulated":
        lines += ["Emulated on a CPU with tiny sizes: the figures say that the script runs, and nothing else.", ""]
    lines += ["| step | result | seconds |", "| --- | --- | ---: |"]
    lines += [f"| {s['step']} | {s['status']} | {s['seconds']:.0f} |" for s in found["steps"]]
    data = {step["step"]: step.get("data") for step in found["steps"]}
    if data.get("kernel times"):
        lines += _kernels(data["kernel times"])
    if data.get("models"):
        lines += ["", "## Models: on the device against the CPU", "", "| model | result |", "| --- | --- |"]
        lines += [f"| {result['model']} | {result['status']} |" for result in data["models"]]
    if data.get("decode"):
        lines += _decode(data["decode"])
    if data.get("selectors"):
        lines += ["", "## Selectors, half of the experts on the device", ""]
        lines += ["| selector | tokens/s | steps | same text |", "| --- | ---: | ---: | --- |"]
        for r in data["selectors"]:
            lines.append(f"| {r['selector']} | {r['tokens_per_s']:.1f} | {r['steps']} | {r['same_text']} |")
    failed = [step for step in found["steps"] if step.get("said") and not step["status"].startswith("passed")]
    for step in failed:
        lines += ["", f"## What {step['step']} said", "", "```", step["said"], "```"]
    return "\n".join(lines) + "\n"


def _kernels(times: dict[str, Any]) -> list[str]:
    device, copies = times["device"], times["copies"]
    lines = ["", "## Device", "", f"{device['name']}, compute capability {device['compute_capability'] / 10:.1f}, "
             f"{device['multiprocessors']} multiprocessors, {device['memory_bytes'] / GIB:.1f} GiB."]  # fmt: skip
    speeds = ", ".join(f"{name.replace('_', ' ')} {speed / 1e9:.1f} GB/s" for name, speed in copies.items())
    lines += ["", f"Copies: {speeds} (on the device: read and written bytes)."]
    rows = sorted({result["rows"] for result in times["kernels"]})
    lines += ["", "## Expert kernels: share of the device's copy speed, by rows per expert", ""]
    lines += ["| kernel | format |" + "".join(f" {n} |" for n in rows), "| --- | --- |" + " ---: |" * len(rows)]
    table: dict[tuple[str, str], dict[int, float]] = {}
    for result in times["kernels"]:
        table.setdefault((result["kernel"], result["format"]), {})[result["rows"]] = result["of_copy"]
    for (kernel, form), by_rows in table.items():
        lines.append(f"| {kernel} | {form} |" + "".join(f" {100 * by_rows[n]:.0f}% |" for n in rows))
    return lines


def _decode(decode: dict[str, Any]) -> list[str]:
    lines = ["", f"## {decode['model']}: experts on the device", ""]
    lines += ["| share of experts | test | rows | tokens/s | C(n)/C(1) |", "| ---: | --- | ---: | ---: | ---: |"]
    for share in decode["shares"]:
        name = "CPU alone" if share["share"] == 0 else f"{100 * share['share']:.0f}%"
        if share["fault"]:
            lines.append(f"| {name} | {share['fault'].strip('─╰╯│ ').splitlines()[-1]} | | | |")
        first: dict[str, float] = {}
        for result in share["results"]:
            first.setdefault(result["test"], result["seconds"])
            cost = result["seconds"] / first[result["test"]]
            figures = f"{result['tokens_per_second']:.1f} | {cost:.2f}"
            lines.append(f"| {name} | {result['test']} | {result['n']} | {figures} |")
    return lines
