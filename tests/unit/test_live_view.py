"""The live view of `expertree chat`: its figures, its line at the bottom of a terminal, and what a pipe gets."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_model import write_chat_model
from expertree._core import process_resident_bytes
from expertree.cli.live_figures import Counts, LiveFigures, read_counts
from expertree.cli.status_line import StatusLine
from pseudo_terminal import Terminal

# seconds, tokens, steps, accepted, hits, uses, bytes_read
COUNTS = [Counts(10 + i, 100 + 6 * i, 2 * i, 4 * i, 90 * i, 100 * i, 50_000_000 * i) for i in range(9)]


def figures_of(counts: list[Counts], memory: int = 3 * 2**30) -> LiveFigures:
    left = iter(counts)
    figures = LiveFigures(lambda: next(left), lambda: memory)
    figures.begin()
    for _ in counts:
        figures.take()
    return figures


def test_the_figures_are_those_of_the_last_seconds() -> None:
    slow = [Counts(t, t, 0, 0, 0, 0, 0) for t in range(5)]
    figures = figures_of([*slow, *COUNTS])
    line = figures.line(200)
    assert line.startswith("6.0 tokens/s │ 3.00 tokens/step │ 90% hits │ 50 MB/s read │ 3.0 GiB in memory  ")
    assert set(line.rpartition("  ")[2]) <= set("▁▂▃▄▅▆▇█")
    assert figures.summary() == "8.2 tokens/s, 3.00 tokens/step, 90% hits, 22 MB/s read, 3.0 GiB in memory"


def test_a_dense_model_and_plain_decoding_show_what_there_is() -> None:
    figures = figures_of([Counts(i, 5 * i, i, 0, 0, 0, 0) for i in range(4)], memory=0)
    assert figures.summary() == "5.0 tokens/s"


def test_the_line_never_exceeds_its_width() -> None:
    figures = figures_of(COUNTS)
    for width in range(1, 120):
        assert len(figures.line(width)) <= width
    assert figures.line(30).startswith("6.0 t/s │ 3.00 t/step")
    begun = figures_of(COUNTS[:1])
    assert begun.line(80) == "reading the prompt" and begun.summary() == ""


def test_another_answer_is_counted_anew() -> None:
    left = iter([*COUNTS[:3], *(Counts(100 + i, 1000 + i, 0, 0, 0, 0, 0) for i in range(3))])
    figures = LiveFigures(lambda: next(left), lambda: 0)
    for _ in range(2):
        figures.begin()
        for _ in range(3):
            figures.take()
    assert figures.summary() == "1.0 tokens/s"


def test_counts_come_from_statistics() -> None:
    counts = read_counts(7, {"steps": 3, "accepted": 2}, {"hits": 5, "uses": 6, "bytes_read": 8})
    assert (counts.tokens, counts.steps, counts.accepted, counts.hits, counts.uses, counts.bytes_read) == (
        7,
        3,
        2,
        5,
        6,
        8,
    )
    assert read_counts(7, {"steps": 3, "accepted": 2}, {}).uses == 0
    if sys.platform == "linux":
        assert 2**20 < process_resident_bytes() < 2**40


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def xterm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_the_line_keeps_the_last_row_free_of_text(xterm: None) -> None:
    size = [(40, 24)]
    stream = FakeTerminal()
    line = StatusLine(stream, lambda: size[0])
    line.show("figures \x1b[31m\x07")
    assert "\x1b[1;23r" in stream.getvalue() and "\x1b[24;1H" in stream.getvalue()
    assert "figures [31m" in stream.getvalue() and "\x07" not in stream.getvalue()
    stream.truncate(0)
    line.show("more")
    assert "r\x1b8" not in stream.getvalue()  # the region stands already
    size[0] = (30, 12)
    line.show("x" * 100)
    assert "\x1b[1;11r" in stream.getvalue()
    assert max(len(text) for text in re.findall("x+", stream.getvalue())) <= 29
    stream.truncate(0)
    size[0] = (30, 4)
    line.show("no room")
    assert "\x1b[r" in stream.getvalue() and "no room" not in stream.getvalue()
    stream.truncate(0)
    line.remove()
    assert stream.getvalue() == ""


def test_a_file_and_a_terminal_without_escapes_get_no_line(xterm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = io.StringIO()
    StatusLine(plain).show("figures")
    assert plain.getvalue() == ""
    monkeypatch.setenv("TERM", "dumb")
    dumb = FakeTerminal()
    StatusLine(dumb).show("figures")
    assert dumb.getvalue() == ""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chat") / "chat.gguf")


def test_a_pipe_gets_a_line_after_each_answer(path: Path) -> None:
    command = [sys.executable, "-m", "expertree", "chat", str(path), "-n", "20", "--temperature", "0"]
    turns = b"hello\n/live\nmore\n/live\nagain\n"
    plain = subprocess.run(command, input=b"hello\nmore\nagain\n", capture_output=True, timeout=120, check=True)
    run = subprocess.run(command, input=turns, capture_output=True, timeout=120, check=True)
    assert run.stdout == plain.stdout
    shown = [line for line in run.stderr.decode().splitlines() if line.startswith("live: ")]
    assert len(shown) == 1 and re.match(r"live: [\d.]+ tokens/s.*MiB in memory", shown[0])
    assert "figures follow each answer" in run.stderr.decode() and b"\x1b" not in run.stderr
    always = subprocess.run([*command, "--live"], input=b"hello\nmore\n", capture_output=True, timeout=120, check=True)
    assert sum(line.startswith(b"live: ") for line in always.stderr.splitlines()) == 2


@pytest.fixture
def terminal(path: Path, tmp_path: Path) -> Iterator[Terminal]:
    settings = {"TERM": "xterm", "EXPERTREE_CACHE": str(tmp_path), "PROMPT_TOOLKIT_NO_CPR": "1", "LINES": "24"}
    endless = ("--live", "--ctx", "60000", "--temperature", "0", "--repeat-penalty", "1")
    opened = Terminal(
        [sys.executable, "-m", "expertree", "chat", str(path), *endless], {**os.environ, **settings, "COLUMNS": "80"}
    )
    yield opened
    opened.close()


def test_ctrl_c_gives_the_row_back(terminal: Terminal) -> None:
    terminal.wait_for(r"/help lists commands.*\n[^\n]*>")
    terminal.press("hello\r")
    terminal.wait_for(r"\x1b\[1;23r")
    assert "reading the prompt" in terminal.wait_for(r"[\d.]+ tokens/s")
    terminal.press("\x03")
    assert terminal.wait_for(r"\x1b\[r.*answer so far is kept").count("\x1b[r") == 1
    terminal.wait_for(r"tokens/s.*; context")
    terminal.press("/live\r")
    terminal.wait_for(r"live view is off.*\n[^\n]*>")
    terminal.press("again\r")
    assert "\x1b[1;23r" not in terminal.wait_for(r"\?2004l.{60}")
    terminal.press("\x03")
    terminal.wait_for("answer so far is kept")
    terminal.press("\x04")
    assert terminal.wait_for_end() == 0


def test_ctrl_z_gives_the_row_back_first(terminal: Terminal) -> None:
    terminal.wait_for(r"/help lists commands.*\n[^\n]*>")
    terminal.press("hello\r")
    terminal.wait_for(r"[\d.]+ tokens/s")
    terminal.press("\x1a")
    terminal.wait_for(r"\x1b\[r")
    terminal.wait_for(r"\x1b\[1;23r.*[\d.]+ tokens/s")  # no shell waits for this program, so it goes on at once
