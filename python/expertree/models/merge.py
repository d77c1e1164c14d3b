"""A dense model and the trained parts of a mixture of experts, merged into one GGUF file.

Each feed-forward matrix W of the base becomes E experts W + b[0] a[0]^T + b[1] a[1]^T + ... (Hu et al. 2021, "LoRA";
started from the dense matrix as in Komatsuzaki et al. 2022, "Sparse Upcycling"), in Q8_0, beside a router per layer:
Mixtral's form. Everything else is the base's, byte by byte. The same inputs give the same bytes on every machine.

The parts are one GGUF of architecture "expertree-experts", for E experts of rank r (numpy's order of dimensions):

    expertree.base.sha256, expertree.expert_count, expertree.expert_used_count, expertree.lora_rank
    blk.N.ffn_gate_inp.weight             F32  [E, width]
    blk.N.ffn_{gate,up,down}_exps.lora_a  Q8_0 [E, r, elements of a row of W]
    blk.N.ffn_{gate,up,down}_exps.lora_b  Q8_0 [E, r, rows of W]
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from expertree._core import GgufReader, merge_experts
from expertree.errors import ModelFormatError
from expertree.models.staging import chunks, sync

PARTS_ARCHITECTURE = "expertree-experts"
_EXPERT_TYPE = "Q8_0"
_DELTA_TYPE = "Q8_0"
_FILE_TYPE_Q8_0 = 7  # general.file_type, as llama.cpp counts
_WRITE_BYTES = 4 << 20
_FFN_MATRIX = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)\.weight")
# Of the base, and not of what is made from it.
_DROPPED_KEYS = frozenset(
    {"general.architecture", "general.basename", "general.finetune", "general.organization", "general.size_label"}
)

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Written:
    """What a written file is."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class _Tensor:
    """A tensor to be written; make gives its encoded bytes, uint8 of any shape."""

    name: str
    shape: tuple[int, ...]  # numpy's order
    type_name: str
    make: Callable[[], Bytes]


def write_merged(
    base: Path,
    parts: Path,
    target: Path,
    *,
    base_sha256: str,
    name: str,
    n_threads: int,
    report: Callable[[int, int], object] = lambda n_done, n_total: None,
) -> Written:
    """Writes the mixture of experts; one tensor at a time is in memory.

    Args:
        base: a dense GGUF of architecture llama.
        parts: the trained parts that belong to it.
        target: the file to write.
        base_sha256: of `base`.
        name: general.name of the result.
        n_threads: threads that merge and quantise.
        report: called with (bytes written, bytes in all).

    Raises:
        ModelFormatError: the parts are damaged or belong to another base.
        OSError: from writing.
    """
    dense, trained = GgufReader(base), _Parts(parts, base_sha256)
    tensors = list(_tensors(dense, trained, n_threads))
    trained.check_all_used()
    n_header = _write_header(target, _metadata(dense, trained, base_sha256, name), tensors)
    n_total = n_header + sum(_padded(_size_bytes(tensor)) for tensor in tensors)
    with target.open("r+b") as stream:
        out = _HashedFile(stream)
        for tensor in tensors:
            out.write(np.ascontiguousarray(tensor.make()).data.cast("B"))
            out.write(bytes(_padded(out.n_bytes) - out.n_bytes))
            report(out.n_bytes, n_total)
        sync(stream)
    return Written(out.digest.hexdigest(), out.n_bytes)


class _HashedFile:
    """Appends to a file, whose whole hash it knows."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()
        self.n_bytes = 0
        for chunk in chunks(stream):
            self.digest.update(chunk)
            self.n_bytes += len(chunk)

    def write(self, data: memoryview | bytes) -> None:
        for start in range(0, len(data), _WRITE_BYTES):
            piece = data[start : start + _WRITE_BYTES]
            self._stream.write(piece)
            self.digest.update(piece)
            self.n_bytes += len(piece)


class _Parts:
    """The trained parts, every one checked when it is asked for."""

    def __init__(self, path: Path, base_sha256: str) -> None:
        self.path = path
        self._reader = GgufReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._used: set[str] = set()
        self._expect("general.architecture", PARTS_ARCHITECTURE)
        self._expect("expertree.base.sha256", base_sha256)
        self.n_experts = self._count("expertree.expert_count")
        self.n_used = self._count("expertree.expert_used_count")
        self.rank = self._count("expertree.lora_rank")
        if self.n_used > self.n_experts:
            raise self._fault(f"expertree.expert_used_count is {self.n_used} of {self.n_experts} experts")

    def tensor(self, name: str, type_name: str, shape: tuple[int, ...]) -> Callable[[], Bytes]:
        """What reads it; shape in numpy's order."""
        found = self._tensors.get(name)
        if found is None:
            raise self._fault(f"tensor {name} is missing")
        if found.type != type_name or found.shape[::-1] != shape:
            raise self._fault(
                f"tensor {name}: expected {type_name} {list(shape)}, found {found.type} {list(found.shape[::-1])}"
            )
        self._used.add(name)
        return lambda: self._reader.tensor_bytes(name)

    def check_all_used(self) -> None:
        unknown = sorted(set(self._tensors) - self._used)
        if unknown:
            raise self._fault(f"tensor {unknown[0]!r} has no place in the base")

    def _value(self, key: str) -> Any:
        try:
            return self._reader.value(key)
        except KeyError:
            raise self._fault(f"key {key} is missing") from None

    def _expect(self, key: str, expected: str) -> None:
        found = self._value(key)
        if found != expected:
            raise self._fault(f"{key}: expected {expected!r}, found {found!r}")

    def _count(self, key: str) -> int:
        found = self._value(key)
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise self._fault(f"{key}: expected a positive integer, found {found!r}")
        return found

    def _fault(self, what: str) -> ModelFormatError:
        return ModelFormatError(f"{self.path}: {what}; these are not the trained parts that belong to the base")


def _tensors(dense: GgufReader, trained: _Parts, n_threads: int) -> Iterator[_Tensor]:
    """In the base's order, a layer's router before its gate matrices."""
    keys = dense.metadata()
    if keys.get("general.architecture") != "llama" or "llama.expert_count" in keys:
        raise ModelFormatError(f"{dense.paths[0]}: the base must be a dense model of architecture llama")
    n_embd = dense.value("llama.embedding_length")
    for tensor in dense.tensors:
        shape = tensor.shape[::-1]
        match = _FFN_MATRIX.fullmatch(tensor.name)
        if match is None:
            yield _Tensor(tensor.name, shape, tensor.type, _reading(dense, tensor.name))
            continue
        layer, kind = match.groups()
        if kind == "gate":
            router, router_shape = f"blk.{layer}.ffn_gate_inp.weight", (trained.n_experts, n_embd)
            yield _Tensor(router, router_shape, "F32", trained.tensor(router, "F32", router_shape))
        name = f"blk.{layer}.ffn_{kind}_exps"
        n_out, n_in = shape
        a = trained.tensor(f"{name}.lora_a", _DELTA_TYPE, (trained.n_experts, trained.rank, n_in))
        b = trained.tensor(f"{name}.lora_b", _DELTA_TYPE, (trained.n_experts, trained.rank, n_out))
        merging = _merging(_reading(dense, tensor.name), tensor.type, n_out, a, b, trained, n_threads)
        yield _Tensor(f"{name}.weight", (trained.n_experts, n_out, n_in), _EXPERT_TYPE, merging)


def _reading(reader: GgufReader, name: str) -> Callable[[], Bytes]:
    return lambda: reader.tensor_bytes(name)


def _merging(
    base: Callable[[], Bytes],
    base_type: str,
    n_out: int,
    a: Callable[[], Bytes],
    b: Callable[[], Bytes],
    trained: _Parts,
    n_threads: int,
) -> Callable[[], Bytes]:
    n_experts, rank = trained.n_experts, trained.rank

    def make() -> Bytes:
        rows_a, rows_b = a().reshape(n_experts, rank, -1), b().reshape(n_experts, rank, -1)
        rows = base().reshape(n_out, -1)
        return np.asarray(merge_experts(base_type, rows, _DELTA_TYPE, rows_a, rows_b, _EXPERT_TYPE, n_threads))

    return make


def _metadata(dense: GgufReader, trained: _Parts, base_sha256: str, name: str) -> dict[str, tuple[Any, str]]:
    """Keys with their values and types, as GgufReader names those."""
    metadata = {key: (dense.value(key), dense.value_type(key)) for key in dense.keys if key not in _DROPPED_KEYS}
    base_name = metadata.get("general.name")
    metadata["general.name"] = (name, "string")
    metadata["general.file_type"] = (_FILE_TYPE_Q8_0, "uint32")
    metadata["llama.expert_count"] = (trained.n_experts, "uint32")
    metadata["llama.expert_used_count"] = (trained.n_used, "uint32")
    metadata["general.base_model.count"] = (1, "uint32")
    if base_name is not None:
        metadata["general.base_model.0.name"] = base_name
    if "general.organization" in dense.keys:
        metadata["general.base_model.0.organization"] = (dense.value("general.organization"), "string")
    if "general.size_label" in dense.keys:
        metadata["general.size_label"] = (f"{trained.n_experts}x{dense.value('general.size_label')}", "string")
    metadata["expertree.base.sha256"] = (base_sha256, "string")
    return metadata


def _write_header(target: Path, metadata: dict[str, tuple[Any, str]], tensors: list[_Tensor]) -> int:
    """Everything before the first tensor, padding included; its bytes."""
    import gguf  # a quarter of a second, which only a build should take

    writer = gguf.GGUFWriter(target, "llama")
    for key, (value, type_name) in metadata.items():
        kind, _, element = type_name.removesuffix("]").partition("[")
        if kind != "array":
            writer.add_key_value(key, value, gguf.GGUFValueType[kind.upper()])
        elif len(value) > 0:  # the writer knows no empty arrays
            values = value.tolist() if isinstance(value, np.ndarray) else value
            writer.add_key_value(key, values, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType[element.upper()])
    for tensor in tensors:
        number = gguf.GGMLQuantizationType[tensor.type_name]
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), _size_bytes(tensor), number)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    finally:
        writer.close()
    with target.open("ab") as stream:
        n_bytes = stream.tell()
        stream.write(bytes(_padded(n_bytes) - n_bytes))
    return _padded(n_bytes)


def _size_bytes(tensor: _Tensor) -> int:
    import gguf

    block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[tensor.type_name]]
    return int(np.prod(tensor.shape)) // block_size * block_bytes


def _padded(n_bytes: int) -> int:
    """GGUF's default alignment."""
    return (n_bytes + 31) // 32 * 32
