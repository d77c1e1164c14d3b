"""GgufReader against files that the `gguf` package wrote, and against files that are something else."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import zipfile
from pathlib import Path

import gguf
import gguf_bytes as g
import numpy as np
import pytest
from expertree import errors
from expertree._core import GgufReader, _testing


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


SCALARS = {
    "uint8": (0, 255),
    "int8": (-128, 127),
    "uint16": (0, 65535),
    "int16": (-(2**15), 2**15 - 1),
    "uint32": (0, 2**32 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint64": (0, 2**64 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "float32": (-0.0, 1.5),
    "float64": (1e-300, 0.1),
    "bool": (False, True),
}


# Round trips


def test_scalars_of_every_type(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen3moe")
    for name, values in SCALARS.items():
        for i, value in enumerate(values):
            getattr(writer, f"add_{name}")(f"x.{name}.{i}", value)
    writer.add_string("x.text", "κλειδί \n\x1b[31m\x00 end")
    finish(writer)
    reader = GgufReader(tmp_path / "m.gguf")
    for name, values in SCALARS.items():
        for i, value in enumerate(values):
            found = reader.value(f"x.{name}.{i}")
            assert found == value
            assert type(found) is type(value)
            assert reader.value_type(f"x.{name}.{i}") == name
    assert reader.value("x.text") == "κλειδί \n\x1b[31m\x00 end"
    assert list(reader.metadata()) == reader.keys
    assert reader.keys[0] == "general.architecture"
    assert reader.metadata()["general.architecture"] == "qwen3moe"


@pytest.mark.parametrize("kind", [k for k in range(13) if k not in (g.STRING, g.ARRAY)])
def test_number_arrays_of_every_type(tmp_path, kind):
    values = [0, 1, 1, 0, 1]
    content = g.gguf([g.key("odd", g.U8, 1), g.key("x", g.ARRAY, g.array(kind, values))])
    reader = GgufReader(write(tmp_path / "m.gguf", content))
    found = reader.value("x")
    assert found.dtype == np.dtype(g.TYPE_NAMES[kind])
    assert found.tolist() == values
    assert reader.value_type("x") == f"array[{g.TYPE_NAMES[kind]}]"


@pytest.mark.parametrize("kind", [k for k in range(13) if k != g.ARRAY])
def test_empty_arrays(tmp_path, kind):
    content = g.gguf([g.key("x", g.ARRAY, g.array(kind, [])), g.key("y", g.U8, 3)])
    reader = GgufReader(write(tmp_path / "m.gguf", content))
    assert len(reader.value("x")) == 0
    assert reader.value("y") == 3


def test_string_array_with_bytes_that_are_not_utf8(tmp_path):
    values = ["a", "", "🙂", b"\xe6\xad", b"\xff", "x" * 70000]
    reader = GgufReader(write(tmp_path / "m.gguf", g.gguf([g.key("x", g.ARRAY, g.array(g.STRING, values))])))
    assert reader.value("x") == values


def test_empty_string_as_last_byte_of_file(tmp_path):
    reader = GgufReader(write(tmp_path / "m.gguf", g.gguf([g.key("x", g.STRING, "")])))
    assert reader.value("x") == ""


def test_a_value_outlives_its_reader(tmp_path):
    content = g.gguf([g.key("x", g.ARRAY, g.array(g.F32, [1, 2, 3]))], [g.tensor("t", (8,))], bytes(range(32)))
    reader = GgufReader(write(tmp_path / "m.gguf", content))
    array, raw, tensor = reader.value("x"), reader.tensor_bytes("t"), reader.tensors[0]
    del reader
    array[0] = 5  # a copy: may be written
    assert array.tolist() == [5, 2, 3]
    assert bytes(raw) == bytes(range(32))
    assert tensor.shape == (8,)


@pytest.mark.parametrize("alignment", [8, 16, 32, 64])
def test_tensors_at_each_alignment(tmp_path, alignment):
    rng = np.random.default_rng(alignment)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_custom_alignment(alignment)
    tensors = {
        f"t{n}": rng.standard_normal(shape).astype(np.float32)
        for n, shape in enumerate([(1,), (3, 5), (2, 3, 7), (2, 1, 3, 5)])
    }
    tensors["half"] = rng.standard_normal((3, 3)).astype(np.float16)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    finish(writer)
    reader = GgufReader(tmp_path / "m.gguf")
    assert reader.alignment == alignment
    for tensor in reader.tensors:
        expected = tensors[tensor.name]
        assert tensor.shape == expected.shape[::-1]
        assert tensor.size_bytes == expected.nbytes
        assert tensor.offset % alignment == 0
        raw = reader.tensor_bytes(tensor.name)
        assert raw.dtype == np.uint8
        assert raw.tobytes() == expected.tobytes()
        assert _testing.mapped_tensor(reader, tensor.name) == expected.tobytes()


def test_every_existing_type_is_listed_with_its_size(tmp_path):
    tensors, sizes, offset = [], {}, 0
    for kind, (block, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        # Newer than cpp/tensor/dtype.cpp; and Q8_1, never stored, for which the package has an old layout of ggml.
        if kind.value > 40 or kind.name == "Q8_1":
            continue
        sizes[kind.name] = (2 * block, 3 * 2 * block_bytes)
        tensors.append(g.tensor(kind.name, (2 * block, 3), kind.value, offset))
        offset += -(-sizes[kind.name][1] // 32) * 32
    reader = GgufReader(write(tmp_path / "m.gguf", g.gguf([], tensors, bytes(offset))))
    found = {t.name: t for t in reader.tensors}
    assert len(found) >= 25
    for name, (ne0, size) in sizes.items():
        assert found[name].type == name
        assert found[name].shape == (ne0, 3)
        assert found[name].size_bytes == size


def test_split_set_written_by_the_gguf_package(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "olmoe", split_max_tensors=2)
    values = {f"t{i}": np.full((4,), i, np.float32) for i in range(5)}
    for name, array in values.items():
        writer.add_tensor(name, array)
    writer.add_uint32("olmoe.block_count", 2)
    finish(writer)
    reader = GgufReader(tmp_path / "m-00001-of-00003.gguf")
    assert len(reader.paths) == 3
    assert reader.value("olmoe.block_count") == 2
    for name, array in values.items():
        assert reader.tensor_bytes(name).tobytes() == array.tobytes()


def test_unsorted_names_and_offsets_are_found(tmp_path):
    order = [3, 1, 4, 0, 2]
    tensors = [g.tensor(f"t{i}", (8,), offset=32 * i) for i in order]
    data = b"".join(bytes([i]) * 32 for i in range(5))
    reader = GgufReader(write(tmp_path / "m.gguf", g.gguf([], tensors, data)))
    assert [t.name for t in reader.tensors] == [f"t{i}" for i in order]
    assert [bytes(reader.tensor_bytes(f"t{i}"))[0] for i in range(5)] == list(range(5))


def test_large_directory(tmp_path):
    n = 20000
    tensors = [g.tensor(f"blk.{i}.w", (8,), offset=32 * i) for i in range(n)]
    tokens = [f"token {i}" for i in range(150000)]
    content = g.gguf([g.key("tokens", g.ARRAY, g.array(g.STRING, tokens))], tensors, bytes(32 * n))
    reader = GgufReader(write(tmp_path / "m.gguf", content))
    assert len(reader.tensors) == n
    assert reader.value("tokens") == tokens
    assert bytes(reader.tensor_bytes(f"blk.{n - 1}.w")) == bytes(32)


def test_absent_names_raise_key_error(tmp_path):
    reader = GgufReader(write(tmp_path / "m.gguf", g.gguf([g.key("b", g.U8, 1)])))
    for absent in ("a", "b\0", "c", "", "b.c"):
        with pytest.raises(KeyError):
            reader.value(absent)
        with pytest.raises(KeyError):
            reader.value_type(absent)
        with pytest.raises(KeyError):
            reader.tensor_bytes(absent)


def test_a_path_in_other_letters_is_given_back(tmp_path):
    path = tmp_path / "modèle\udcff.gguf"
    try:
        path.write_bytes(g.gguf())
    except (OSError, UnicodeEncodeError):
        pytest.skip("this file system takes no such name")
    assert GgufReader(path).paths == [str(path)]
    path.write_bytes(b"nonsense")
    with pytest.raises(errors.ModelFormatError, match=r"mod\S*le\\xff\.gguf"):
        GgufReader(path)


# The model loader's look-ups

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
INT_KINDS = [g.U8, g.I8, g.U16, g.I16, g.U32, g.I32, g.U64, g.I64]


def with_key(tmp_path: Path, kind: int, value: object) -> GgufReader:
    return GgufReader(write(tmp_path / "m.gguf", g.gguf([g.key("k", kind, value)])))


@pytest.mark.parametrize("kind", INT_KINDS)
def test_any_integer_type_holds_an_integer(tmp_path, kind):
    reader = with_key(tmp_path, kind, 100)
    assert _testing.gguf_require_int(reader, "k", 0, 100) == 100
    assert _testing.gguf_int_or(reader, "k", 7, 100, INT_MAX) == 100
    assert _testing.gguf_int_or(reader, "absent", 7, 100, 100) == 7
    assert _testing.gguf_require_ints(reader, "k", 3, 0, 100) == [100, 100, 100]
    for low, high in ((0, 99), (101, 200)):
        with pytest.raises(errors.ModelFormatError, match=f"key 'k' is 100, from {low} to {high} is expected"):
            _testing.gguf_require_int(reader, "k", low, high)
        with pytest.raises(errors.ModelFormatError):
            _testing.gguf_int_or(reader, "k", 100, low, high)


@pytest.mark.parametrize(("kind", "value"), [(g.I8, -128), (g.I16, -1), (g.I32, -(2**31)), (g.I64, INT_MIN)])
def test_negative_integers(tmp_path, kind, value):
    assert _testing.gguf_require_int(with_key(tmp_path, kind, value), "k", INT_MIN, 0) == value


@pytest.mark.parametrize("value", [2**63, 2**64 - 1])
def test_a_uint64_beyond_int64_is_out_of_range(tmp_path, value):
    with pytest.raises(errors.ModelFormatError, match=f"key 'k' is {value}, from"):
        _testing.gguf_require_int(with_key(tmp_path, g.U64, value), "k", INT_MIN, INT_MAX)


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [(g.F32, 1.0, "float32"), (g.BOOL, 1, "bool"), (g.STRING, "1", "string"), (g.ARRAY, g.array(g.U8, [1]), "array")],
)
def test_no_integer(tmp_path, kind, value, found):
    with pytest.raises(errors.ModelFormatError, match=f"key 'k' must be an integer but is {found};"):
        _testing.gguf_require_int(with_key(tmp_path, kind, value), "k", INT_MIN, INT_MAX)


@pytest.mark.parametrize("kind", [g.F32, g.F64])
def test_floats(tmp_path, kind):
    reader = with_key(tmp_path, kind, 0.5)
    assert _testing.gguf_require_float(reader, "k") == 0.5
    assert _testing.gguf_float_or(reader, "k", 2.0) == 0.5
    assert _testing.gguf_float_or(reader, "absent", 2.0) == 2.0
    assert _testing.gguf_require_floats(reader, "k", 2) == [0.5, 0.5]
    for odd in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(errors.ModelFormatError, match="key 'k' must be a finite number but is"):
            _testing.gguf_require_float(with_key(tmp_path, kind, odd), "k")


def test_other_types_for_floats_bools_and_strings(tmp_path):
    reader = with_key(tmp_path, g.U32, 1)
    for look_up, expected in (
        (lambda: _testing.gguf_require_float(reader, "k"), "a float"),
        (lambda: _testing.gguf_float_or(reader, "k", 1.0), "a float"),
        (lambda: _testing.gguf_bool_or(reader, "k", True), "a bool"),
        (lambda: _testing.gguf_require_string(reader, "k"), "a string"),
        (lambda: _testing.gguf_string_or(reader, "k", ""), "a string"),
        (lambda: _testing.gguf_require_floats(reader, "k", 2), "a float"),
        (lambda: _testing.gguf_require_bools(reader, "k", 2), "a bool"),
    ):
        with pytest.raises(errors.ModelFormatError, match=f"key 'k' must be {expected} but is uint32"):
            look_up()


def test_bools_and_strings(tmp_path):
    reader = with_key(tmp_path, g.BOOL, 1)
    assert _testing.gguf_bool_or(reader, "k", False) is True
    assert _testing.gguf_bool_or(reader, "absent", False) is False
    assert _testing.gguf_require_bools(reader, "k", 2) == [True, True]
    reader = with_key(tmp_path, g.STRING, "text")
    assert _testing.gguf_require_string(reader, "k") == "text"
    assert _testing.gguf_string_or(reader, "absent", "other") == "other"


def test_arrays_of_numbers(tmp_path):
    reader = with_key(tmp_path, g.ARRAY, g.array(g.I32, [1, -2, 3]))
    for n in (3, -1):
        assert _testing.gguf_require_ints(reader, "k", n, -2, 3) == [1, -2, 3]
    for n in (0, 2, 4, 2**40):
        with pytest.raises(errors.ModelFormatError, match=f"an array of {n} elements but is array of 3 int32"):
            _testing.gguf_require_ints(reader, "k", n, -2, 3)
    with pytest.raises(errors.ModelFormatError, match="key 'k' is -2, from 0"):
        _testing.gguf_require_ints(reader, "k", 3, 0, 3)
    with pytest.raises(errors.ModelFormatError, match="must be a float but is int32"):
        _testing.gguf_require_floats(reader, "k", 3)
    reader = with_key(tmp_path, g.ARRAY, g.array(g.BOOL, [1, 0]))
    assert _testing.gguf_require_bools(reader, "k", -1) == [True, False]
    reader = with_key(tmp_path, g.ARRAY, g.array(g.F32, []))
    assert _testing.gguf_require_floats(reader, "k", 0) == []
    with pytest.raises(errors.ModelFormatError, match="at least 1 element"):
        _testing.gguf_require_floats(reader, "k", -1)
    reader = with_key(tmp_path, g.ARRAY, g.array(g.STRING, ["a", "b"]))
    with pytest.raises(errors.ModelFormatError, match="an array of numbers but is array of 2 string"):
        _testing.gguf_require_ints(reader, "k", 2, 0, 1)


def test_a_scalar_is_not_repeated_without_end(tmp_path):
    with pytest.raises(errors.ModelFormatError, match="far more than any model has"):
        _testing.gguf_require_ints(with_key(tmp_path, g.U32, 1), "k", 2**40, 0, 1)


def test_missing_keys_are_named(tmp_path):
    reader = with_key(tmp_path, g.U32, 1)
    for look_up in (
        lambda: _testing.gguf_require_int(reader, "a.b", 0, 1),
        lambda: _testing.gguf_require_float(reader, "a.b"),
        lambda: _testing.gguf_require_string(reader, "a.b"),
        lambda: _testing.gguf_require_ints(reader, "a.b", 2, 0, 1),
    ):
        with pytest.raises(errors.ModelFormatError, match=r"key 'a\.b' is missing"):
            look_up()


# Damaged files


@pytest.mark.parametrize("number", [4, 5, 31, 32, 33, 36, 37, 38])
def test_withdrawn_types_are_refused_by_name(tmp_path, number):
    path = write(tmp_path / "m.gguf", g.gguf([], [g.tensor("t", (256,), number)], bytes(1024)))
    with pytest.raises(errors.UnsupportedError, match=r"withdrawn (Q4_2|Q4_3|Q4_0_[48]_[48]|IQ4_NL_[48]_[48]) "):
        GgufReader(path)


@pytest.mark.parametrize("number", [77, 1000, 2**31 - 1, 2**31, 2**32 - 1])
def test_unknown_types_are_refused_by_number(tmp_path, number):
    path = write(tmp_path / "m.gguf", g.gguf([], [g.tensor("t", (256,), number)], bytes(1024)))
    with pytest.raises(errors.UnsupportedError, match=f"unknown type {number}"):
        GgufReader(path)


@pytest.mark.parametrize(("number", "ne0"), [(8, 33), (8, 16), (12, 32), (12, 257), (40, 32)])
def test_rows_must_be_whole_blocks(tmp_path, number, ne0):
    path = write(tmp_path / "m.gguf", g.gguf([], [g.tensor("t", (ne0, 2), number)], bytes(1024)))
    with pytest.raises(errors.ModelFormatError, match=f"rows of {ne0} elements are not whole blocks"):
        GgufReader(path)


@pytest.mark.parametrize("value", [2, 128, 255])
def test_bool_bytes_other_than_0_and_1(tmp_path, value):
    for i, entry in enumerate([g.key("k", g.BOOL, value), g.key("k", g.ARRAY, g.array(g.BOOL, [0, 1, value]))]):
        path = write(tmp_path / f"{i}.gguf", g.gguf([entry]))
        with pytest.raises(errors.ModelFormatError, match=f"'k': a bool must be 0 or 1 but is {value}"):
            GgufReader(path)


def test_arrays_of_arrays(tmp_path):
    inner = g.array(g.U8, [1])
    entry = g.text("k") + struct.pack("<IIQ", g.ARRAY, g.ARRAY, 1) + inner
    with pytest.raises(errors.UnsupportedError, match="arrays of arrays"):
        GgufReader(write(tmp_path / "m.gguf", g.gguf([entry])))


@pytest.mark.parametrize("kind", [13, 255, 2**32 - 1])
def test_unknown_value_types(tmp_path, kind):
    for i, entry in enumerate([struct.pack("<I", kind), struct.pack("<II", g.ARRAY, kind)]):
        path = write(tmp_path / f"{i}.gguf", g.gguf([g.text("k") + entry + bytes(16)]))
        with pytest.raises(errors.ModelFormatError, match=f"'k': value type {kind} is unknown"):
            GgufReader(path)


def test_names_at_their_longest(tmp_path):
    keys = [g.key("k" * 65535, g.U8, 1)]
    path = write(tmp_path / "m.gguf", g.gguf(keys, [g.tensor("t" * 64, (8,))], bytes(32)))
    assert GgufReader(path).value("k" * 65535) == 1
    too_long = [g.gguf([g.key("k" * 65536, g.U8, 1)]), g.gguf([], [g.tensor("t" * 65, (8,))], bytes(32))]
    for content in too_long:
        with pytest.raises(errors.ModelFormatError, match="at most"):
            GgufReader(write(tmp_path / "m.gguf", content))


@pytest.mark.parametrize(
    "name",
    [
        b"\xff",
        b"a\0b",
        b"a\x1b[2Jb",
        b"\xc2\x9b31m",
        b"\xed\xa0\x80",
        b"a\nb",
        b"\xc0\x80",
        "a\u202eb".encode(),
        "\ufeffa".encode(),
    ],
)
def test_names_with_control_characters_are_refused_and_shown_safely(tmp_path, name):
    for content in (g.gguf([g.key(name, g.U8, 1)]), g.gguf([], [g.tensor(name, (8,))], bytes(32))):
        with pytest.raises(errors.ModelFormatError, match="not plain UTF-8 text") as caught:
            GgufReader(write(tmp_path / "m.gguf", content))
        assert g.is_safe_line(str(caught.value))


def test_every_truncation_of_a_file_is_refused(tmp_path):
    content = g.gguf(
        [g.key("a", g.U32, 1), g.key("b", g.ARRAY, g.array(g.STRING, ["x", "yz"])), g.key("c", g.STRING, "text")],
        [g.tensor("t", (8, 2)), g.tensor("u", (32,), g.GGML_Q8_0, 64)],
        bytes(64 + 34),
    )
    path = write(tmp_path / "m.gguf", content)
    assert len(GgufReader(path).tensors) == 2
    for size in range(len(content)):
        write(tmp_path / "m.gguf", content[:size])
        with pytest.raises(errors.ModelFormatError) as caught:
            GgufReader(path)
        if size > 4:
            assert "download" in str(caught.value)


def test_every_changed_byte_opens_or_is_refused(tmp_path):
    content = g.gguf(
        [g.key("general.alignment", g.U32, 32), g.key("b", g.ARRAY, g.array(g.STRING, ["x", "yz"]))],
        [g.tensor("t", (8, 2)), g.tensor("u", (32,), g.GGML_Q8_0, 64)],
        bytes(64 + 34),
    )
    path = tmp_path / "m.gguf"
    n_refused = 0
    for i in range(len(content) - 98):
        for flip in (0x01, 0x80, 0xFF):
            changed = bytearray(content)
            changed[i] ^= flip
            path.write_bytes(changed)
            try:
                reader = GgufReader(path)
                reader.metadata()
                for tensor in reader.tensors:
                    assert len(reader.tensor_bytes(tensor.name)) == tensor.size_bytes
            except errors.Error as error:
                assert g.is_safe_line(str(error))
                n_refused += 1
    assert n_refused > 100


# Files that are something else


def zip_bytes(tmp_path: Path) -> bytes:
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("data.pkl", "x")
    return (tmp_path / "z.zip").read_bytes()


SAFETENSORS = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
OTHERS = {
    "safetensors file": len(SAFETENSORS).to_bytes(8, "little") + SAFETENSORS + bytes(4),
    "Python pickle": pickle.dumps({"w": 1}, protocol=2),
    "Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n",
    "HTML page": b"\xef\xbb\xbf \r\n<!DOCTYPE HTML>\n<html></html>",
    "this is an HTML page": b"<html><head><title>404</title></head></html>",
    "XML page": b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>",
    "JSON text": b'{"error":"Repository not found"}',
    "starts with zeros": bytes(5000),
    "gzip archive": b"\x1f\x8b\x08\0rest",
    "GGML": b"tjgg\x03\0\0\0",
    "starts with 'ABCD' instead of 'GGUF'": b"ABCD rest of it",
    "starts with '\\x1b[2J' instead": b"\x1b[2J rest of it",
    "starts with 'GG'": b"GG",
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_files_are_named(tmp_path, what):
    path = write(tmp_path / "m.gguf", OTHERS[what])
    with pytest.raises(errors.ModelFormatError) as caught:
        GgufReader(path)
    assert what in str(caught.value)
    assert g.is_safe_line(str(caught.value))


def test_a_zip_archive_is_named(tmp_path):
    with pytest.raises(errors.ModelFormatError, match="zip archive"):
        GgufReader(write(tmp_path / "m.gguf", zip_bytes(tmp_path)))


@pytest.mark.parametrize("name", ["m.gguf-split-b", "m.gguf.part2of3"])
def test_a_piece_cut_by_bytes_is_named(tmp_path, name):
    with pytest.raises(errors.ModelFormatError, match="join the pieces in order"):
        GgufReader(write(tmp_path / name, b"\x17" * 100))


def test_an_empty_file(tmp_path):
    with pytest.raises(errors.ModelFormatError, match="empty; download it again"):
        GgufReader(write(tmp_path / "m.gguf", b""))


def test_paths_that_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "socket"))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    write(tmp_path / "file", b"x")
    cases = {
        tmp_path / "absent.gguf": "no such file; check the path",
        tmp_path / "file" / "below": "no such file; check the path",
        tmp_path: "this is a directory; give the path of the .gguf file",
        tmp_path / "pipe": "not a regular file",
        tmp_path / "socket": "not a regular file",
        tmp_path / "loop": "check the path and its links",
        tmp_path / ("n" * 300): "check the path and its links",
        Path("/dev/zero"): "not a regular file",
    }
    for path, text in cases.items():
        with pytest.raises(errors.InvalidRequestError, match=text):
            GgufReader(path)
    server.close()
    with pytest.raises(errors.InvalidRequestError, match="the path is empty"):
        GgufReader("")


def test_a_file_that_may_not_be_read(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(g.gguf())
    path.chmod(0)
    user = os.geteuid()
    if user == 0:  # root may read everything: be somebody else for the moment
        os.seteuid(65534)
    try:
        with pytest.raises(errors.InvalidRequestError, match="no permission"):
            GgufReader(path)
    finally:
        os.seteuid(user)


# Faults while reading


def model_of_some_size(tmp_path: Path) -> str:
    tokens = g.key("tokens", g.ARRAY, g.array(g.STRING, [f"token {i}" for i in range(3000)]))
    return write(tmp_path / "m.gguf", g.gguf([tokens], [g.tensor("t", (256,))], bytes(range(256)) * 4))


@pytest.mark.parametrize("max_read_bytes", [1, 7, 4096])
@pytest.mark.parametrize("interrupt_every", [0, 2])
def test_short_and_interrupted_reads_are_continued(tmp_path, max_read_bytes, interrupt_every):
    faults = _testing.Faults(max_read_bytes=max_read_bytes, interrupt_every=interrupt_every)
    reader = _testing.open_gguf_with_faults(model_of_some_size(tmp_path), faults)
    assert reader.value("tokens")[-1] == "token 2999"
    assert reader.tensor_bytes("t").tobytes() == bytes(range(256)) * 4


def test_a_read_error_in_the_metadata_names_file_and_place(tmp_path):
    path = model_of_some_size(tmp_path)
    with pytest.raises(errors.DeviceError, match=r"at byte 5000 failed: Input/output error; check the disk") as caught:
        _testing.open_gguf_with_faults(path, _testing.Faults(fail_at=5000))
    assert path in str(caught.value)


def test_a_file_cut_while_it_is_opened(tmp_path):
    path = model_of_some_size(tmp_path)
    with pytest.raises(errors.DeviceError, match="now ends at byte 100 but had"):
        _testing.open_gguf_with_faults(path, _testing.Faults(end_at=100))


def test_a_tensor_read_error_leaves_the_reader_usable(tmp_path):
    path = tmp_path / "m.gguf"
    tensors = [g.tensor("a", (1 << 19,)), g.tensor("b", (8,), offset=1 << 21)]
    write(path, g.gguf([], tensors, bytes((1 << 21) + 32)))
    fail_at = GgufReader(path).tensors[1].offset
    reader = _testing.open_gguf_with_faults(str(path), _testing.Faults(fail_at=fail_at))
    with pytest.raises(errors.DeviceError, match=f"at byte {fail_at} failed"):
        reader.tensor_bytes("b")
    assert len(reader.tensor_bytes("a")) == 1 << 21


def test_a_file_cut_after_it_was_opened(tmp_path):
    path = model_of_some_size(tmp_path)
    reader = GgufReader(path)
    os.truncate(path, 1000)
    assert reader.value("tokens")[-1] == "token 2999"
    with pytest.raises(errors.DeviceError, match="the file now ends at byte"):
        reader.tensor_bytes("t")
    with pytest.raises(errors.DeviceError, match="has become shorter"):
        _testing.mapped_tensor(reader, "t")


def test_reads_at_offsets(tmp_path):
    content = bytes(range(256)) * 40
    path = write(tmp_path / "f", content)
    assert _testing.map_file(path) == content
    for offset, size in [(0, 0), (0, 1), (5, 300), (len(content) - 1, 1), (len(content), 0)]:
        faults = _testing.Faults(max_read_bytes=100)
        assert _testing.read_file(path, offset, size, faults) == content[offset : offset + size]
