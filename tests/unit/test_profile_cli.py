"""`expertree profile`, and the examples of docs/examples."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_model import write_chat_model
from expertree.profile import Profile
from profiled_model import SPEC

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
Tiny = Callable[..., Path]


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "expertree", *arguments], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chat") / "chat.gguf", arch="qwen3moe")


def test_profile_of_prompts(chat_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["-n", "6", "--out", str(out), "--advice-seconds", "1", "--draft", "ngram"]
    done = cli("profile", str(chat_model), *options)
    assert done.returncode == 0, done.stderr
    assert "Where the time of an answer's token goes" in done.stdout
    assert "What holds it back" in done.stdout
    assert len(done.stdout.splitlines()) <= 40
    assert {"trace.json", "profile.json", "profile.npz"} <= {path.name for path in out.iterdir()}
    profile = Profile.load(out / "profile.npz")
    categories = [session["category"] for session in profile.facts["sessions"]]
    assert categories == ["chat", "code", "mathematics", "summarising", "question-answering", "translation"]
    assert profile.facts["options"]["draft"] == "ngram"
    assert profile.facts["machine"]["read_gb_per_s"] > 0
    assert json.loads((out / "profile.json").read_text())["facts"] == profile.facts


def test_a_profile_is_replayed(chat_model: Path, tmp_path: Path) -> None:
    assert cli("profile", str(chat_model), "-p", "th th", "-n", "8", "--out", str(tmp_path)).returncode == 0
    done = cli("replay", str(tmp_path / "profile.npz"), "--machine", "pcie4,budget=50%", "--select", "all", "--json")
    assert done.returncode == 0, done.stderr
    plain, everything = (json.loads(line) for line in done.stdout.splitlines())
    assert plain["setting"] == "plain"
    assert everything["tokens"] == plain["tokens"] == 7


def test_json_and_a_model_without_a_tokenizer(tiny: Tiny, tmp_path: Path) -> None:
    path = tiny(**SPEC)
    done = cli("profile", str(path), "--json", "-n", "6", "--out", str(tmp_path), "--advice-seconds", "0")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["sessions"][0]["category"] == "random"
    assert {"limit", "changes", "budgets"} == set(facts["advice"])


def test_bad_arguments(chat_model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = cli("profile", str(chat_model), "-n", "2", "--advice-seconds", "0", "--out", str(tmp_path / "file" / "x"))
    assert done.returncode == 1
    assert "--out" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert cli("profile", str(chat_model), "--draft", "nobody").returncode == 2


# ---- The examples


def run_example(name: str, *arguments: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_own_selector(tiny: Tiny, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (str(tiny(**SPEC)), "--draft", "ngram", "--tokens", "24")
    out = run_example("own_selector.py", *arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert [line.split()[0] for line in out.splitlines()[:5]] == ["selector", "plain", "residency", "all", "BestRate"]
    assert "the same" in out.splitlines()[-1]


def test_best_budget(tiny: Tiny, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (str(tiny(**SPEC)), "--ram", "25%", "--tokens", "24")
    out = run_example("best_budget.py", *arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert "100%" in out
    assert "measured" in out.splitlines()[-1]
