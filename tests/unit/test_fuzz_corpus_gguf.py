"""Every kept input of the GGUF fuzzer opens or raises one of expertree's errors (tests/fuzz/run_gguf.sh finds more)."""

from __future__ import annotations

import io
from pathlib import Path

import gguf_bytes as g
import pytest
from expertree import errors
from expertree._core import GgufReader
from expertree.inspect_model import describe, render
from expertree.machine_memory import MachineMemory
from rich.console import Console

CORPUS = Path(__file__).resolve().parents[1] / "fuzz" / "corpus" / "gguf"
INPUTS = sorted(CORPUS.iterdir())
SEPARATOR = b"|NEXT-PART|"  # as in tests/fuzz/fuzz_gguf.cpp

NO_MEMORY = MachineMemory(None, None, None, None)


def test_the_corpus_is_there_and_small():
    assert len(INPUTS) > 50
    assert sum(path.stat().st_size for path in INPUTS) < 150_000


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.name[:16])
def test_input_opens_or_is_refused(tmp_path, path):
    parts = path.read_bytes().split(SEPARATOR)
    for no, part in enumerate(parts):
        (tmp_path / g.split_name("m", no, len(parts))).write_bytes(part)
    try:
        reader = GgufReader(tmp_path / g.split_name("m", 0, len(parts)))
    except errors.Error as error:
        assert g.is_safe_line(str(error))
        return
    render(describe(reader.paths[0], memory=NO_MEMORY), Console(file=io.StringIO()))
    assert list(reader.metadata()) == reader.keys
    for tensor in reader.tensors:
        assert len(reader.tensor_bytes(tensor.name)) == tensor.size_bytes


def test_some_inputs_open_and_some_are_refused(tmp_path):
    n_opened = 0
    for path in INPUTS:
        (tmp_path / "m-00001-of-00001.gguf").write_bytes(path.read_bytes())
        try:
            GgufReader(tmp_path / "m-00001-of-00001.gguf")
            n_opened += 1
        except errors.Error:
            pass
    assert 5 < n_opened < len(INPUTS) - 5
