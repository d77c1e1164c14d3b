"""The program from outside: closed streams, readers that go away, Ctrl-C."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chat_model import write_chat_model

LONG = ("--ctx", 60000, "-n", 1_000_000, "--ignore-eos")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("cli") / "chat.gguf")


def start(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "expertree", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_ctrl_c_while_decoding(model: Path) -> None:
    process = start("generate", model, "-p", "hello", *LONG)
    assert process.stdout is not None
    process.stdout.read(20)  # it is streaming
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")


def test_a_reader_that_goes_away(model: Path) -> None:
    process = start("generate", model, "-p", "hello", *LONG)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(20)
    process.stdout.close()
    assert process.wait(timeout=30) == 141
    assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("arguments", "closed", "status", "expected"),
    [
        (["generate"], "<&-", 1, "the prompt is empty"),
        (["generate", "-f", "-"], "<&-", 1, "the prompt is empty"),
        (["chat"], "<&-", 0, ""),
        (["generate", "-p", "hello", "-n", "2"], ">&-", 1, "stdout is closed"),
        (["generate", "-p", "hello", "-n", "2"], "2>&-", 0, ""),
        (["generate", "-p", "hello", "-n", "2"], ">/dev/full", 1, "No space left"),
    ],
)
def test_streams_that_are_closed(model: Path, arguments: list[str], closed: str, status: int, expected: str) -> None:
    command = shlex.join([sys.executable, "-m", "expertree", arguments[0], str(model), *arguments[1:]])
    process = subprocess.run(["sh", "-c", f"{command} {closed}"], capture_output=True, text=True, check=False)
    assert process.returncode == status, process.stderr
    assert expected in process.stderr and process.stderr.count("\n") == (1 if expected else 0)
    assert "error" not in process.stdout


def test_many_interrupts(model: Path) -> None:
    """A key that is held down: no traceback, wherever they meet the program and the interpreter's end."""
    for pause in (0.001, 0.02):
        process = start("generate", model, "-p", "hello", *LONG)
        assert process.stdout is not None
        process.stdout.read(20)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(pause)
        _, err = process.communicate(timeout=30)
        assert process.returncode in (130, -signal.SIGINT) and err == b""


LOADING = """
import sys, time

class Slow:  # finds nothing, and takes its time when the package is asked for
    def find_spec(self, name, *_):
        if name == "expertree":
            print("loading", flush=True)
            time.sleep(60)

sys.meta_path.insert(0, Slow())
sys.path.insert(0, sys.argv[1])
import expertree_program
expertree_program.run()
"""


def test_ctrl_c_while_modules_are_loaded() -> None:
    command = [sys.executable, "-c", LOADING, str(Path(__file__).parents[2] / "python")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"loading\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (-signal.SIGINT, b"")
