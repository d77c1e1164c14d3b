"""The recorded models of tests/conformance in other weight formats and contexts: every architecture there is, without
code of its own. A new NAME.gguf with its NAME.npz is in every suite that takes its cases from here."""

from __future__ import annotations

from dataclasses import dataclass
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

    def write(self, path: Path) -> Path:
        """Writes the file and returns its path."""
        reader = gguf.GGUFReader(FOLDER / f"{self.arch}.gguf")
        architecture = str(reader.fields["general.architecture"].contents())
        writer = gguf.GGUFWriter(path, architecture)
        for field in reader.fields.values():
            if field.name.startswith("GGUF.") or field.name == "general.architecture":
                continue
            value, kind = field.contents(), field.types[0]
            if self.n_ctx is not None and field.name == f"{architecture}.context_length":
                value = self.n_ctx
            if kind == gguf.GGUFValueType.ARRAY:
                writer.add_array(field.name, list(value))
            else:
                writer.add_key_value(field.name, value, kind)
        for tensor in reader.tensors:
            self._add(writer, tensor)
        finish(writer)
        return path

    def _add(self, writer: gguf.GGUFWriter, tensor: gguf.ReaderTensor) -> None:
        values = np.array(tensor.data)
        is_matrix = values.ndim > 1 and tensor.name.endswith(".weight") and "ffn_gate_inp" not in tensor.name
        is_float = tensor.tensor_type == gguf.GGMLQuantizationType.F32
        if self.format == "F32" or not (is_matrix and is_float) or values.shape[-1] % 32:
            writer.add_tensor(tensor.name, values, raw_dtype=tensor.tensor_type)
            return
        rows = np.asarray(_testing.quantize(self.format, values.reshape(-1, values.shape[-1])))
        raw_dtype = gguf.GGMLQuantizationType[self.format]
        writer.add_tensor(tensor.name, rows.reshape(*values.shape[:-1], -1), raw_dtype=raw_dtype)
