"""The command line: exit statuses, one-line errors, JSON, Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import expertree
import numpy as np
import pytest
from chat_model import write_chat_model
from expertree.cli import generate, main
from expertree.cli.terminal import TextStream, strip_control
from expertree.generation import run_generation
from expertree.models import build

CONFORMANCE = Path(__file__).parent.parent / "conformance"
COMMANDS = ("chat", "generate", "inspect", "models")


@dataclass
class Result:
    status: int
    out: str
    err: str


RunCli = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCli:
    """cli(argument, ..., stdin="") runs the program in this process."""

    def run(*arguments: object, stdin: str = "") -> Result:
        monkeypatch.setattr(sys, "argv", ["expertree", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        capsys.readouterr()
        status = 0
        try:
            main.run()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
        return Result(status, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("cli") / "chat.gguf")


def assert_one_line_error(result: Result, expected: str) -> None:
    assert result.status == 1
    assert result.out == ""
    assert result.err.startswith("expertree: error: ")
    assert result.err.count("\n") == 1 and result.err.endswith("\n")
    assert expected in result.err


def test_version(cli: RunCli) -> None:
    assert cli("--version") == Result(0, f"expertree {expertree.__version__}\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_with_examples(cli: RunCli, command: str) -> None:
    result = cli(command, "--help")
    assert result.status == 0
    assert "Examples" in result.out
    assert f"expertree {command}" in result.out


def test_generate_streams_text(cli: RunCli, model: Path) -> None:
    arguments = ("generate", model, "-p", "hello", "-n", 20)
    result = cli(*arguments)
    expected = expertree.Model(model).generate("hello", max_tokens=20).text
    assert result == Result(0, expected if expected.endswith("\n") else expected + "\n", "")
    assert cli(*arguments) == result


def test_generate_json(cli: RunCli, model: Path) -> None:
    result = cli("generate", model, "-p", "hello", "-n", 12, "--temperature", 1, "--seed", 7, "--json", "--ignore-eos")
    expected = expertree.Model(model).generate("hello", max_tokens=12, temperature=1.0, seed=7, ignore_eos=True)
    found = json.loads(result.out)
    assert result.status == 0 and result.err == "" and result.out.count("\n") == 1
    assert found["schema"] == "expertree.generate/1"
    assert found["model"] == str(model)
    assert found["prompt_tokens"] == 5
    assert found["tokens"] == expected.tokens and len(found["tokens"]) == 12
    assert found["text"] == expected.text
    assert found["reasoning"] is None
    assert found["finish_reason"] == "length"
    assert found["stats"]["seed"] == 7
    assert found["stats"]["decode_tokens"] == 12


def test_seed_is_drawn_and_reported(cli: RunCli, model: Path) -> None:
    arguments = ("generate", model, "-p", "hello", "-n", 30, "--temperature", 1, "--json", "--ignore-eos")
    first, second = (json.loads(cli(*arguments).out) for _ in range(2))
    assert first["stats"]["seed"] != second["stats"]["seed"]
    again = json.loads(cli(*arguments, "--seed", first["stats"]["seed"]).out)
    assert again["tokens"] == first["tokens"]


@pytest.mark.parametrize("temperature", [0, 1])
def test_drafting_gives_the_same_text(temperature: int, cli: RunCli, model: Path) -> None:
    arguments = ("generate", model, "-p", "hahaha", "-n", 60, "--temperature", temperature, "--seed", 3, "--json")
    plain = json.loads(cli(*arguments).out)
    for drafting in (["ngram"], ["ngram", "--select", "all"], ["ngram", "--select", "chain:2", "--predict", "none"]):
        drafted = json.loads(cli(*arguments, "--draft", *drafting).out)
        assert (drafted["tokens"], drafted["text"]) == (plain["tokens"], plain["text"])
        assert drafted["stats"]["steps"] == drafted["stats"]["decode_tokens"] - drafted["stats"]["accepted"]
    assert cli("generate", model, "-p", "hello", "--draft", "ngram:4").status == 1
    chat = ("chat", model, "-p", "hello", "-n", 9, "--seed", 3)
    assert cli(*chat, "--draft", "ngram") == cli(*chat)


def test_prompt_from_file_and_stdin(cli: RunCli, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes("é\n".encode() + b"\xff")
    assert json.loads(cli("generate", model, "-f", file, "-n", 1, "--json").out)["prompt_tokens"] == 4
    assert json.loads(cli("generate", model, "-n", 1, "--json", stdin="abc").out)["prompt_tokens"] == 3
    assert json.loads(cli("generate", model, "-f", "-", "-n", 1, "--json", stdin="abc").out)["prompt_tokens"] == 3


def test_generate_chat_applies_the_template(cli: RunCli, model: Path) -> None:
    found = json.loads(cli("generate", model, "--chat", "-p", "hi", "-n", 5, "--json").out)
    assert found["tokens"] == expertree.Model(model).chat([{"role": "user", "content": "hi"}], max_tokens=5).tokens


def test_stop(cli: RunCli, model: Path) -> None:
    text = expertree.Model(model).generate("hello", max_tokens=40).text
    stop = text[10:12]
    found = json.loads(cli("generate", model, "-p", "hello", "-n", 40, "--stop", stop, "--stop", "zzzz", "--json").out)
    assert found["finish_reason"] == "stop"
    assert found["text"] == text[: text.index(stop)]


def test_no_tokens(cli: RunCli, model: Path) -> None:
    assert cli("generate", model, "-p", "hello", "-n", 0) == Result(0, "", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--temperature", "-1"],
        ["--temperature", "nan"],
        ["--temperature", "inf"],
        ["--temperature", "warm"],
        ["--top-p", "2"],
        ["--top-p", "nan"],
        ["--min-p", "-0.1"],
        ["--top-k", "-1"],
        ["--repeat-penalty", "0"],
        ["--presence-penalty", "nan"],
        ["--seed", "-1"],
        ["--seed", str(2**64)],
        ["--threads", "-1"],
        ["--ctx", "0"],
        ["-n", "-1"],
        ["--ram", "lots"],
        ["--policy", "belady"],
        ["--vram", "-1GiB"],
        ["--isa", "z80"],
        ["--cache-type", "q4_0"],
        ["--cache-type-k", "F16"],
        ["-ctv", ""],
        ["-p", "hello", "-f", "file"],
        ["--no-such-option"],
        ["--draft", "nobody"],
        ["--select", "nobody", "--draft", "ngram"],
        ["--select", "all"],
        ["--predict", "last"],
        ["--draft", ""],
        ["--draft", "ngram+"],
        ["--draft", "auto+ngram"],
        ["--ram", "5XB"],
        ["--ram", "50%"],
    ],
)
def test_bad_arguments(cli: RunCli, arguments: list[str]) -> None:
    given = [] if "-p" in arguments else ["-p", "hello"]
    result = cli("generate", "no-model.gguf", *given, *arguments)
    assert result.status == 2
    assert result.out == ""
    assert arguments[0].lstrip("-") in result.err


def test_formats_of_the_cache(cli: RunCli, model: Path) -> None:
    """llama.cpp's names; what is given of keys or values alone goes before what is given of both."""
    need = json.loads(cli("inspect", model, "--json", "--cache-type", "q8_0", "-ctv", "f16").out)["need"]
    assert need["cache_types"] == ["q8_0", "f16"]
    assert need["kv_cache_bytes"] < json.loads(cli("inspect", model, "--json").out)["need"]["kv_cache_bytes"] / 2
    texts = [
        cli("generate", model, "-p", "hello", "-n", "8", *arguments)
        for arguments in ([], ["--cache-type", "f32"], ["-ctk", "f16", "--cache-type-v", "q8_0"])
    ]
    assert all(result.status == 0 and result.out for result in texts)
    assert texts[0].out == texts[1].out
    bench = cli("bench", model, "--test", "decode", "-r", "1", "--ctx", "80", "-ctk", "f16")
    assert "KV cache f16 and f32" in bench.out


@pytest.mark.parametrize("arguments", [["no-such-command"], ["inspect"], ["models", "fetch", "a", "b"]])
def test_bad_commands(cli: RunCli, arguments: list[str]) -> None:
    assert cli(*arguments).status == 2


@pytest.mark.parametrize("command", ["chat", "generate", "inspect"])
def test_files_that_are_no_models(cli: RunCli, command: str, tmp_path: Path) -> None:
    rest = [] if command == "inspect" else ["-p", "hello"]
    (tmp_path / "m.safetensors").write_bytes(
        (64).to_bytes(8, "little") + b'{"x":{"dtype":"F32"}}'.ljust(64) + bytes(64)
    )
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "cut.gguf").write_bytes((CONFORMANCE / "llama.gguf").read_bytes()[:5000])
    cases = {
        "missing.gguf": "no such file",
        "": "is a folder",
        "m.safetensors": "safetensors",
        "empty.gguf": "empty.gguf",
    }
    for name, expected in {**cases, "cut.gguf": "cut.gguf"}.items():
        assert_one_line_error(cli(command, tmp_path / name, *rest), expected)
    assert_one_line_error(cli(command, "gpt-9", *rest), "smollm2-135m")


def test_errors_of_a_run(cli: RunCli, model: Path, tmp_path: Path) -> None:
    generate = ("generate", model, "-p", "hello")
    assert_one_line_error(cli(*generate, "--ctx", 3), "context")
    assert_one_line_error(cli("generate", model, "-p", ""), "empty")
    assert_one_line_error(cli("generate", model, "-f", tmp_path / "missing.txt"), "missing.txt: No such file")
    assert "has no experts" in cli(*generate, "--ram", "1GiB", "-n", 1).err
    assert_one_line_error(cli(*generate, "--pre", "no-such"), "no-such")
    assert cli("chat", model, "-p", " ").status == 2
    without = write_chat_model(tmp_path / "plain.gguf", template=None)
    assert_one_line_error(cli("generate", without, "--chat", "-p", "hello"), "no chat template")
    assert_one_line_error(cli("chat", without, "-p", "hello"), "no chat template")


NUMBERLESS = "99999999999999999999999"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["generate", "-p", "hello", "-n", NUMBERLESS], "max_tokens is 9"),
        (["profile", "-p", "hello", "-n", NUMBERLESS], "max_tokens is 9"),
        (["generate", "-p", "hello", "--ctx", NUMBERLESS], "(--ctx) is 9"),
        (["generate", "-p", "hello", "--threads", NUMBERLESS], "threads is 9"),
        (["generate", "-p", "hello", "--draft", "eagle3:"], "eagle3:FILE"),
        (["inspect", "--draft", "model:"], "model:FILE"),
        (["bench", "--test", "decode", "--ctx", "9"], "larger --ctx"),
        (["profile", "--out", "/dev/null/x"], "--out"),
    ],
)
def test_values_that_make_no_sense(cli: RunCli, model: Path, arguments: list[str], expected: str) -> None:
    result = cli(arguments[0], model, *arguments[1:])
    assert result.status == 1 and "Traceback" not in result.err
    assert result.err.splitlines()[-1].startswith("expertree: error: ") and expected in result.err


def test_bench_refuses_before_it_loads(cli: RunCli) -> None:
    for arguments, expected in (
        (["--test", "decode", "--test", "dance"], "'dance' is no test"),
        (["--ram", "all,50%"], "--speculate"),
    ):
        result = cli("bench", "no-model.gguf", *arguments)
        assert result.status == 2 and expected in " ".join(result.err.split())


@pytest.mark.parametrize("name", ["missing.npz", "", "text.npz", "array.npy", "cut.npz", "changed.npz"])
def test_traces_that_are_none(cli: RunCli, tmp_path: Path, name: str) -> None:
    (tmp_path / "text.npz").write_text("hello, this is text")
    np.save(tmp_path / "array.npy", np.zeros(3))
    np.savez_compressed(tmp_path / "good.npz", head=np.arange(5000))
    whole = (tmp_path / "good.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:100])
    (tmp_path / "changed.npz").write_bytes(whole[:60] + bytes(b ^ 0xFF for b in whole[60:400]) + whole[400:])
    result = cli("replay", tmp_path / name)
    assert_one_line_error(result, "no recorded run of schema")
    assert "expertree profile" in result.err and "pickle" not in result.err


def test_debug_shows_the_traceback(cli: RunCli) -> None:
    result = cli("generate", "missing.gguf", "-p", "hello", "--debug")
    assert result.status == 1
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1].startswith("expertree: error: ")


def test_no_escape_sequence_gets_into_an_error(cli: RunCli, tmp_path: Path) -> None:
    for name in ("evil\x1b[31m\n.gguf", "evil\x9b31m"):
        assert_one_line_error(cli("generate", tmp_path / name, "-p", "hello"), "evil\\x")


def test_a_warning_is_one_line(cli: RunCli, tmp_path: Path) -> None:
    path = write_chat_model(tmp_path / "no-pre.gguf", **{"tokenizer.ggml.pre": None})
    result = cli("generate", path, "-p", "hello", "-n", 1)
    assert result.status == 0
    assert result.err.startswith("expertree: warning: ") and result.err.count("\n") == 1


def test_inspect(cli: RunCli, model: Path) -> None:
    shown = cli("inspect", model)
    assert shown.status == 0 and "llama" in shown.out
    found = json.loads(cli("inspect", model, "--json", "--ctx", 128).out)
    assert found["schema"] == "expertree.inspect/1"
    assert found["architecture"] == "llama"
    assert found["need"]["n_ctx"] == 128


def test_inspect_shows_no_escape_sequence(cli: RunCli, tmp_path: Path) -> None:
    path = write_chat_model(tmp_path / "m.gguf", **{"general.name": "evil\x1b]0;title\x07"})
    for arguments in (["--json"], []):
        assert "\x1b" not in cli("inspect", path, *arguments).out


def test_models(cli: RunCli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EXPERTREE_CACHE", str(tmp_path))
    shown = cli("models")
    assert shown.status == 0 and "smollm2-8x135m (the default)" in shown.out and "Apache-2.0" in shown.out
    rows = {row["name"]: row for row in json.loads(cli("models", "--json").out)["models"]}
    assert list(rows) == ["smollm2-135m", "smollm2-8x135m"]
    assert all(row["name"] in shown.out and row["recipe"] in shown.out for row in rows.values())
    assert not any(row["is_present"] for row in rows.values())
    assert all(Path(row["path"]).is_relative_to(tmp_path) for row in rows.values())
    row = rows["smollm2-135m"]
    assert_one_line_error(cli("models", "fetch", "nothing"), "smollm2-135m")
    assert cli("models", "remove", "smollm2-135m").err == "smollm2-135m is not here\n"
    Path(row["path"]).parent.mkdir(parents=True)
    Path(row["path"]).touch()
    assert cli("models", "remove", "smollm2-135m").status == 0
    assert not Path(row["path"]).exists()


def test_models_that_are_built(cli: RunCli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EXPERTREE_CACHE", str(tmp_path))
    row = json.loads(cli("models", "--json").out)["models"][1]
    assert "built from smollm2-135m" in row["recipe"] and "experts.gguf" in row["recipe"]
    monkeypatch.setattr(build, "trained_part", lambda name: None)
    assert json.loads(cli("models", "--json").out)["models"][1]["is_available"] is False
    assert "cannot be made here: " in cli("models").out
    assert_one_line_error(cli("models", "fetch", row["name"]), "the trained parts are not there")
    assert_one_line_error(cli("generate", row["name"], "-p", "a"), "the trained parts are not there")
    monkeypatch.setattr(build, "trained_part", lambda name: tmp_path)
    assert cli("models").out.count("not here yet: 88.6 MiB to download") == 2
    for path in (Path(row["path"]), tmp_path / "models/smollm2-8x135m-0123456789ab.gguf"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert cli("models", "remove", row["name"]).out.count("removed ") == 2
    assert cli("models", "remove", row["name"]).err == "smollm2-8x135m is not here\n"


LONG = ("--ctx", 60000, "-n", 1_000_000, "--ignore-eos")


def test_ctrl_c_in_the_prompt_with_json(cli: RunCli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> object:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        return run_generation(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(generate, "run_generation", interrupted)
    result = cli("generate", model, "--json", *LONG, stdin="hello " * 9000)  # the prompt alone takes seconds
    assert (result.status, result.err) == (130, "")
    found = json.loads(result.out)
    assert (found["finish_reason"], found["tokens"], found["text"]) == ("cancelled", [], "")


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "a\x1b[31mb\x07\x9bc\r\x7f\nd\te"
    assert strip_control(evil) == "a[31mbc\nd\te"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, pipe = FakeTerminal(), io.StringIO()
    TextStream(terminal).write(evil)
    TextStream(terminal).write_dim("dim\x1b")
    assert terminal.getvalue() == "a[31mbc\nd\te\x1b[2mdim\x1b[22m"
    TextStream(pipe).write(evil)
    TextStream(pipe).write_dim("plain")
    assert pipe.getvalue() == f"{evil}plain"


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": ""}])
def test_terminals_without_styles(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    terminal = FakeTerminal()
    TextStream(terminal).write_dim("text")
    assert terminal.getvalue() == "text"


def test_output_that_cannot_show_the_text(model: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "expertree", "generate", str(model), "-p", "hello", "-n", "20"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, b"")
    assert process.stdout.isascii()
