"""Telling a model's reasoning from its answer while it streams."""

from __future__ import annotations

import re
from dataclasses import dataclass

from expertree.errors import InvalidRequestError

__all__ = ["ChannelSplitter", "ReasoningForm", "ReasoningSplitter", "opens_reasoning"]

_THINK = ("<think>", "</think>")


def opens_reasoning(prompt: str, tags: tuple[str, str] = _THINK) -> bool:
    """Whether a rendered prompt ends by opening a reasoning section, so that the model goes on inside it."""
    return prompt.rstrip().endswith(tags[0])


class ReasoningSplitter:
    """Splits text into reasoning (between the tags) and content (the rest), piece by piece.

    One reasoning section is looked for, at the very beginning; tags later on are content. White space around the
    section and inside its tags belongs to neither. Without a section, content is passed on as it is. The joined results
    do not depend on how the text was cut into pieces.

    Args:
        inside: the prompt has opened the section already (`opens_reasoning`).
        tags: opening and closing tag.

    Attributes:
        closed: the closing tag was seen.
    """

    def __init__(self, *, inside: bool = False, tags: tuple[str, str] = _THINK) -> None:
        if not all(tags):
            raise InvalidRequestError(f"reasoning tags: expected two texts that are not empty, found {tags!r}")
        self._open, self._close = tags
        self._state = "reasoning" if inside else "start"
        self._held = ""
        self._begun = False
        self.closed = False

    def feed(self, text: str) -> tuple[str, str]:
        """(reasoning, content) that are certain now."""
        self._held += text
        if self._state == "start":
            self._find_start()
        reasoning = self._take_reasoning() if self._state == "reasoning" else ""
        return reasoning, self._take_content()

    def flush(self) -> tuple[str, str]:
        """The rest, once no more text comes. A section that was never closed stays reasoning, without content."""
        held, self._held = self._held, ""
        if self._state == "reasoning":
            return held.rstrip(), ""
        return "", "" if self._state == "gap" else held

    def _find_start(self) -> None:
        """Decide whether the text begins with the opening tag."""
        stripped = self._held.lstrip()
        if stripped.startswith(self._open):
            self._held = stripped[len(self._open) :]
            self._state = "reasoning"
        elif stripped and not self._open.startswith(stripped):
            self._state = "content"

    def _take_reasoning(self) -> str:
        if not self._begun:
            self._held = self._held.lstrip()
        at = self._held.find(self._close)
        if at >= 0:
            section, self._held = self._held[:at].rstrip(), self._held[at + len(self._close) :]
            self._state, self.closed = "gap", True
        else:
            section = self._held[: len(self._held) - _count_unsure(self._held, self._close)].rstrip()
            self._held = self._held[len(section) :]
        self._begun = self._begun or bool(section)
        return section

    def _take_content(self) -> str:
        if self._state == "gap":
            self._held = self._held.lstrip()
            if self._held:
                self._state = "content"
        if self._state != "content":
            return ""
        content, self._held = self._held, ""
        return content


class ChannelSplitter:
    """Splits gpt-oss's channels: "analysis" and "commentary" are reasoning, other channels' messages are content.

    A message is `<|channel|>NAME<|message|>TEXT` up to `<|end|>`, `<|return|>` or `<|call|>`; what stands between
    messages is dropped. Each message of reasoning starts a line; one to a tool begins with its recipient, as
    "to=functions.NAME ". Text before the first marker is content, but for the recipient that a role may be followed by.
    Same methods as `ReasoningSplitter`.

    Args:
        prompt: what was rendered before; it may have begun a message.
    """

    _MARKER = re.compile(r"<\|(?:start|channel|message|end|return|call|constrain)\|>")
    _LONGEST = len("<|constrain|>")
    _RECIPIENT = re.compile(r"\bto=\S+")

    def __init__(self, prompt: str = "") -> None:
        self._held = ""
        self._header = ""
        self._state = "start"  # then "header" and "text" in turn
        self._in_reasoning = False
        self._prefix = ""  # what the next piece of reasoning is preceded by
        self._has_reasoned = False
        _, start, begun = prompt.rpartition("<|start|>")
        has_begun = "<|channel|>" in begun or "<|message|>" in begun
        if start and "<|end|>" not in begun and (has_begun or not begun):  # a role alone leaves open how it goes on
            self.feed(start + begun)

    def feed(self, text: str) -> tuple[str, str]:
        """(reasoning, content) that are certain now."""
        return self._split(self._held + text, last=False)

    def flush(self) -> tuple[str, str]:
        """The rest, once no more text comes."""
        return self._split(self._held, last=True)

    def _split(self, text: str, *, last: bool) -> tuple[str, str]:
        parts: tuple[list[str], list[str]] = ([], [])
        start = 0
        for match in self._MARKER.finditer(text):
            self._take(text[start : match.start()], parts)
            self._pass_marker(match[0])
            start = match.end()
        rest = text[start:]
        at = -1 if last else rest.rfind("<", max(0, len(rest) - self._LONGEST + 1))
        end = at if at >= 0 else len(rest)
        self._take(rest[:end], parts)
        self._held = rest[end:]
        if last and self._state == "start":
            parts[1].append(self._header)
        return "".join(parts[0]), "".join(parts[1])

    def _take(self, text: str, parts: tuple[list[str], list[str]]) -> None:
        if self._state != "text":
            self._header += text
        if self._state == "start":
            self._find_start(parts[1])
        elif self._state == "text" and text and self._in_reasoning:
            parts[0].append(self._prefix + text)
            self._prefix, self._has_reasoned = "", True
        elif self._state == "text":
            parts[1].append(text)

    def _find_start(self, content: list[str]) -> None:
        """Decide whether the text goes on with a role's recipient or is a model's that uses no channels."""
        stripped = self._header.lstrip()
        if stripped.startswith("to="):
            self._state = "header"
        elif stripped and not "to=".startswith(stripped):
            content.append(self._header)
            self._state = "text"

    def _pass_marker(self, marker: str) -> None:
        if marker != "<|message|>":  # it opens a header or stands inside one
            if self._state == "text" or marker not in ("<|channel|>", "<|constrain|>"):
                self._header = ""
            self._state = "header"
            self._header += f" {marker} "
            return
        name = self._header.rpartition("<|channel|>")[2].split()
        recipient = self._RECIPIENT.search(self._header)
        self._in_reasoning = bool(name) and name[0] in ("analysis", "commentary")
        self._prefix = ("\n" if self._has_reasoned else "") + (f"{recipient[0]} " if recipient else "")
        self._state = "text"


@dataclass(frozen=True)
class ReasoningForm:
    """How the answer to a prompt tells its reasoning from the rest.

    Attributes:
        prompt: as rendered; the answer may go on inside a section that it opened.
        channels: gpt-oss's channels (`Tokenizer.speaks_channels`), else <think> tags.
    """

    prompt: str
    channels: bool

    @property
    def is_open(self) -> bool:
        """The prompt opened a section of reasoning."""
        return not self.channels and opens_reasoning(self.prompt)

    def splitter(self) -> ReasoningSplitter | ChannelSplitter:
        """A new one, for one answer."""
        return ChannelSplitter(self.prompt) if self.channels else ReasoningSplitter(inside=self.is_open)


def _count_unsure(text: str, tag: str) -> int:
    """Length of the longest end of `text` that begins `tag`."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-n:])), 0)
