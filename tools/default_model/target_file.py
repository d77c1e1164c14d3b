"""What training a head needs of a GGUF target beside its hidden states: embeddings, its output matrix, sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import expertree
import gguf
import numpy as np
import numpy.typing as npt
import torch
from draft_heads import HeadSizes
from torch import Tensor


class TargetFile:
    """Rows of a model's matrices, dequantised as they are asked for. All parts of a split file are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors = {t.name: t for part in _parts(path) for t in gguf.GGUFReader(part).tensors}
        self._output = "output.weight" if "output.weight" in self._tensors else "token_embd.weight"
        self.n_vocab = len(self._tensors["token_embd.weight"].data)

    def _rows(self, name: str, ids: npt.NDArray[Any] | slice) -> Tensor:
        tensor = self._tensors[name]
        try:
            values = gguf.quants.dequantize(tensor.data[ids], tensor.tensor_type)
        except NotImplementedError as error:
            kind = tensor.tensor_type.name
            raise SystemExit(
                f"{self.path}: the gguf package cannot decode {name}, {kind}; take another quant"
            ) from error
        return torch.from_numpy(np.array(values, dtype=np.float32))

    def embeddings(self, ids: npt.NDArray[Any]) -> Tensor:
        """[ids, width]"""
        return self._rows("token_embd.weight", ids)

    def output_rows(self, ids: npt.NDArray[Any]) -> Tensor:
        """[ids, width]: logits are these times the normalised output of the last layer."""
        return self._rows(self._output, ids)

    def output_norm(self) -> Tensor:
        return self._rows("output_norm.weight", slice(None))


def _parts(path: Path) -> list[Path]:
    split = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name)
    if split is None:
        return [path]
    stem, n = split.groups()
    return [path.with_name(f"{stem}-{i:05d}-of-{n}.gguf") for i in range(1, int(n) + 1)]


def head_sizes(model: expertree.Model, n_ff: int | None, positions: int) -> HeadSizes:
    """The target's own sizes: a head is one layer like its. positions: of the longest text."""
    metadata: Mapping[str, Any] = model.metadata

    def largest(key: str, otherwise: Any) -> Any:  # some models have one value per layer
        value = metadata.get(f"{model.arch}.{key}", otherwise)
        return max(value) if isinstance(value, (list, tuple, np.ndarray)) else value

    width, n_heads = int(largest("embedding_length", 0)), int(largest("attention.head_count", 1))
    n = model.n_layers
    return HeadSizes(
        width=width,
        n_heads=n_heads,
        n_kv_heads=int(largest("attention.head_count_kv", n_heads)),
        head_dim=int(largest("attention.key_length", width // n_heads)),
        n_ff=n_ff or int(largest("feed_forward_length", 0)) or 3 * width,
        taps=tuple(min(max(layer, 0), n - 1) for layer in (2, n // 2, n - 3)),
        epsilon=float(largest("attention.layer_norm_rms_epsilon", 1e-5)),
        rope_base=float(largest("rope.freq_base", 10000.0)),
        positions=positions,
    )
