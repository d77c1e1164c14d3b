"""A loaded model is the file that was loaded, whatever becomes of its path."""

from __future__ import annotations

from pathlib import Path

import expertree
import pytest
from chat_model import TEMPLATE, write_chat_model
from tiny_model import TinyModel

CHAT = [{"role": "user", "content": "hello"}]


def text_of(model: expertree.Model) -> str:
    return model.generate("hello", max_tokens=4, temperature=0.0).text


def test_the_working_folder_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_chat_model(tmp_path / "m.gguf", arch="qwen3moe")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    model = expertree.Model("m.gguf", record="record.json")
    expected = text_of(expertree.Model(tmp_path / "m.gguf"))
    monkeypatch.chdir("elsewhere")
    assert text_of(model) == expected
    assert model.chat(CHAT, max_tokens=2).tokens
    model.save_record()
    assert (tmp_path / "record.json").exists()


@pytest.mark.parametrize("arch", ["llama", "qwen3moe"])
def test_the_file_may_go(tmp_path: Path, arch: str) -> None:
    path = write_chat_model(tmp_path / "m.gguf", arch=arch)
    expected = text_of(expertree.Model(path))
    model = expertree.Model(path, ram=expertree.Model(path).experts.get("least_bytes", "auto"))
    path.unlink()
    assert text_of(model) == expected
    assert model.chat(CHAT, max_tokens=2).tokens
    assert model.metadata["general.architecture"] == arch


def test_another_file_in_its_place_is_not_looked_at(tmp_path: Path) -> None:
    path = write_chat_model(tmp_path / "m.gguf")
    model = expertree.Model(path)
    write_chat_model(tmp_path / "other.gguf", template="another").replace(path)
    assert model.chat_template.source == TEMPLATE


def test_a_file_replaced_while_it_is_loaded_is_the_first_one_throughout(tmp_path: Path) -> None:
    path = write_chat_model(tmp_path / "m.gguf")
    expected = text_of(expertree.Model(path))
    other = write_chat_model(tmp_path / "other.gguf", template="another", arch="qwen3moe")

    def replace(n_read: int, n_all: int) -> None:
        if other.exists():
            other.replace(path)

    model = expertree.Model(path, progress=replace)
    assert not other.exists()
    assert text_of(model) == expected
    assert model.chat_template.source == TEMPLATE


def test_the_block_that_drafts_is_the_models_own(tmp_path: Path) -> None:
    """Its file may go, too."""
    path = TinyModel(arch="qwen35moe", n_nextn=1).write(tmp_path / "m.gguf")
    model = expertree.Model(path)
    path.unlink()
    session = model.session(draft="mtp", temperature=0.0)
    session.prefill([1, 2, 3])
    assert session.step().tokens
