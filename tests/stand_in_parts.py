"""Random parts in the form of models/default/experts.gguf, for any dense llama base: for tests of the building."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from expertree._core import GgufReader, _testing

Q8_0 = gguf.GGMLQuantizationType.Q8_0
N_EXPERTS, N_USED, RANK = 4, 2, 3


def part_tensors(base: Path, n_experts: int, rank: int, seed: int = 0) -> dict[str, np.ndarray]:
    """float32, numpy's shapes."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    reader = GgufReader(base)
    n_embd = reader.value("llama.embedding_length")
    for tensor in reader.tensors:
        layer, _, rest = tensor.name.removeprefix("blk.").partition(".")
        if rest not in ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"):
            continue
        name, (n_in, n_out) = tensor.name.removesuffix(".weight") + "_exps", tensor.shape
        tensors[name + ".lora_a"] = 0.1 * rng.standard_normal((n_experts, rank, n_in), np.float32)
        tensors[name + ".lora_b"] = 0.1 * rng.standard_normal((n_experts, rank, n_out), np.float32)
        router = f"blk.{layer}.ffn_gate_inp.weight"
        if router not in tensors:
            tensors[router] = rng.standard_normal((n_experts, n_embd), np.float32)
    return tensors


def write_parts(
    base: Path, path: Path, *, n_experts: int = N_EXPERTS, rank: int = RANK, seed: int = 0, **changes: Any
) -> Path:
    """Writes the file and returns its path. changes: "keys" and "tensors" that replace or add; None leaves one out."""
    keys: dict[str, Any] = {
        "general.name": "stand-in experts",
        "general.license": "apache-2.0",
        "expertree.base.sha256": hashlib.sha256(base.read_bytes()).hexdigest(),
        "expertree.expert_count": n_experts,
        "expertree.expert_used_count": N_USED,
        "expertree.lora_rank": rank,
        **changes.get("keys", {}),
    }
    writer = gguf.GGUFWriter(path, keys.pop("general.architecture", "expertree-experts"))
    for key, value in keys.items():
        if value is not None:
            (writer.add_uint32 if isinstance(value, int) else writer.add_string)(key, value)
    for name, values in {**part_tensors(base, n_experts, rank, seed), **changes.get("tensors", {})}.items():
        if values is None:
            continue
        if name.endswith(".weight"):
            writer.add_tensor(name, values)
        else:
            rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
            encoded = np.asarray(_testing.quantize("Q8_0", rows))
            writer.add_tensor(name, encoded.reshape(*values.shape[:-1], -1), raw_dtype=Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
