"""A short conversation through a model's chat template, to look at: `expertree inspect`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from expertree.errors import Error, InvalidRequestError

__all__ = ["ChatSample", "render_sample"]

_CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "What is 2 + 3?"},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "And twice that?"},
]
_TOOL = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "The product of two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}
_DATE = datetime(2026, 1, 31, 12)


@dataclass(frozen=True)
class ChatSample:
    """What a template makes of the sample conversation.

    Attributes:
        text: the prompt; None when the template is faulty.
        text_with_tool: the same with one function offered; None when the template does not look at tools.
        has_system: the template takes a system message.
        opens_reasoning: the prompt ends inside a reasoning section.
    """

    text: str | None
    text_with_tool: str | None
    has_system: bool
    opens_reasoning: bool


def render_sample(source: str, bos_token: str, eos_token: str, problems: list[str]) -> ChatSample:
    """Renders the sample; what goes wrong becomes a line of `problems`. The clock stands at 31 January 2026."""
    from expertree.text import ChatTemplate
    from expertree.text.reasoning import opens_reasoning

    try:
        template = ChatTemplate(source, bos_token=bos_token, eos_token=eos_token, now=lambda: _DATE)
        messages, has_system = _CHAT, True
        try:
            text = template.render(messages)
        except InvalidRequestError:  # some templates refuse system messages
            messages, has_system = _CHAT[1:], False
            text = template.render(messages)
    except Error as error:
        problems.append(str(error))
        return ChatSample(None, None, False, False)
    with_tool: str | None = None
    if "tools" in source:
        try:
            with_tool = template.render(messages, tools=[_TOOL])
        except Error as error:
            problems.append(f"with tools: {error}")
    return ChatSample(text, None if with_tool == text else with_tool, has_system, opens_reasoning(text))
