"""Merging trained parts into a dense model: every byte of the result, and parts that do not fit."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import expertree
import numpy as np
import pytest
from expertree._core import GgufReader, _testing, merge_experts
from expertree.errors import InvalidRequestError, ModelFormatError
from expertree.models import parts as parts_module
from expertree.models.merge import Written, write_merged
from expertree.models.staging import sha256
from stand_in_parts import N_EXPERTS, RANK, part_tensors, write_parts
from test_tools import run
from tiny_model import TinyModel

MATRICES = ("gate", "up", "down")
KEYS: dict[str, Any] = {
    "general.name": "Tiny",
    "general.organization": "Somebody",
    "general.finetune": "of something",
    "general.size_label": "1M",
    "general.file_type": 3,
    "general.license": "mit",
    "tokenizer.ggml.tokens": ["a", "b", "ä"],
    "tokenizer.ggml.scores": [0.5, 0.25, 0.125],
    "tokenizer.ggml.token_type": [1, 2, 3],
    "tokenizer.chat_template": "{{ messages }}",
    "tokenizer.ggml.add_bos_token": False,
}

RECORDED = {  # SHA-256 by format of the result
    "F32": "7d0493ca0f9099d445fb34a9d7a0399e3e6ab29d43bf4df763fbfdf753e8b888",
    "Q8_0": "1c4f8d6d73bc573425834d4b812f9c4e6d361d4b93884c450c9599ef15afd158",
}


def base_of(folder: Path, form: str = "Q4_1", **fields: Any) -> Path:
    return TinyModel(arch="llama", format=form, n_ff=96, **fields).write(folder / "base.gguf")


def merged(base: Path, parts: Path, n_threads: int = 2) -> tuple[Path, Written]:
    path = base.parent / f"merged-{n_threads}.gguf"
    return path, write_merged(base, parts, path, base_sha256=sha256(base), name="Tiny MoE", n_threads=n_threads)


def decoded(reader: GgufReader, name: str) -> np.ndarray:
    """float32, numpy's shape."""
    tensor = next(t for t in reader.tensors if t.name == name)
    shape = tensor.shape[::-1]
    raw = reader.tensor_bytes(name)
    if tensor.type == "F32":
        return raw.view(np.float32).reshape(shape)
    return np.asarray(_testing.dequantize(tensor.type, raw.reshape(int(np.prod(shape[:-1])), -1))).reshape(shape)


@pytest.mark.parametrize("form", ["Q4_1", "Q8_0", "F32", "F16"])
def test_every_tensor(tmp_path: Path, form: str) -> None:
    base = base_of(tmp_path, form)
    parts = write_parts(base, tmp_path / "parts.gguf")
    path, written = merged(base, parts)
    assert written == Written(sha256(path), path.stat().st_size)
    dense, trained, result = GgufReader(base), GgufReader(parts), GgufReader(path)
    names = {tensor.name for tensor in result.tensors}
    for tensor in dense.tensors:
        kind = tensor.name.split(".")[-2].removeprefix("ffn_")
        if kind in MATRICES:
            exps = tensor.name.replace(".weight", "_exps")
            names.remove(exps + ".weight")
            w, a, b = (decoded(dense, tensor.name), *(decoded(trained, f"{exps}.lora_{x}") for x in "ab"))
            for e in range(N_EXPERTS):
                expert = w.copy()
                for j in range(RANK):
                    expert = expert + b[e, j][:, None] * a[e, j][None, :]
                encoded = np.asarray(_testing.quantize("Q8_0", expert))
                found = result.tensor_bytes(exps + ".weight").reshape(N_EXPERTS, *encoded.shape)[e]
                assert np.array_equal(found, encoded), (exps, e)
        else:
            names.remove(tensor.name)
            assert np.array_equal(result.tensor_bytes(tensor.name), dense.tensor_bytes(tensor.name))
    for name in sorted(names):
        assert name.endswith("ffn_gate_inp.weight")
        assert np.array_equal(result.tensor_bytes(name), trained.tensor_bytes(name))
    assert len(names) == 2
    model = expertree.Model(path)
    assert (model.n_experts, model.n_experts_used) == (N_EXPERTS, 2)


def test_without_deltas_it_is_the_dense_model(tmp_path: Path) -> None:
    base = base_of(tmp_path, "Q8_0")  # which Q8_0 experts repeat exactly
    zeros = {
        name: np.zeros_like(values)
        for name, values in part_tensors(base, N_EXPERTS, RANK).items()
        if name.endswith("lora_b")
    }
    path, _ = merged(base, write_parts(base, tmp_path / "parts.gguf", tensors=zeros))
    tokens = list(range(5, 25))
    expected = expertree.Model(base).logits(tokens)
    assert np.abs(expertree.Model(path).logits(tokens) - expected).max() < 1e-4 * np.abs(expected).max()


def test_metadata(tmp_path: Path) -> None:
    base = base_of(tmp_path, keys=KEYS)
    path, _ = merged(base, write_parts(base, tmp_path / "parts.gguf"))
    dense, result = GgufReader(base), GgufReader(path)
    own = {
        "general.name": "Tiny MoE",
        "general.file_type": 7,
        "general.size_label": "4x1M",
        "general.base_model.count": 1,
        "general.base_model.0.name": "Tiny",
        "general.base_model.0.organization": "Somebody",
        "llama.expert_count": N_EXPERTS,
        "llama.expert_used_count": 2,
        "expertree.base.sha256": sha256(base),
    }
    copied = set(dense.keys) - set(own) - {"general.organization", "general.finetune"}
    assert set(result.keys) == copied | set(own)
    assert {key: result.value(key) for key in own} == own
    for key in copied:
        assert result.value_type(key) == dense.value_type(key)
        assert np.array_equal(result.value(key), dense.value(key)), key


def test_any_number_of_threads_gives_the_same_bytes(tmp_path: Path) -> None:
    base = base_of(tmp_path)
    parts = write_parts(base, tmp_path / "parts.gguf")
    assert len({merged(base, parts, n)[1] for n in (1, 2, 5)}) == 1


def test_the_same_bytes_on_every_machine() -> None:
    """Inputs from integers alone, and the recorded hash of what the first machine made of them."""

    def blocks(shape: tuple[int, ...], halves: list[int], seed: int) -> np.ndarray:
        """Blocks of random codes behind the given binary16 numbers."""
        codes = (np.arange(np.prod(shape) * 32, dtype=np.uint64) * 2654435761 + seed) >> 13
        rows = codes.astype(np.uint8).reshape(*shape, 32)[..., : 32 if len(halves) == 1 else 16]
        head = np.broadcast_to(np.array(halves, "<u2").view(np.uint8), (*shape, 2 * len(halves)))
        return np.ascontiguousarray(np.concatenate([head, rows], axis=-1).reshape(*shape[:-1], -1))

    base = blocks((96, 2), [0x2123, 0xA8F1], 1)  # Q4_1, 96 rows of 64
    a, b = blocks((4, 8, 2), [0x1A37], 2), blocks((4, 8, 3), [0x1D09], 3)
    for form, recorded in RECORDED.items():
        result = np.asarray(merge_experts("Q4_1", base, "Q8_0", a, b, form, 2))
        assert hashlib.sha256(result.tobytes()).hexdigest() == recorded, form


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"keys": {"general.architecture": "llama"}}, "general.architecture: expected 'expertree-experts', found 'll"),
        ({"keys": {"expertree.base.sha256": "0" * 64}}, "expertree.base.sha256: expected .*, found '0000"),
        ({"keys": {"expertree.base.sha256": None}}, "key expertree.base.sha256 is missing"),
        ({"keys": {"expertree.expert_count": 0}}, "expert_count: expected a positive integer, found 0"),
        ({"keys": {"expertree.expert_count": "8"}}, "expert_count: expected a positive integer, found '8'"),
        ({"keys": {"expertree.expert_used_count": 9}}, "expert_used_count is 9 of 4 experts"),
        ({"keys": {"expertree.lora_rank": 2}}, r"lora_a: expected Q8_0 \[4, 2, 64\], found Q8_0 \[4, 3, 64\]"),
        ({"tensors": {"blk.1.ffn_up_exps.lora_b": None}}, r"tensor blk\.1\.ffn_up_exps\.lora_b is missing"),
        ({"tensors": {"blk.0.ffn_gate_inp.weight": None}}, r"tensor blk\.0\.ffn_gate_inp\.weight is missing"),
        (
            {"tensors": {"blk.0.ffn_gate_inp.weight": np.zeros((4, 32), np.float32)}},
            r"expected F32 \[4, 64\], found F32 \[4, 32\]",
        ),
        ({"tensors": {"blk.7.x.weight": np.zeros((4, 32), np.float32)}}, r"'blk\.7\.x\.weight' has no place"),
    ],
)
def test_parts_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    base = base_of(tmp_path)
    parts = write_parts(base, tmp_path / "parts.gguf", **changes)
    with pytest.raises(ModelFormatError, match=rf"parts\.gguf: .*{expected}"):
        merged(base, parts)


@pytest.mark.parametrize("arch", ["qwen3", "mixtral"])
def test_bases_that_do_not_fit(tmp_path: Path, arch: str) -> None:
    other = TinyModel(arch=arch).write(tmp_path / "other.gguf")
    keys = {"expertree.base.sha256": sha256(other)}
    parts = write_parts(base_of(tmp_path), tmp_path / "parts.gguf", keys=keys)
    with pytest.raises(ModelFormatError, match=r"other\.gguf: the base must be a dense model of architecture llama"):
        merged(other, parts)


def test_deltas_that_are_not_finite(tmp_path: Path) -> None:
    base = np.zeros((32, 34), np.uint8)
    a = np.zeros((1, 1, 34), np.uint8)
    a[..., :2] = np.array([0x7C00], "<u2").view(np.uint8)
    with pytest.raises(InvalidRequestError):
        merge_experts("Q8_0", base, "Q8_0", a, a, "Q8_0", 1)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"base_type": "Q9_9"}, "no supported element format is named 'Q9_9'"),
        ({"base": np.zeros((32, 33), np.uint8)}, "base: rows of 33 bytes are not whole Q8_0 blocks of 34"),
        ({"base": np.zeros((32, 0), np.uint8)}, "base: rows of 0 bytes"),
        ({"base": np.zeros((32, 68), np.uint8)}, "a: its rows are not as long as base's"),
        ({"base": np.zeros((64, 34), np.uint8)}, "b: its rows are not as long as base's columns"),
        ({"a": np.zeros((2, 1, 34), np.uint8)}, "a and b differ in experts or rank"),
        ({"out_type": "Q4_K"}, "32 columns are not whole Q4_K blocks"),
        ({"n_threads": 0}, "n_threads: expected 1 to 1024"),
    ],
)
def test_arguments_that_do_not_fit(change: dict[str, Any], expected: str) -> None:
    zeros = np.zeros((1, 1, 34), np.uint8)
    arguments: dict[str, Any] = {"base_type": "Q8_0", "base": np.zeros((32, 34), np.uint8), "delta_type": "Q8_0"}
    arguments |= {"a": zeros, "b": zeros, "out_type": "Q8_0", "n_threads": 1}
    with pytest.raises(InvalidRequestError, match=expected):
        merge_experts(**{**arguments, **change})


def test_the_tool_prints_the_row(tmp_path: Path) -> None:
    base = base_of(tmp_path)
    parts, out = write_parts(base, tmp_path / "parts.gguf"), tmp_path / "out.gguf"
    done = run("build_moe.py", parts, "--base", base, "-o", out)
    size = f"{out.stat().st_size:_}"
    assert done.stdout == f'parts_sha256="{sha256(parts)}",\nsha256="{sha256(out)}",\nsize_bytes={size},\n', done.stderr
    assert run("build_moe.py", parts, "--base", base).stdout == done.stdout
    parts.write_bytes(b"GGUF")
    failed = run("build_moe.py", parts, "--base", base)
    assert failed.returncode == 1 and failed.stderr.startswith("build_moe: error: ") and failed.stdout == ""


def test_where_the_parts_lie(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    assert parts_module.parts_folder() == root / "models/default"
    assert parts_module.trained_part("nothing.gguf") is None
    installed = tmp_path / "site-packages/expertree/models"
    (installed / "default").mkdir(parents=True)
    (installed / "default/medusa.gguf").touch()
    shutil.copy(parts_module.__file__, installed)
    names: dict[str, Any] = {"__file__": str(installed / "parts.py"), "__name__": "parts"}
    exec((installed / "parts.py").read_text(), names)
    assert names["trained_part"](names["MEDUSA"]) == installed / "default/medusa.gguf"
    assert names["trained_part"](names["EAGLE3"]) is None
