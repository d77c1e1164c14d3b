"""`expertree chat`: talking to a model."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from expertree.cli.chat_commands import ChatCommands
from expertree.cli.chat_input import Turn, prompt_turns, read_turns
from expertree.cli.conversation import Answer, Conversation
from expertree.cli.failures import one_line
from expertree.cli.loading import load_model, remember_experts
from expertree.cli.options import CHAT_DEFAULTS, CHAT_DRAFT, DraftOptions, ModelOptions, SamplingOptions, command
from expertree.cli.terminal import TextStream
from expertree.errors import Error
from expertree.models import cache_folder
from expertree.quantity_text import safe_text


class _Screen:
    """An answer as it comes: its text on stdout; reasoning dim, and on a terminal only."""

    def __init__(self, out: TextStream, notes: TextStream) -> None:
        self.out, self.notes = out, notes
        self._in_reasoning = False

    def reasoning(self, text: str) -> None:
        if self.notes.is_terminal:
            self._in_reasoning = True
            self.notes.write_dim(text)

    def content(self, text: str) -> None:
        self._end_reasoning()
        self.out.write(text)

    def finish(self) -> None:
        self._end_reasoning()
        self.out.end_line()

    def _end_reasoning(self) -> None:
        if self._in_reasoning:
            self._in_reasoning = False
            self.notes.end_line()
            self.notes.write("\n")


@command
def chat(
    model: Annotated[
        str | None, typer.Argument(help="A GGUF file, or a name that `expertree models` lists.", show_default=False)
    ] = None,
    *,
    prompt: Annotated[
        str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="Answer this once and exit.")
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="Instructions that stand before the conversation.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "-n", "--max-tokens", metavar="N", min=1, help="Most tokens of one answer. Default: until it ends."
        ),
    ] = None,
    sampling: SamplingOptions,
    drafting: DraftOptions,
    options: ModelOptions,
) -> None:
    """Talk to a model. It streams its answers and remembers the conversation.

    [bold]Examples[/bold]

      expertree chat
      expertree chat model.gguf --system "Answer in one sentence."
      expertree chat -p "Why is the sky blue?"
      expertree chat < questions.txt > answers.txt

    At the prompt, /help lists commands. A line that ends with a backslash goes on in the next one, and so does all
    between triple quotes; Alt-Enter starts a new line. Ctrl-C stops an answer, Ctrl-D leaves. When stdin is not a
    terminal, each line is a turn, and only the answers are written.
    """
    if prompt is not None and not prompt.strip():
        raise typer.BadParameter("the text of -p is empty; leave -p out for a conversation")
    drafts = drafting.values(CHAT_DRAFT)
    loaded = load_model(model, options, drafts)
    is_interactive = prompt is None and sys.stdin.isatty()
    conversation = Conversation(
        loaded,
        sampling.values(CHAT_DEFAULTS),
        drafting=drafts,
        max_tokens=max_tokens,
        system=system,
        stoppable=is_interactive,
    )
    chatting = _Chat(conversation, _Screen(TextStream(sys.stdout), TextStream(sys.stderr)), is_interactive)
    if prompt is not None:
        chatting.run(iter([Turn(prompt, is_literal=True)]))
    elif is_interactive:
        chatting.greet()
        chatting.run(prompt_turns(cache_folder() / "chat_history", chatting.say))
    else:
        if isinstance(sys.stdin, TextIOWrapper):  # the tokenizer takes any bytes
            sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
        chatting.run(read_turns(sys.stdin))
    remember_experts(loaded)


class _Chat:
    """The loop over turns."""

    def __init__(self, conversation: Conversation, screen: _Screen, is_interactive: bool) -> None:
        self._conversation = conversation
        self._screen = screen
        self._is_interactive = is_interactive
        regenerate = functools.partial(conversation.regenerate, screen)
        self._commands = ChatCommands(conversation, self.say, functools.partial(self._answer, regenerate))

    def say(self, text: str) -> None:
        """A line from the program itself."""
        self._screen.notes.note(text)

    def greet(self) -> None:
        model = self._conversation.model
        name = safe_text(Path(model.path).name)
        self.say(f"{name}: context of {self._conversation.n_ctx:,} tokens, {model.threads} threads, {model.isa}")
        self.say("/help lists commands; Ctrl-C stops an answer, Ctrl-D leaves")

    def run(self, turns: Iterator[Turn]) -> None:
        for turn in turns:
            if not turn.text.strip():
                continue
            if turn.text.startswith("/") and not turn.is_literal:
                if not self._commands.run(turn.text):
                    return
            else:
                self._answer(functools.partial(self._conversation.ask, turn.text, self._screen))

    def _answer(self, ask: Callable[[], Answer]) -> None:
        """At a terminal an error ends the turn and not the program."""
        try:
            answer = ask()
        except (Error, KeyboardInterrupt) as error:
            self._screen.finish()
            if not self._is_interactive or isinstance(error, KeyboardInterrupt):
                raise
            self.say(f"error: {one_line(str(error))}")
            return
        self._screen.finish()
        self._comment(answer)

    def _comment(self, answer: Answer) -> None:
        n_ctx = self._conversation.n_ctx
        if answer.finish_reason == "cancelled":
            is_kept = bool(answer.content or answer.reasoning)
            self.say("[stopped; the answer so far is kept]" if is_kept else "[stopped; the message is not kept]")
        elif answer.finish_reason == "context":
            self.say(f"[the context of {n_ctx:,} tokens is full: /reset starts over, --ctx N gives more room]")
        elif answer.finish_reason == "length":
            inside = "" if answer.content or not answer.reasoning else " inside its reasoning"
            self.say(f"[stopped{inside} after {answer.n_tokens:,} tokens: -n]")
        elif not answer.content:
            self.say("[the model ended its answer without a word]")
        if self._is_interactive and answer.n_tokens > 0:
            speed = answer.stats.get("decode_tokens_per_second", 0.0)
            used = f"context {self._conversation.n_tokens:,} of {n_ctx:,}"
            accepted = answer.stats.get("accepted_per_step")
            drafted = "" if accepted is None else f", {accepted:.2f} drafted tokens accepted per step"
            self.say(f"{answer.n_tokens:,} tokens, {speed:.1f} tokens/s{drafted}; {used}")
