"""`expertree chat`: turns, commands, what is remembered, and Ctrl-C at a terminal."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import expertree
import pytest
from chat_model import TEMPLATE, write_chat_model
from expertree.cli.chat_commands import ChatCommands
from expertree.cli.chat_input import Turn, is_unfinished, read_turns, to_turn
from expertree.cli.conversation import ContextFull, Conversation
from expertree.errors import Cancelled, InvalidRequestError
from pseudo_terminal import Terminal

WARM = {"temperature": 1.0, "seed": 5}


class Recorder:
    """Takes an answer; can be interrupted after some characters."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.reasoned, self.said = "", ""
        self._stop_after = stop_after

    def reasoning(self, text: str) -> None:
        self.reasoned += text

    def content(self, text: str) -> None:
        self.said += text
        if self._stop_after is not None and len(self.said) >= self._stop_after:
            raise Cancelled("stop")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chat") / "chat.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> expertree.Model:
    return expertree.Model(path, n_ctx=400)


def fresh_answer(model: expertree.Model, *texts: str, n: int = 20) -> str:
    """What a fresh context answers; texts: user, assistant, user, ..."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return model.chat(messages, max_tokens=n, **WARM).text


def test_later_turns_answer_as_a_fresh_context_would(model: expertree.Model) -> None:
    conversation = Conversation(model, WARM, max_tokens=20)
    first = conversation.ask("hello", Recorder())
    assert first.content == fresh_answer(model, "hello")
    n_before = conversation.stats["prefill_tokens"]
    second = conversation.ask("more", Recorder())
    assert second.content == fresh_answer(model, "hello", first.content, "more")
    assert conversation.n_turns == 2
    if first.content.isascii():  # else it is encoded in another way than it was sampled
        assert conversation.stats["prefill_tokens"] - n_before < 40


def test_a_conversation_that_drafts_is_the_same(model: expertree.Model) -> None:
    plain = Conversation(model, WARM, max_tokens=20)
    drafting = Conversation(model, WARM, drafting={"draft": "ngram", "select": "all"}, max_tokens=20)
    for text in ("lalalala", "more", "lalalala", "more of that"):
        assert drafting.ask(text, Recorder()).content == plain.ask(text, Recorder()).content
        assert drafting.n_tokens == plain.n_tokens
    assert drafting.regenerate(Recorder()).content == plain.regenerate(Recorder()).content
    lines: list[str] = []
    assert ChatCommands(drafting, lines.append, lambda: None).run("/stats")
    assert drafting.stats["drafted"] > 0 and any(line.startswith("drafting") for line in lines)


def test_the_prefix_is_kept(model: expertree.Model) -> None:
    conversation = Conversation(model, WARM, max_tokens=1)
    conversation.ask("x" * 100, Recorder())
    n_before = conversation.stats["prefill_tokens"]
    conversation.ask("y", Recorder())
    assert conversation.stats["prefill_tokens"] - n_before < 60


def test_regenerate_draws_anew_in_place(model: expertree.Model) -> None:
    conversation = Conversation(model, WARM, max_tokens=20)
    with pytest.raises(InvalidRequestError, match="no answer"):
        conversation.regenerate(Recorder())
    first = conversation.ask("hello", Recorder())
    again = conversation.regenerate(Recorder())
    assert again.content != first.content
    assert (conversation.n_turns, conversation.seed) == (1, 6)


def test_reset_and_system(model: expertree.Model) -> None:
    conversation = Conversation(model, WARM, max_tokens=20)
    first = conversation.ask("hello", Recorder())
    conversation.reset()
    assert (conversation.n_turns, conversation.n_tokens) == (0, 0)
    assert conversation.ask("hello", Recorder()).content == first.content
    conversation.reset()
    conversation.system = "be brief"
    assert conversation.ask("hello", Recorder()).content != first.content


def test_a_full_context_is_said_and_changes_nothing(model: expertree.Model) -> None:
    conversation = Conversation(model, WARM, max_tokens=20)
    first = conversation.ask("hello", Recorder())
    n_tokens = conversation.n_tokens
    with pytest.raises(ContextFull, match=r"context of 400 .*/reset starts over"):
        conversation.ask("x" * 400, Recorder())
    assert (conversation.n_turns, conversation.n_tokens) == (1, n_tokens)
    assert conversation.ask("more", Recorder()).content == fresh_answer(model, "hello", first.content, "more")


def test_reasons(path: Path) -> None:
    conversation = Conversation(expertree.Model(path, n_ctx=64), {"temperature": 0.0})
    assert conversation.ask("hello", Recorder()).finish_reason == "context"
    assert conversation.n_tokens == 64
    limited = Conversation(expertree.Model(path), {"temperature": 0.0}, max_tokens=3)
    answer = limited.ask("hello", Recorder())
    assert (answer.finish_reason, answer.n_tokens) == ("length", 3)


def test_a_stopped_answer_is_kept_and_the_next_turn_is_right(model: expertree.Model) -> None:
    conversation = Conversation(model, WARM, max_tokens=20)
    recorder = Recorder(stop_after=5)
    answer = conversation.ask("hello", recorder)
    assert answer.finish_reason == "cancelled"
    assert len(answer.content) >= 5 and recorder.said.startswith(answer.content[:5])
    assert conversation.ask("more", Recorder()).content == fresh_answer(model, "hello", answer.content, "more")


def test_reasoning_without_an_answer(tmp_path: Path) -> None:
    path = write_chat_model(tmp_path / "thinks.gguf", template=TEMPLATE.replace("assistant\n", "assistant\n<think>"))
    recorder = Recorder()
    answer = Conversation(expertree.Model(path), WARM, max_tokens=20).ask("hello", recorder)
    assert answer.reasoning.strip() == recorder.reasoned.strip() != ""
    assert (answer.content, recorder.said, answer.finish_reason) == ("", "", "length")


@pytest.mark.parametrize(
    ("text", "unfinished", "turn"),
    [
        ("hello", False, Turn("hello")),
        ("one\\", True, Turn("one")),
        ("one\\\ntwo", False, Turn("one\ntwo")),
        ('"""', True, Turn("", is_literal=True)),
        ('"""one\n/two\n', True, Turn("one\n/two", is_literal=True)),
        ('"""\n one\n\ntwo\n"""', False, Turn(" one\n\ntwo", is_literal=True)),
        ('"""one"""', False, Turn("one", is_literal=True)),
        ("/help", False, Turn("/help")),
        (" /help", False, Turn("/help", is_literal=True)),
        ("", False, Turn("")),
    ],
)
def test_reading_a_turn(text: str, unfinished: bool, turn: Turn) -> None:
    assert is_unfinished(text) is unfinished
    assert to_turn(text) == turn


def test_reading_turns_from_a_pipe() -> None:
    stream = io.StringIO('one\r\ntwo\\\nthree\n"""four\n\nfive"""\nsix\\')
    assert [turn.text for turn in read_turns(stream)] == ["one", "two\nthree", "four\n\nfive", "six"]


def test_commands(model: expertree.Model) -> None:
    lines: list[str] = []
    again: list[bool] = []
    conversation = Conversation(model, WARM, max_tokens=5)
    commands = ChatCommands(conversation, lines.append, lambda: again.append(True))

    def said(line: str) -> str:
        lines.clear()
        assert commands.run(line)
        return "\n".join(lines)

    shown = said("/help")
    for name in ("/help", "/reset", "/system", "/regenerate", "/stats", "/exit"):
        assert name in shown
    assert "no answer" in said("/regenerate") and again == []
    conversation.ask("hello", Recorder())
    said("/regenerate")
    assert again == [True]
    assert "seed      5" in said("/stats")
    said("/system be brief")
    assert conversation.system == said("/system") == "be brief"
    said("/system off")
    assert conversation.system is None
    said("/reset")
    assert conversation.n_turns == 0
    assert "no command /nonsense\\x1b" in said("/nonsense\x1b")
    assert not commands.run("/exit") and not commands.run("/QUIT")


def run_chat(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "expertree", "chat", *map(str, arguments)]
    return subprocess.run(command, input=stdin.encode(), capture_output=True, timeout=120, check=False)


def test_piped_lines_are_turns_and_only_answers_come_out(path: Path) -> None:
    sampling = {"temperature": 0.0, "repeat_penalty": 1.0, "top_p": 1.0, "min_p": 0.0}
    options = ("-n", 12, "--temperature", 0, "--repeat-penalty", 1, "--top-p", 1, "--min-p", 0)
    run = run_chat(path, *options, stdin="hello\n\n/stats\nmore\n/exit\nnot read\n")
    assert run.returncode == 0
    conversation = Conversation(expertree.Model(path), sampling, max_tokens=12)
    answers = [conversation.ask(text, Recorder()).content for text in ("hello", "more")]
    assert run.stdout.decode() == "".join(text if text.endswith("\n") else f"{text}\n" for text in answers)
    assert b"context " in run.stderr


def test_one_prompt(path: Path) -> None:
    run = run_chat(path, "-p", "/help", "-n", 5, "--seed", 1)
    assert run.returncode == 0
    assert run.stdout != b"" and run.stdout.endswith(b"\n")
    assert b"\x1b" not in run.stderr


def test_a_turn_that_does_not_fit_fails_the_run(path: Path) -> None:
    run = run_chat(path, "--ctx", 60, stdin="x" * 100)
    assert (run.returncode, run.stdout) == (1, b"")
    assert run.stderr.startswith(b"expertree: error: this message was not sent") and run.stderr.count(b"\n") == 1


OpenTerminal = Callable[..., Terminal]


@pytest.fixture
def chat_terminal(path: Path, tmp_path: Path) -> Iterator[OpenTerminal]:
    opened: list[Terminal] = []

    def start(*arguments: object, term: str = "xterm") -> Terminal:
        settings = {"TERM": term, "EXPERTREE_CACHE": str(tmp_path), "PROMPT_TOOLKIT_NO_CPR": "1"}
        command = [sys.executable, "-m", "expertree", "chat", str(path), *map(str, arguments)]
        opened.append(Terminal(command, {**os.environ, **settings}))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


PROMPT = r".*\n[^\n]*>"
ANSWERING = r"(\?2004l|\w\r+\n).{60}"  # the end of line editing, and then some
# Greedy and without a penalty, this model never ends an answer by itself: over 7 s of 8,000 tokens/s.
ENDLESS = ("--ctx", 60000, "--temperature", 0, "--repeat-penalty", 1)


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_ctrl_c_stops_the_answer_and_not_the_program(chat_terminal: OpenTerminal, term: str) -> None:
    terminal = chat_terminal(*ENDLESS, term=term)
    terminal.wait_for(f"/help lists commands{PROMPT}")
    terminal.press("hello\r")
    terminal.wait_for(ANSWERING)
    terminal.press("\x03")
    terminal.wait_for(f"answer so far is kept.*tokens/s.*; context{PROMPT}")
    terminal.press("again\r")
    terminal.wait_for(ANSWERING)
    terminal.press("\x03")
    terminal.wait_for(f"answer so far is kept.*tokens/s.*; context{PROMPT}")
    terminal.press("/stats\r")
    assert "messages answered: 2" in terminal.wait_for(f"seed {PROMPT}")
    terminal.press("\x04")
    assert terminal.wait_for_end() == 0


def test_the_prompt(chat_terminal: OpenTerminal, tmp_path: Path) -> None:
    terminal = chat_terminal("-n", 5)
    terminal.wait_for(f"/help lists commands{PROMPT}")
    terminal.press("/nonsense\r")
    terminal.wait_for(f"no command /nonsense{PROMPT}")
    terminal.press("one\\\r")
    terminal.press("two\r")
    terminal.wait_for(f"tokens/s{PROMPT}")
    terminal.press("\x03")
    terminal.wait_for(f"Ctrl-C again{PROMPT}")
    terminal.press("\x03")
    assert terminal.wait_for_end() == 0
    history = tmp_path / "chat_history"
    assert "+one\\\n+two\n" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
