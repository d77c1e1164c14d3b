"""Chat templates: from messages to the text or the token ids that a model expects.

Templates are jinja2 with the names that Hugging Face's templates use. They come out of model files, so they run in a
sandbox whose work and output are bounded (`template_sandbox`).
"""

from __future__ import annotations

import functools
import re
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateSyntaxError

from expertree.errors import InvalidRequestError, ModelFormatError
from expertree.text.template_sandbox import (
    LimitExceeded,
    Meter,
    RefusedMessages,
    TemplateEnvironment,
    format_time,
    metered,
)
from expertree.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "ChatTemplateError"]

_MAX_SOURCE_CHARS = 1 << 20
_MAX_DEPTH = 64
# Work that every rendering may do, and more for each unit of its input; see `Meter`.
_BASE_WORK, _WORK_PER_INPUT = 1_000_000, 64
_BASE_CHARS, _CHARS_PER_INPUT = 4 << 20, 16
_BASE_NODES = 200_000
_WORD = re.compile(r"[\w-]{1,64}")
_PRIVATE_USE = range(0xE000, 0xF900)

MapText = Callable[[str], str]


class ChatTemplateError(ModelFormatError):
    """A chat template is faulty or asks for too much.

    Attributes:
        line: line of the template, counted from 1; None if unknown.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        where = "chat template" if line is None else f"chat template, line {line}"
        super().__init__(f"{where}: {message}")
        self.line = line


class ChatTemplate:
    """A compiled chat template. Immutable; may be used from several threads.

    Args:
        source: the template (`tokenizer.chat_template`), or None if the model has none.
        bos_token, eos_token: texts that the template sees under these names.
        fallback: where the template is missing or faulty, warn and use a plain ChatML layout instead of failing.
        now: the clock behind `strftime_now`.

    Raises:
        ChatTemplateError: the template is faulty, and `fallback` is off.
        InvalidRequestError: there is no template, and `fallback` is off.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str = "",
        eos_token: str = "",
        fallback: bool = False,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self._bos_token, self._eos_token = bos_token, eos_token
        self._fallback = fallback
        self._now = now
        self._template: Any = None
        try:
            self._template = self._compile()
        except (ChatTemplateError, InvalidRequestError) as error:
            if not fallback:
                raise
            warnings.warn(f"{error}; using a plain ChatML layout", stacklevel=2)

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, *, fallback: bool = False) -> ChatTemplate:
        """The template of a tokenizer's model."""

        def text(token: int | None) -> str:
            return "" if token is None else tokenizer.token_bytes(token).decode("utf-8", "replace")

        bos_token, eos_token = text(tokenizer.bos_id), text(tokenizer.eos_id)
        return cls(tokenizer.chat_template, bos_token=bos_token, eos_token=eos_token, fallback=fallback)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The text of a conversation.

        Args:
            messages: mappings with "role" and what else the template reads ("content", "tool_calls", ...).
            tools: JSON schemas of functions that the model may call.
            add_generation_prompt: end with the beginning of the assistant's next message.
            **kwargs: further names for the template, such as `enable_thinking` or `documents`; plain values.

        Raises:
            InvalidRequestError: the messages are malformed, or the template refuses them (`raise_exception`).
            ChatTemplateError: the template is faulty or does too much.
        """
        names = _read_request(messages, tools, add_generation_prompt, kwargs, str)
        return self._render(names, self._now())

    def encode_chat(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        """Token ids of a conversation, ready for the model.

        Control tokens come from the template's own text only: text in messages, tools and options that spells one stays
        text. Roles count as the template's, since templates build tokens from them; they must be plain words. Where
        nothing in the messages spells a control token, the ids are those of encoding `render`'s text. If the model
        wants a beginning-of-text token and the template makes none, it is put in front.

        Takes the arguments of `render` and raises the same errors.
        """
        moment = self._now()

        def rendered(map_text: MapText) -> str:
            return self._render(_read_request(messages, tools, add_generation_prompt, kwargs, map_text), moment)

        seen: list[str] = []

        def remember(value: str) -> str:
            seen.append(value)
            return value

        text = rendered(remember)
        text, literal = _mark_contents(tokenizer.control_texts(), [*seen, self.source or "", text], text, rendered)
        ids = tokenizer.encode(text, parse_special=True, literal=literal)
        if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
            ids.insert(0, tokenizer.bos_id)
        return ids

    def _compile(self) -> Any:
        if self.source is None:
            raise InvalidRequestError("the model file has no chat template (tokenizer.chat_template)")
        if len(self.source) > _MAX_SOURCE_CHARS:
            raise ChatTemplateError(f"it is {len(self.source)} characters long, more than {_MAX_SOURCE_CHARS}")
        meter = Meter(_BASE_WORK, _BASE_CHARS)
        try:
            with metered(meter):
                return TemplateEnvironment().compile_metered(self.source)
        except Exception as error:
            raise _template_error(error) from error

    def _render(self, names: dict[str, Any], moment: datetime) -> str:
        if self._template is None:
            return _render_plain(names)
        try:
            meter = _make_meter(names)
            names["bos_token"], names["eos_token"] = self._bos_token, self._eos_token
            names["strftime_now"] = functools.partial(format_time, moment)
            with metered(meter):
                parts, n_chars = [], 0
                for part in self._template.generate(**names):
                    n_chars += len(part)
                    meter.check_chars(n_chars)
                    parts.append(part)
                return "".join(parts)
        except RefusedMessages as error:
            raise InvalidRequestError(str(_template_error(error))) from error
        except Exception as error:
            if not self._fallback:
                raise _template_error(error) from error
            warnings.warn(f"{_template_error(error)}; using a plain ChatML layout", stacklevel=3)
            return _render_plain(names)


def _make_meter(request: Any) -> Meter:
    """What a rendering may spend, by the size of its request."""
    endless = 1 << 62
    meter = Meter(endless, endless, endless)
    n_chars = meter.pay_for(request)
    units = endless - meter.left
    return Meter(
        _BASE_WORK + _WORK_PER_INPUT * units, _BASE_CHARS + _CHARS_PER_INPUT * n_chars, _BASE_NODES + 4 * units
    )


def _template_error(error: Exception) -> ChatTemplateError:
    """The typed error for anything that compiling or running a template raised, with the template's line."""
    if isinstance(error, TemplateSyntaxError):
        return ChatTemplateError(error.message or "syntax error", error.lineno)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    line = frames[-1].lineno if frames else None
    if isinstance(error, RecursionError):
        return ChatTemplateError("it nests too deeply", line)
    if isinstance(error, LimitExceeded):
        return ChatTemplateError(f"stopped: {error}", line)
    return ChatTemplateError(str(error) or type(error).__name__, line)


def _read_request(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    add_generation_prompt: bool,
    kwargs: Mapping[str, Any],
    map_text: MapText,
) -> dict[str, Any]:
    """Plain copies of a request's values under the template's names, texts passed through `map_text`."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidRequestError(f"messages: expected a list, found {type(messages).__name__}")
    plain: list[Any] = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidRequestError(f"messages[{i}]: expected a mapping, found {type(message).__name__}")
        role = message.get("role")
        if not isinstance(role, str) or not _WORD.fullmatch(role):
            raise InvalidRequestError(f"messages[{i}]: expected a role of letters, digits, '_' and '-', found {role!r}")
        rest = {key: value for key, value in message.items() if key != "role"}
        plain.append({"role": role} | _plain_copy(rest, f"messages[{i}]", map_text))
    names: dict[str, Any] = _plain_copy(dict(kwargs), "options", map_text)
    names["tools"] = None if tools is None else _plain_copy(tools, "tools", map_text)
    return {"documents": None} | names | {"messages": plain, "add_generation_prompt": bool(add_generation_prompt)}


def _plain_copy(value: Any, where: str, map_text: MapText, depth: int = 0) -> Any:
    """A copy made of None, bool, int, float, str, list and dict alone, so that a template meets nothing else."""
    if depth > _MAX_DEPTH:
        raise InvalidRequestError(f"{where}: nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, str):
        return map_text(str(value))
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        copy: dict[str, Any] = {}
        for key, inner in value.items():
            name = str(key) if _WORD.fullmatch(str(key)) else map_text(str(key))
            is_tag = name == "type" and isinstance(inner, str) and _WORD.fullmatch(inner)
            copy[name] = inner if is_tag else _plain_copy(inner, f"{where}.{key}", map_text, depth + 1)
        return copy
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain_copy(inner, f"{where}[{i}]", map_text, depth + 1) for i, inner in enumerate(value)]
    raise InvalidRequestError(f"{where}: expected text, numbers, lists and mappings, found {type(value).__name__}")


def _render_plain(names: Mapping[str, Any]) -> str:
    """ChatML."""
    out = []
    for message in names["messages"]:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
        out.append(f"<|im_start|>{message['role']}\n{content}<|im_end|>\n")
    return "".join(out) + ("<|im_start|>assistant\n" if names["add_generation_prompt"] else "")


def _mark_contents(
    control_texts: list[str], known: list[str], text: str, rendered: Callable[[MapText], str]
) -> tuple[str, frozenset[int]]:
    """Find the characters of a rendered text that came out of message contents and could make a control token.

    The first and last characters of control tokens are replaced in the contents, one for one, by private-use
    characters that occur nowhere else, and the text is rendered again: where those come out, contents came out. If a
    template looks at such characters (it may cut at `</think>`), the result would differ; then only those that belong
    to whole control tokens, or to parts of one at either end of a content, are replaced.

    Args:
        control_texts: the texts of control tokens.
        known: every text that may not hold a replacement character beforehand.
        text: the rendering without replacements.
        rendered: renders with contents passed through a function.

    Returns:
        The text to encode, and the indices of characters in it that no control token may contain.
    """
    edges = sorted({char for control in control_texts for char in (control[0], control[-1])})
    if not any(char in content for content in known[:-2] for char in edges):
        return text, frozenset()
    taken = set().union(*known)
    free = [char for char in map(chr, _PRIVATE_USE) if char not in taken]
    free += [char for char in map(chr, range(0xF0000, 0xF0000 + len(edges) + len(taken))) if char not in taken]
    swap = {ord(char): stand_in for char, stand_in in zip(edges, free, strict=False)}
    back = {ord(stand_in): chr(char) for char, stand_in in swap.items()}
    try:
        marked = rendered(lambda content: content.translate(swap))
    except (ChatTemplateError, InvalidRequestError):
        marked = ""
    if marked.translate(back) != text:
        spelled = _Spelled(control_texts)
        marked = rendered(lambda content: spelled.replace(content, swap))
    return marked.translate(back), frozenset(i for i, char in enumerate(marked) if ord(char) in back)


class _Spelled:
    """Finds control tokens spelled in a content, and parts of one at its ends."""

    def __init__(self, control_texts: list[str]) -> None:
        self._whole = re.compile("|".join(map(re.escape, sorted(control_texts, key=len, reverse=True))), re.IGNORECASE)
        self._heads = {control[:n] for control in control_texts for n in range(1, len(control))}
        self._tails = {control[n:] for control in control_texts for n in range(1, len(control))}
        self._longest = max(map(len, control_texts))

    def replace(self, content: str, swap: Mapping[int, str]) -> str:
        """Swap characters inside those stretches only."""
        n_head = max((n for n in range(1, self._longest) if content[:n] in self._tails), default=0)
        n_tail = max((n for n in range(1, self._longest) if content[-n:] in self._heads), default=0)
        out, start = [content[:n_head].translate(swap)], n_head
        for match in self._whole.finditer(content, n_head):
            out += [content[start : match.start()], match[0].translate(swap)]
            start = match.end()
        rest = content[start:]
        n_tail = min(n_tail, len(rest))
        return "".join(out) + rest[: len(rest) - n_tail] + rest[len(rest) - n_tail :].translate(swap)
