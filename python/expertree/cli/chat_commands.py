"""The commands of a chat: /help and its like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from expertree.cli.conversation import Conversation
from expertree.quantity_text import safe_text


@dataclass(frozen=True)
class _Command:
    names: tuple[str, ...]
    argument: str
    help: str
    run: Callable[[str], bool]  # False ends the chat


class ChatCommands:
    """Reads and runs them.

    Args:
        conversation: what they act on.
        say: shows a line.
        regenerate: has the last answer given anew.
        toggle_live: turns the live view on or off.
    """

    def __init__(
        self,
        conversation: Conversation,
        say: Callable[[str], object],
        regenerate: Callable[[], object],
        toggle_live: Callable[[], object] = lambda: None,
    ) -> None:
        self._conversation = conversation
        self._say = say
        self._regenerate = regenerate
        self._toggle_live = toggle_live
        self._commands = (
            _Command(("/help", "/?"), "", "this list", self._help),
            _Command(("/reset", "/clear"), "", "forget the conversation; the system message stays", self._reset),
            _Command(("/system",), "TEXT", "set the system message; /system off removes it", self._system),
            _Command(("/regenerate", "/retry"), "", "another answer in place of the last one", self._again),
            _Command(("/stats",), "", "context used, speed, seed", self._stats),
            _Command(("/live",), "", "figures below each answer while it comes, on or off", self._live),
            _Command(("/exit", "/quit"), "", "leave, as Ctrl-D does", lambda _: False),
        )

    def run(self, line: str) -> bool:
        """False when the chat is to end."""
        name, _, argument = line.partition(" ")
        for known in self._commands:
            if name.lower() in known.names:
                return known.run(argument.strip())
        self._say(f"there is no command {safe_text(name, 40)}; /help lists them. A space before the / sends it as text")
        return True

    def _help(self, argument: str) -> bool:
        for known in self._commands:
            self._say(f"{f'{known.names[0]} {known.argument}'.rstrip():<14} {known.help}")
        self._say('Lines go on after a backslash at their end, and between """ and """; Alt-Enter starts a new line.')
        self._say("Ctrl-C stops an answer; Ctrl-D leaves.")
        return True

    def _reset(self, argument: str) -> bool:
        self._conversation.reset()
        self._say("the conversation starts over")
        return True

    def _system(self, argument: str) -> bool:
        conversation = self._conversation
        if argument == "off":
            conversation.system = None
            self._say("no system message from here on")
        elif argument:
            conversation.system = argument
            self._say("the system message counts from here on; what was said before stays (/reset forgets it)")
        else:
            self._say("there is no system message" if conversation.system is None else conversation.system)
        return True

    def _again(self, argument: str) -> bool:
        if self._conversation.n_turns == 0:
            self._say("there is no answer to replace yet")
        else:
            self._regenerate()
        return True

    def _live(self, argument: str) -> bool:
        self._toggle_live()
        return True

    def _stats(self, argument: str) -> bool:
        conversation, stats = self._conversation, self._conversation.stats
        used = f"{conversation.n_tokens:,} of {conversation.n_ctx:,} tokens"
        self._say(f"context   {used}; messages answered: {conversation.n_turns:,}")
        for name, phase in (("prompts", "prefill"), ("answers", "decode")):
            n, seconds = stats[f"{phase}_tokens"], stats[f"{phase}_seconds"]
            speed = f", {n / seconds:,.1f} tokens/s" if seconds > 0 else ""
            self._say(f"{name}   {n:,} tokens run in {seconds:.2f} s{speed}")
        if stats["drafted"]:
            self._say(
                f"drafting  {stats['accepted']:,} of {stats['drafted']:,} drafted tokens accepted in "
                f"{stats['steps']:,} steps, {stats['draft_seconds'] + stats['select_seconds']:.2f} s"
            )
        self._say(f"seed      {conversation.seed}")
        return True
