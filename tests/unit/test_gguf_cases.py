"""Faults people met when loading GGUF files, rows G1 to G16 of docs/cases.md: a file opens or says what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf_bytes as g
import pytest
from expertree import errors
from expertree._core import GgufReader

REMEDIES = ("download", "open the first", "use a", "convert", "names back", "get it from", "get the file from")


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def refusal(tmp_path: Path, content: bytes, kind: type[errors.Error] = errors.ModelFormatError) -> str:
    """What the file is refused with, after its path; every message names the file and a remedy."""
    path = write(tmp_path / "m.gguf", content)
    with pytest.raises(kind) as caught:
        GgufReader(path)
    message = str(caught.value)
    assert path in message
    assert any(remedy in message for remedy in REMEDIES), message
    return message.replace(path, "")


# G1: a zero dimension


@pytest.mark.parametrize("ne", [(32, 0), (0,), (0, 0), (32, 2, 0, 2), (0, 1, 1, 1)])
def test_g1_zero_dimension(tmp_path, ne):
    message = refusal(tmp_path, g.gguf([], [g.tensor("t", ne)], bytes(256)))
    assert "'t'" in message
    assert f"dimension {ne.index(0)} of the tensor is 0" in message


def test_g1_zero_dimension_at_end_of_file(tmp_path):
    refusal(tmp_path, g.gguf([], [g.tensor("t", (32, 0))]))


# G2: empty names


def test_g2_empty_key(tmp_path):
    assert "key 1 of 1: the name is empty" in refusal(tmp_path, g.gguf([g.key("", g.U8, 1)]))


def test_g2_empty_key_in_the_37_byte_file(tmp_path):
    content = g.gguf([g.key("", g.U8, 1)])
    assert len(content) == 37
    assert "the name is empty" in refusal(tmp_path, content)


def test_g2_empty_tensor_name(tmp_path):
    message = refusal(tmp_path, g.gguf([], [g.tensor("", (8,))], bytes(32)))
    assert "tensor 1 of 1: the name is empty" in message


# G4: products that wrap


@pytest.mark.parametrize(
    "ne",
    [
        (2**42 + 1, 2**22),  # product 2**64 + 2**22
        (2**32 + 32, 2**32),
        (2**63 - 1, 2),
        (2**64 - 32, 1),
        (2**63, 1),
        (2**21, 2**21, 2**21, 2),
    ],
)
def test_g4_dims_product_wraps(tmp_path, ne):
    message = refusal(tmp_path, g.gguf([], [g.tensor("t", ne)], bytes(1024)))
    assert "tensor 't'" in message
    assert "elements are more than 64 bits count" in message


def test_g4_dims_product_of_small_elements_wraps(tmp_path):
    # 2**64 elements of Q2_K are fewer than 2**64 bytes.
    message = refusal(tmp_path, g.gguf([], [g.tensor("t", (2**33, 2**31), 10)], bytes(1024)))
    assert "elements are more than 64 bits count" in message


@pytest.mark.parametrize("ne", [(2**62, 1), (2**61, 2), (2**62 + 8,)])  # the last wraps to 32 bytes
def test_g4_bytes_wrap(tmp_path, ne):
    message = refusal(tmp_path, g.gguf([], [g.tensor("t", ne)], bytes(64)))
    assert "bytes are more than 64 bits count" in message


@pytest.mark.parametrize(
    ("offset", "ne"),
    [(2**64 - 32, (8,)), (2**64 - 64, (8,)), (2**64 - 128, (16,)), (2**64 - 128, (24,)), (2**64 - 96, (16,))],
)
def test_g4_offset_plus_size_wraps(tmp_path, offset, ne):
    content = g.gguf([], [g.tensor("t", ne, offset=offset)], bytes(128))
    assert len(content) == 64 + 128  # the data starts at 64
    assert "lies beyond what 64 bits count" in refusal(tmp_path, content)


# G5: alignment


def aligned(alignment: int) -> bytes:
    tensors = [g.tensor("a", (1,)), g.tensor("b", (2,), offset=alignment)]
    data = b"\x01\0\0\0".ljust(alignment, b"\0") + bytes(range(8))
    keys = [g.key("general.alignment", g.U32, alignment)]
    return g.gguf(keys, tensors, data, alignment=alignment)


@pytest.mark.parametrize("alignment", [8, 16, 32, 64, 4096, 65536])
def test_g5_alignment_accepted(tmp_path, alignment):
    reader = GgufReader(write(tmp_path / "m.gguf", aligned(alignment)))
    assert reader.alignment == alignment
    assert bytes(reader.tensor_bytes("b")) == bytes(range(8))


@pytest.mark.parametrize("alignment", [0, 1, 3, 4, 24, 65537, 131072, 2**31, 2**32 - 1])
def test_g5_alignment_refused(tmp_path, alignment):
    message = refusal(
        tmp_path, g.gguf([g.key("general.alignment", g.U32, alignment)], [g.tensor("t", (8,))], bytes(64))
    )
    assert "general.alignment" in message
    assert str(alignment) in message


def test_g5_offset_not_aligned(tmp_path):
    message = refusal(tmp_path, g.gguf([], [g.tensor("t", (8,), offset=8)], bytes(64)))
    assert "offset 8 is not a multiple of the alignment 32" in message


# G6: a key of another type


@pytest.mark.parametrize(
    "entry",
    [
        g.key("general.alignment", g.I32, 32),
        g.key("general.alignment", g.U64, 32),
        g.key("general.alignment", g.F32, 32.0),
        g.key("general.alignment", g.STRING, "32"),
        g.key("general.alignment", g.ARRAY, g.array(g.U32, [32])),
        g.key("general.alignment", g.BOOL, 1),
    ],
)
def test_g6_alignment_of_wrong_type(tmp_path, entry):
    message = refusal(tmp_path, g.gguf([entry]))
    assert "general.alignment" in message
    assert "uint32" in message


@pytest.mark.parametrize("kind", [g.F32, g.BOOL, g.STRING])
@pytest.mark.parametrize("name", ["split.count", "split.no", "split.tensors.count"])
def test_g6_split_keys_of_wrong_type(tmp_path, name, kind):
    keys = {k: g.key(k, g.U16, v) for k, v in (("split.no", 0), ("split.count", 2), ("split.tensors.count", 0))}
    keys[name] = g.key(name, kind, "2" if kind == g.STRING else 1)
    message = refusal(tmp_path, g.gguf(list(keys.values())))
    assert name in message
    assert "must be an integer but is" in message


# G8: counts and lengths far beyond the file

HUGE = {
    "string length": g.gguf([g.text("k") + b"\x08\0\0\0" + g.text("x", length=2**40)]),
    "key length": g.gguf([g.text("k", length=2**40)]),
    "string length wraps": g.gguf([g.text("k") + b"\x08\0\0\0" + g.text("x", length=2**64 - 1)]),
    "key count": g.gguf(n_keys=2**40),
    "key count wraps": g.gguf(n_keys=2**64 - 1),
    "tensor count": g.gguf(n_tensors=2**40),
    "tensor count wraps": g.gguf(n_tensors=2**64 - 1),
    "array count": g.gguf([g.key("k", g.ARRAY, g.array(g.U64, [1], count=2**61))]),
    "bool array count": g.gguf([g.key("k", g.ARRAY, g.array(g.BOOL, [1], count=2**40))]),
    "string array count": g.gguf([g.key("k", g.ARRAY, g.array(g.STRING, ["a"], count=2**40))]),
    "tensor name length": g.gguf([], [g.text("t", length=2**40) + bytes(40)]),
    "tensor elements": g.gguf([], [g.tensor("t", (2**40,))], bytes(64)),
}

OPEN_AND_PRINT_PEAK = """
import resource, sys
from expertree import errors
from expertree._core import GgufReader
def peak_kib(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak_kib()
for path in sys.argv[1:]:
    try:
        GgufReader(path)
    except errors.Error:
        continue
    raise SystemExit("opened " + path)
print(peak_kib() - before)
"""


@pytest.mark.parametrize("what", HUGE)
def test_g8_huge_counts_are_refused(tmp_path, what):
    message = refusal(tmp_path, HUGE[what].ljust(160, b"\0"))
    assert "incomplete" in message or "damaged" in message


def test_g8_huge_counts_take_no_memory(tmp_path):
    paths = [write(tmp_path / f"{i}.gguf", content.ljust(160, b"\0")) for i, content in enumerate(HUGE.values())]
    done = subprocess.run(
        [sys.executable, "-c", OPEN_AND_PRINT_PEAK, *paths], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 50 * 1024


def test_g8_metadata_larger_than_a_gibibyte_is_refused_unread(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(g.gguf([g.text("k") + b"\x08\0\0\0" + g.text("x", length=2**33)]))
    with path.open("r+b") as file:
        file.truncate(2**34)  # sparse
    with pytest.raises(errors.UnsupportedError, match="metadata is larger"):
        GgufReader(str(path))


# G9: dimensions beyond the array


@pytest.mark.parametrize("n_dims", [0, 5, 9, 2**31, 2**32 - 1])
def test_g9_number_of_dimensions(tmp_path, n_dims):
    ne = [1] * min(n_dims, 9)
    message = refusal(tmp_path, g.gguf([], [g.tensor("t", ne, n_dims=n_dims)], bytes(64)))
    assert f"{n_dims} dimensions" in message


# G11: names twice


def test_g11_tensor_twice(tmp_path):
    tensors = [g.tensor("blk.0.attn_q.weight", (8,)), g.tensor("x", (8,), offset=32)]
    tensors.append(g.tensor("blk.0.attn_q.weight", (8,), offset=64))
    message = refusal(tmp_path, g.gguf([], tensors, bytes(96)))
    assert "'blk.0.attn_q.weight' is there twice" in message


def test_g11_key_twice(tmp_path):
    keys = [g.key("a.b", g.U8, 1), g.key("c", g.U8, 1), g.key("a.b", g.U8, 1)]
    assert "'a.b' is there twice" in refusal(tmp_path, g.gguf(keys))


# G13: a tensor at offset 0


def test_g13_tensor_at_offset_zero(tmp_path):
    reader = GgufReader(write(tmp_path / "m.gguf", g.gguf([], [g.tensor("t", (8,), offset=0)], bytes(range(32)))))
    assert bytes(reader.tensor_bytes("t")) == bytes(range(32))


# G14: split files


def write_parts(folder: Path, *, count: int = 3, n_tensors: int = 3, stem: str = "tiny") -> list[Path]:
    paths = []
    for no in range(count):
        keys = g.split_keys(no, count, n_tensors)
        if no == 0:
            keys.append(g.key("general.architecture", g.STRING, "qwen3moe"))
        path = folder / g.split_name(stem, no, count)
        path.write_bytes(g.gguf(keys, [g.tensor(f"t{no}", (8,))], bytes([no]) * 32))
        paths.append(path)
    return paths


def refused_part(path: Path) -> str:
    with pytest.raises(errors.ModelFormatError) as caught:
        GgufReader(str(path))
    return str(caught.value)


def test_g14_three_parts(tmp_path):
    paths = write_parts(tmp_path)
    reader = GgufReader(str(paths[0]))
    assert reader.paths == [str(path) for path in paths]
    assert reader.value("general.architecture") == "qwen3moe"
    assert [(t.name, t.file_index) for t in reader.tensors] == [("t0", 0), ("t1", 1), ("t2", 2)]
    assert [bytes(reader.tensor_bytes(f"t{no}")) for no in range(3)] == [bytes([no]) * 32 for no in range(3)]
    assert reader.file_bytes == sum(path.stat().st_size for path in paths)


def test_g14_part_missing(tmp_path):
    paths = write_parts(tmp_path)
    paths[1].unlink()
    message = refused_part(paths[0])
    assert "part 2 of 3" in message
    assert str(paths[1]) in message
    assert "missing" in message


def test_g14_opened_from_part_2(tmp_path):
    paths = write_parts(tmp_path)
    message = refused_part(paths[1])
    assert "split file part, number 2 of 3" in message
    assert f"open the first part, '{paths[0]}'" in message


def test_g14_tensor_counts_disagree(tmp_path):
    paths = write_parts(tmp_path, n_tensors=4)
    message = refused_part(paths[0])
    assert "split.tensors.count is 4 but the parts hold 3 tensors" in message


def test_g14_part_of_another_set(tmp_path):
    paths = write_parts(tmp_path)
    paths[2].write_bytes(g.gguf(g.split_keys(2, 3, 7), [g.tensor("t2", (8,))], bytes(32)))
    message = refused_part(paths[0])
    assert str(paths[2]) in message
    assert "split.tensors.count is 7 but the first part says 3" in message


def test_g14_part_counts_disagree(tmp_path):
    paths = write_parts(tmp_path)
    paths[1].write_bytes(g.gguf(g.split_keys(1, 4, 3), [g.tensor("t1", (8,))], bytes(32)))
    message = refused_part(paths[0])
    assert str(paths[1]) in message
    assert "part 2 of 4" in message


def test_g14_parts_swapped(tmp_path):
    paths = write_parts(tmp_path)
    first, second = paths[1].read_bytes(), paths[2].read_bytes()
    paths[1].write_bytes(second)
    paths[2].write_bytes(first)
    assert "part 2 of 3 is expected here but the file says it is part 3 of 3" in refused_part(paths[0])


def test_g14_part_without_split_keys(tmp_path):
    paths = write_parts(tmp_path)
    paths[1].write_bytes(g.gguf([], [g.tensor("t1", (8,))], bytes(32)))
    assert str(paths[1]) in refused_part(paths[0])


def test_g14_same_tensor_in_two_parts(tmp_path):
    paths = write_parts(tmp_path)
    paths[2].write_bytes(g.gguf(g.split_keys(2, 3, 3), [g.tensor("t1", (8,))], bytes(32)))
    message = refused_part(paths[0])
    assert "'t1' is there twice" in message
    assert str(paths[1]) in message
    assert str(paths[2]) in message


def test_g14_first_part_without_tensors(tmp_path):
    paths = write_parts(tmp_path, n_tensors=2)
    paths[0].write_bytes(g.gguf(g.split_keys(0, 3, 2)))
    assert [t.name for t in GgufReader(str(paths[0])).tensors] == ["t1", "t2"]


def test_g14_a_set_of_one_part_needs_no_name(tmp_path):
    content = g.gguf(g.split_keys(0, 1, 1), [g.tensor("t", (8,))], bytes(32))
    assert len(GgufReader(write(tmp_path / "m.gguf", content)).tensors) == 1


@pytest.mark.parametrize(("no", "count"), [(3, 3), (65535, 2)])
def test_g14_part_number_beyond_the_count(tmp_path, no, count):
    assert f"split.no {no} of {count} parts" in refusal(tmp_path, g.gguf(g.split_keys(no, count, 0)))


# G15: parts joined with cat, or renamed


def test_g15_joined_with_cat(tmp_path):
    paths = write_parts(tmp_path, count=2, n_tensors=2)
    joined = b"".join(path.read_bytes() for path in paths)
    message = refusal(tmp_path, joined)
    assert "this is a split file part" in message
    assert "cat" in message
    assert "llama-gguf-split --merge" in message


def test_g15_joined_with_cat_under_the_first_name(tmp_path):
    paths = write_parts(tmp_path, count=2, n_tensors=2)
    paths[0].write_bytes(b"".join(path.read_bytes() for path in paths))
    assert "this is a split file part" in refused_part(paths[0])


def test_g15_joined_files_that_are_no_parts(tmp_path):
    one = g.gguf([], [g.tensor("t", (8,))], bytes(32))
    assert "a second GGUF file begins" in refusal(tmp_path, one + one)


def test_g15_first_part_renamed(tmp_path):
    content = write_parts(tmp_path)[0].read_bytes()
    message = refusal(tmp_path, content)
    assert "this is a split file part" in message
    assert "-00001-of-00003.gguf" in message


# G16: byte order and versions


@pytest.mark.parametrize("version", [1, 2, 3])
def test_g16_big_endian(tmp_path, version):
    content = b"GGUF" + version.to_bytes(4, "big") + (0).to_bytes(16, "big")
    assert "big-endian" in refusal(tmp_path, content, errors.UnsupportedError)


@pytest.mark.parametrize("version", [1, 4, 99])
def test_g16_version_refused(tmp_path, version):
    message = refusal(tmp_path, g.gguf(version=version), errors.UnsupportedError)
    assert f"version {version}" in message
    assert "big-endian" not in message


@pytest.mark.parametrize("version", [0, 0x01010101])
def test_g16_version_absurd(tmp_path, version):
    assert str(version) in refusal(tmp_path, g.gguf(version=version))


@pytest.mark.parametrize("version", [2, 3])
def test_g16_version_accepted(tmp_path, version):
    content = g.gguf([g.key("a", g.U8, 7)], [g.tensor("t", (8,))], bytes(32), version=version)
    reader = GgufReader(write(tmp_path / "m.gguf", content))
    assert reader.version == version
    assert reader.value("a") == 7
