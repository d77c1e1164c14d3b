"""What README.md shows works: its Python blocks and `expertree` commands are run, its `make` targets and links exist.

The rule: all of it is run in a folder that holds a tiny random MoE chat model under the name model.gguf, and a recorded
run of it under the name trace.npz, which are the names that the README uses; the Python blocks one after another in one
namespace. The default model stands for the same file, so nothing is fetched.
"""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import expertree
import pytest
from chat_model import write_chat_model
from expertree.cli import main
from expertree.comparison.drafts import Draft
from expertree.comparison.recorder import Recorder
from expertree.models.registry import NamedModel

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted(
    str(path.relative_to(ROOT))
    for folder in (".", "docs", "docs/gpu", "models", "models/default", "cuda")
    for path in (ROOT / folder).glob("*.md")
)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def command_lines(text: str, program: str) -> list[str]:
    """Lines of sh blocks that run a program; comments are taken off by shlex."""
    return [line for block in blocks(text, "sh") for line in block.splitlines() if line.split(" ")[0] == program]


COMMANDS = command_lines(README, "expertree")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the rule above, as the current one."""
    path = write_chat_model(tmp_path / "model.gguf", arch="qwen3moe", **{"qwen3moe.context_length": 512})
    monkeypatch.setattr(NamedModel, "fetch", lambda self, console: path)
    monkeypatch.setenv("EXPERTREE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    recorder = Recorder(expertree.Model(path), Draft("ngram"))
    recorder.trace([recorder.record("chat", "chat-01", [5, 9, 5, 9], 8)]).save(tmp_path / "trace.npz")
    yield tmp_path


def run_blocks(text: str) -> dict[str, Any]:
    """Runs the Python blocks; their names afterwards. A fault is reported with the block's text."""
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks(text, "python"), 1):
        exec(compile(block, f"block {number}:\n{block}", "exec"), names)
    return names


def test_python_blocks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_blocks(README)
    out = capsys.readouterr().out
    model, session, tokens = names["model"], names["session"], names["tokens"]
    assert isinstance(model, expertree.Model) and model.n_experts == 8
    assert len(names["messages"]) == 3 and names["answer"].text
    assert len(session) == len(tokens) + 2 and "\nTrue\n" in out
    assert names["logits"].shape == (len(tokens), model.n_vocab)
    assert names["experts"].shape == names["weights"].shape == (model.n_layers, len(tokens), model.n_experts_used)
    assert "no-such-file.gguf" in out.rstrip().splitlines()[-1]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(line, monkeypatch) == 0, capsys.readouterr().err
    assert capsys.readouterr().err.count("\n") <= 1  # at most a note, as when an answer stops at -n


def run_command(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit status, with nothing on stdin."""
    monkeypatch.setattr(sys, "argv", shlex.split(line, comments=True))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    try:
        main.run()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def test_every_command_is_shown() -> None:
    known = [*main.app.registered_commands, *main.app.registered_groups]
    assert {shlex.split(line)[1] for line in COMMANDS} == {command.name for command in known}
    assert len(blocks(README, "python")) >= 5


def test_the_options_table_is_what_the_program_has(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = set(re.findall(r"--[a-z][a-z-]*", "".join(re.findall(r"^\| `-.*? \|", README, re.MULTILINE))))
    known: set[str] = set()
    monkeypatch.setenv("COLUMNS", "200")
    for command in ("chat", "generate"):
        assert run_command(f"expertree {command} --help", monkeypatch) == 0
        known |= set(re.findall(r"[ ,](--[a-z][a-z-]*)", capsys.readouterr().out))
    assert known - shown == {"--help", "--debug", "--ignore-eos", "--temp"}
    assert shown <= known


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_make_targets(page: str) -> None:
    lines = command_lines((ROOT / page).read_text(), "make")
    assert lines
    for line in lines:
        command = ["make", "--dry-run", *shlex.split(line, comments=True)[1:]]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{line}: {result.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_links(page: str) -> None:
    text = (ROOT / page).read_text()
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)", text, re.M)}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        elif "://" not in target:
            assert ((ROOT / page).parent / target.split("#")[0]).exists(), target


def test_a_fault_in_a_block_is_noticed(folder: Path) -> None:
    """Negative control."""
    with pytest.raises(AttributeError, match="no_such_call"):
        run_blocks(README.replace("model.generate(", "model.no_such_call(", 1))


def test_a_wrong_option_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    assert run_command("expertree chat model.gguf --colour", monkeypatch) == 2
