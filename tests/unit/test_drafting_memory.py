"""What drafting takes of memory (CASES S21): one copy of weights for all sessions, counted and left room for."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import expertree
import gguf_bytes
import numpy as np
import pytest
from expertree import Model
from expertree.cli.main import app
from expertree.drafting_memory import drafting_bytes, drafting_parts
from expertree.inspect_model import describe
from test_drafters import Trial
from tiny_heads import TinyEagle, TinyMedusa
from typer.testing import CliRunner

Loader = Callable[..., Model]
Tiny = Callable[..., Path]
FIELDS: dict[str, Any] = {"n_layers": 4}


@pytest.fixture
def specs(tiny: Tiny, tmp_path: Path) -> dict[str, str]:
    small = tiny(arch="qwen3moe", n_layers=1, n_embd=32, seed=7)
    return {
        "eagle3": f"eagle3:{TinyEagle().write(tmp_path / 'eagle.gguf')}",
        "medusa": f"medusa:{TinyMedusa().write(tmp_path / 'medusa.gguf')}",
        "model": f"model:{small}",
    }


def test_one_copy_for_all_sessions(tiny: Tiny, specs: dict[str, str]) -> None:
    model = Model(tiny(**FIELDS))
    assert model.drafting_memory == {} and model.memory()["drafting_bytes"] == 0
    for spec in specs.values():
        first = model.session(draft=spec)
        once = dict(model.drafting_memory)
        assert list(once) == [spec] and once[spec] > 10_000
        second = model.session(draft=f"ngram+{spec}")
        branched = first.branch()
        assert model.drafting_memory == once
        assert model.memory()["drafting_bytes"] == once[spec]
        for session in (first, second, branched):
            assert session.stats["drafter_bytes"] > once[spec]
        del first, second, branched, session
        gc.collect()
        assert model.drafting_memory == {}, "kept although nobody drafts with it"


def test_shared_weights_draft_the_same(tiny: Tiny, specs: dict[str, str]) -> None:
    """Sessions that share a draft model have sequences of their own."""
    model = Model(tiny(**FIELDS))
    plain = []
    for seed in range(3):
        session = model.session(seed=seed, temperature=0.8)
        session.prefill([seed, 5, 9])
        for _ in range(30):
            session.step()
        plain.append(session.tokens)
    for spec in specs.values():
        alone = []
        for seed in range(3):
            other = Model(tiny(**FIELDS)).session(draft=spec, select="all", seed=seed, temperature=0.8)
            other.prefill([seed, 5, 9])
            alone.append([other.step().tree.tokens.tolist() for _ in range(8)])  # type: ignore[union-attr]
        sessions = [model.session(draft=spec, select="all", seed=seed, temperature=0.8) for seed in range(3)]
        for seed, session in enumerate(sessions):
            session.prefill([seed, 5, 9])
        for step in range(8):
            for session, trees in zip(sessions, alone, strict=True):
                assert session.step().tree.tokens.tolist() == trees[step]  # type: ignore[union-attr]
        for session, tokens in zip(sessions, plain, strict=True):
            assert session.tokens == tokens[: len(session)]


def test_a_file_that_was_written_anew_is_read_anew(tiny: Tiny, tmp_path: Path) -> None:
    model = Model(tiny(**FIELDS))
    path = tmp_path / "head.gguf"
    shutil.copy(TinyEagle().write(tmp_path / "one.gguf"), path)
    first = model.session(draft=f"eagle3:{path}")
    shutil.copy(TinyEagle(seed=1, n_ff=128).write(tmp_path / "two.gguf"), path)
    second = model.session(draft=f"eagle3:{path}")
    assert second.stats["drafter_bytes"] > first.stats["drafter_bytes"]
    with pytest.raises(expertree.ModelFormatError):
        path.write_bytes(b"GGUF")
        model.session(draft=f"eagle3:{path}")


def test_a_loader_that_fails_leaves_nothing(tiny: Tiny, tmp_path: Path) -> None:
    model = Model(tiny(**FIELDS))
    for _ in range(2):
        with pytest.raises(expertree.Error):
            model.session(draft=f"eagle3:{tmp_path / 'missing.gguf'}")
    assert model.drafting_memory == {}


def test_files_tell_what_a_drafter_will_take(tiny: Tiny, load_tiny: Loader, specs: dict[str, str]) -> None:
    target, n_ctx = tiny(**FIELDS), 2048
    model = load_tiny(FIELDS)
    for spec in specs.values():
        (part,) = drafting_parts(spec, None, target, n_ctx)
        assert part.name == spec
        trial = Trial(model, spec, n_ctx)
        tokens = [i % 96 for i in range(n_ctx - 8)]
        trial.observe(tokens, [512, 512, 512, 504])
        trial.draft([*tokens, 1])
        taken = trial.drafter.memory_bytes
        assert 0.7 * taken < part.weight_bytes + part.state_bytes < 1.4 * taken, spec
    hybrid = tiny(arch="qwen35moe", n_nextn=1)
    (part,) = drafting_parts("mtp", None, hybrid, n_ctx)
    trial = Trial(load_tiny({"arch": "qwen35moe", "n_nextn": 1}), "mtp", n_ctx)
    taken = trial.drafter.memory_bytes
    assert 0.8 * taken < part.weight_bytes + part.state_bytes < 1.7 * taken  # states grow with the text
    both = drafting_parts(f"{specs['eagle3']}+ngram+{specs['medusa']}", None, target, n_ctx)
    assert [p.name for p in both] == [specs["eagle3"], specs["medusa"]]
    for nothing in (None, "none", "ngram", "auto"):
        assert drafting_parts(nothing, None, target, n_ctx) == []


def test_a_budget_leaves_room_for_drafters(tiny: Tiny) -> None:
    """Nothing is left for experts when drafters are to have it all; what was asked for is asked for."""
    path = tiny(**FIELDS)
    everything = Model(path, reserve=1000).experts
    available = int(expertree._core.available_memory_bytes())
    with pytest.raises(expertree.OutOfMemoryError, match=r"drafting [\d.]+ GiB .* another drafter, or set --ram"):
        Model(path, reserve=available)
    assert Model(path, ram="all", reserve=available).experts["budget_bytes"] == everything["all_bytes"]
    assert Model(path, ram=10**9, reserve=available).experts["budget_bytes"] == everything["all_bytes"]
    with pytest.raises(expertree.InvalidRequestError, match="reserve"):
        Model(path, reserve=-1)


def test_the_commands_reckon_with_the_drafter(
    tiny: Tiny, specs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny(**FIELDS)
    assert describe(path, drafting={"eagle3": 1000}).need.drafting_bytes == {"eagle3": 1000}
    plain = json.loads(CliRunner().invoke(app, ["inspect", str(path), "--json"]).output)
    shown = json.loads(CliRunner().invoke(app, ["inspect", str(path), "--json", "--draft", specs["eagle3"]]).output)
    taken = drafting_bytes(specs["eagle3"], None, path, 4096)
    assert shown["need"]["drafting_bytes"] == {"eagle3:eagle.gguf": taken}
    ram = [tier["need_bytes"] for found in (plain, shown) for tier in found["tiers"] if tier["name"] == "RAM"]
    assert ram[1] - ram[0] == taken
    text = CliRunner().invoke(app, ["inspect", str(path), "--draft", specs["eagle3"]]).output
    assert "drafting: eagle3:eagle.gguf" in text
    asked: list[int] = []

    def load(*arguments: Any, **options: Any) -> Any:
        asked.append(options["reserve"])
        raise expertree.DeviceError("far enough")

    monkeypatch.setattr("expertree.cli.loading.Model", load)
    for ram_options, expected in (([], taken), (["--ram", "all"], 0), (["--ram", "auto"], taken)):
        arguments = ["generate", str(path), "-p", "a", "--draft", specs["eagle3"], *ram_options]
        assert CliRunner().invoke(app, arguments).exit_code == 1
        assert asked.pop() == expected


def test_files_that_hold_no_drafter_are_errors(tiny: Tiny, tmp_path: Path) -> None:
    target = tiny(**FIELDS)
    bare = tmp_path / "bare.gguf"
    bare.write_bytes(gguf_bytes.gguf())
    with pytest.raises(expertree.ModelFormatError, match=r"general\.architecture' is missing"):
        drafting_parts(f"model:{bare}", None, target, 512)
    heads = TinyMedusa(tensors={"draft_ids": np.arange(54, dtype=np.int32)})
    flat_output = tiny(**FIELDS, tensors={"output.weight": np.ones(64, np.float32)})
    path = heads.write(tmp_path / "heads.gguf")
    with pytest.raises(expertree.ModelFormatError, match=r"'output\.weight' has shape \[64\]"):
        drafting_parts(f"medusa:{path}", None, flat_output, 512)
    for arguments in (["generate", "-p", "x", "--draft"], ["inspect", "--draft"]):
        result = CliRunner().invoke(app, [arguments[0], str(target), *arguments[1:], f"model:{bare}"])
        assert result.exit_code == 1 and "general.architecture" in result.stderr
