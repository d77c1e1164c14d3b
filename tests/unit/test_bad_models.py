"""Files that a model cannot be loaded from: each a typed error that names file, key or tensor, and what to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import expertree
import numpy as np
import pytest
from tiny_model import TinyModel

LLAMA = Path(__file__).parent.parent / "conformance" / "llama.gguf"


def refused(path: Path, error: type[expertree.Error], *words: str, **options: object) -> None:
    with pytest.raises(error) as caught:
        expertree.Model(path, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    for word in words:
        assert word in message, message


def test_missing_file(tmp_path: Path) -> None:
    refused(tmp_path / "no.gguf", expertree.Error, "no.gguf")


def test_directory(tmp_path: Path) -> None:
    refused(tmp_path, expertree.Error, str(tmp_path), "directory")


def test_truncated_download(tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    path.write_bytes(LLAMA.read_bytes()[: LLAMA.stat().st_size // 2])
    refused(path, expertree.ModelFormatError, "half.gguf")


def test_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(
        (64).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}      ' + b"0000"
    )
    refused(path, expertree.ModelFormatError, "safetensors")


def test_big_endian(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "big") + bytes(64))
    refused(path, expertree.Error, "big-endian")


def test_unknown_architecture_is_named(tmp_path: Path) -> None:
    spec = TinyModel(arch="llama")
    data = spec.write(tmp_path / "a.gguf").read_bytes().replace(b"llama", b"lloma")
    (tmp_path / "a.gguf").write_bytes(data)
    refused(tmp_path / "a.gguf", expertree.UnsupportedError, "'lloma'", "qwen3moe")


def test_unsupported_format_is_named(tmp_path: Path) -> None:
    """Q8_K rows of 256 elements are 292 bytes; the values do not matter. No file holds weights in it."""
    import gguf

    spec = TinyModel(arch="llama", n_embd=256, n_ff=256)
    path = tmp_path / "q8k.gguf"
    add = gguf.GGUFWriter.add_tensor

    def swap(self: gguf.GGUFWriter, name: str, tensor: np.ndarray, **options: object) -> None:
        if name == "blk.0.ffn_up.weight":
            raw = np.zeros((256, 292), np.uint8)
            add(self, name, raw, raw_dtype=gguf.GGMLQuantizationType.Q8_K)
        else:
            add(self, name, tensor, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_tensor", swap)
        spec.write(path)
    refused(path, expertree.UnsupportedError, "blk.0.ffn_up.weight", "Q8_K")


@pytest.mark.parametrize("name", ["blk.1.attn_k.weight", "output_norm.weight", "blk.0.ffn_down_exps.weight"])
def test_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    spec = TinyModel(arch="qwen3moe", tensors={name: None})
    refused(spec.write(tmp_path / "m.gguf"), expertree.ModelFormatError, name, "missing")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.1.attn_k.weight", (48, 32)),
        ("blk.0.ffn_gate_exps.weight", (7, 64, 64)),
        ("blk.0.attn_norm.weight", (63,)),
        ("blk.0.ffn_gate_inp.weight", (64, 8)),
    ],
)
def test_wrong_shape_says_both(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    spec = TinyModel(arch="qwen3moe", tensors={name: np.ones(shape, np.float32)})
    found = ", ".join(str(n) for n in reversed(shape))
    refused(spec.write(tmp_path / "m.gguf"), expertree.ModelFormatError, name, f"[{found}]", "expected [")


def test_a_tensor_without_a_use_is_refused(tmp_path: Path) -> None:
    """Leaving it out silently would run another model than the file's."""
    spec = TinyModel(arch="llama", tensors={"blk.0.attn_sinks.weight": np.ones(4, np.float32)})
    refused(spec.write(tmp_path / "m.gguf"), expertree.UnsupportedError, "blk.0.attn_sinks.weight")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", 0),
        ("llama.block_count", 2**31 - 1),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count", 2**32 - 1),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.head_count", 65),
        ("llama.rope.dimension_count", 15),
        ("llama.rope.dimension_count", 64),
        ("llama.rope.freq_base", 0.0),
        ("llama.rope.freq_base", float("nan")),
        ("llama.attention.layer_norm_rms_epsilon", -1.0),
        ("llama.embedding_length", "64"),
        ("llama.context_length", -1.5),
        ("llama.feed_forward_length", None),
        ("llama.embedding_length", None),
        ("llama.expert_count", 8),
    ],
)
def test_impossible_keys_are_errors(key: str, value: object, tmp_path: Path) -> None:
    spec = TinyModel(arch="llama", keys={key: value})
    with pytest.raises(expertree.Error):
        expertree.Model(spec.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize(("arch", "scaling"), [("llama", "dynamic"), ("qwen3", "longrope")])
def test_rope_scaling_is_refused_by_name(arch: str, scaling: str, tmp_path: Path) -> None:
    spec = TinyModel(arch=arch, keys={f"{arch}.rope.scaling.type": scaling})
    refused(spec.write(tmp_path / "m.gguf"), expertree.UnsupportedError, "rope.scaling.type", scaling)


def test_vocabulary_of_another_size(tmp_path: Path) -> None:
    spec = TinyModel(arch="llama", keys={"tokenizer.ggml.tokens": ["a", "b"]})
    refused(spec.write(tmp_path / "m.gguf"), expertree.ModelFormatError, "2 tokens", "96")


def test_unknown_pre_tokenizer_is_named_and_can_be_forced(tmp_path: Path) -> None:
    source = LLAMA.parent / "qwen3.gguf"
    path = tmp_path / "m.gguf"
    path.write_bytes(source.read_bytes().replace(b"\x05\0\0\0\0\0\0\0qwen2", b"\x05\0\0\0\0\0\0\0qwon2"))
    model = expertree.Model(path)
    with pytest.raises(expertree.UnsupportedError, match=r"m\.gguf: .*qwon2"):
        model.generate("hello")
    assert len(model.generate([1, 2], max_tokens=2).tokens) == 2  # ids need no tokenizer
    assert expertree.Model(path, pre="qwen2").generate("hello", max_tokens=2).tokens


def test_bad_options(tiny: Callable[..., Path]) -> None:
    path = tiny(arch="llama")
    refused(path, expertree.InvalidRequestError, "mmx", isa="mmx")
    refused(path, expertree.InvalidRequestError, "-1", threads=-1)
    refused(path, expertree.InvalidRequestError, "n_ctx", n_ctx=0)
    refused(path, expertree.InvalidRequestError, "ram", ram="lots")
    refused(path, expertree.InvalidRequestError, "policy", policy="fifo")
    refused(path, expertree.InvalidRequestError, "vram", vram="lots")
    refused(path, expertree.InvalidRequestError, "vram", vram=-1)
    refused(tiny(arch="qwen3moe"), expertree.DeviceError, "no GPU to keep experts on", vram=1)
    refused(path, expertree.InvalidRequestError, "activations", activations="int4")


def test_not_enough_memory(tiny: Callable[..., Path]) -> None:
    """A context of 2^26 tokens of this model is 68 GiB."""
    model = expertree.Model(tiny(arch="llama"))
    with pytest.raises(expertree.OutOfMemoryError, match=r"KV cache for 67108864 tokens needs .* GiB"):
        model.session(n_ctx=2**26)


def test_a_file_cut_while_loaded_is_no_crash(tmp_path: Path) -> None:
    """Weights are copied at load: what happens to the file later is nothing to the model."""
    path = tmp_path / "m.gguf"
    shutil.copy(LLAMA, path)
    model = expertree.Model(path)
    before = model.logits([1, 2, 3])
    path.write_bytes(b"")
    assert (model.logits([1, 2, 3]) == before).all()
