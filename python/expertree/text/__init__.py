"""The text side: tokenizer, chat templates, streaming text, reasoning sections."""

from __future__ import annotations

from expertree.text.chat_template import ChatTemplate, ChatTemplateError
from expertree.text.reasoning import ChannelSplitter, ReasoningForm, ReasoningSplitter, opens_reasoning
from expertree.text.stream import StopMatcher, StreamDecoder
from expertree.text.tokenizer import Tokenizer

__all__ = [
    "ChannelSplitter",
    "ChatTemplate",
    "ChatTemplateError",
    "ReasoningForm",
    "ReasoningSplitter",
    "StopMatcher",
    "StreamDecoder",
    "Tokenizer",
    "opens_reasoning",
]
