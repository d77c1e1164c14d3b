"""The recorded models of tests/conformance in other weight formats and contexts: every architecture there is, without
code of its own. A new NAME.gguf with its NAME.npz is in every suite that takes its cases from here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from expertree._core import _testing
from tiny_model import ARCHITECTURES as WRITTEN
from tiny_model import finish

FOLDER = Path(__file__).parent / "conformance"


def _recorded(name: str) -> np.lib.npyio.NpzFile:
    return np.load(FOLDER / f"{name}.npz")


NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.npz") if not path.stem.startswith("quant-")))
# Those that tiny_model.py does not write.
ARCHITECTURES = tuple(name for name in NAMES if name not in WRITTEN)
MOE_ARCHITECTURES = tuple(name for name in ARCHITECTURES if "moe_layers" in _recorded(name).files)


@dataclass
class RecordedModel:
    """arch: a name in ARCHITECTURES. Rows of `format` need a multiple of its block; other matrices stay as they are."""

    arch: str
    format: str = "F32"
    n_ctx: int | None = None
    keys: dict[str, int] = field(default_factory=dict)  # further ones
    names: dict[str, str | None] = field(default_factory=dict)  # of tensors under another name; None: left out

    def write(self, path: Path) -> Path:
        """Writes the file and returns its path."""
        reader = gguf.GGUFReader(FOLDER / f"{self.arch}.gguf")
        architecture = str(reader.fields["general.architecture"].contents())
        writer = gguf.GGUFWriter(path, architecture)
        for entry in reader.fields.values():
            if entry.name.startswith("GGUF.") or entry.name == "general.architecture":
                continue
            value, kind = entry.contents(), entry.types[0]
            if self.n_ctx is not None and entry.name == f"{architecture}.context_length":
                value = self.n_ctx
            if kind == gguf.GGUFValueType.ARRAY:
                writer.add_array(entry.name, list(value))
            else:
                writer.add_key_value(entry.name, value, kind)
        for key, number in self.keys.items():
            writer.add_uint32(key, number)
        for tensor in reader.tensors:
            self._add(writer, tensor)
        finish(writer)
        return path

    def _add(self, writer: gguf.GGUFWriter, tensor: gguf.ReaderTensor) -> None:
        values = np.array(tensor.data)
        name = self.names.get(tensor.name, tensor.name)
        if name is None:
            return
        is_matrix = values.ndim > 1 and tensor.name.endswith(".weight") and "ffn_gate_inp" not in tensor.name
        is_float = tensor.tensor_type == gguf.GGMLQuantizationType.F32
        if self.format == "F32" or not (is_matrix and is_float) or values.shape[-1] % 32:
            writer.add_tensor(name, values, raw_dtype=tensor.tensor_type)
            return
        rows = np.asarray(_testing.quantize(self.format, values.reshape(-1, values.shape[-1])))
        raw_dtype = gguf.GGMLQuantizationType[self.format]
        writer.add_tensor(name, rows.reshape(*values.shape[:-1], -1), raw_dtype=raw_dtype)
