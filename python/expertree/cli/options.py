"""Options that several commands share, each declared once.

A command takes the groups it wants as parameters (`model_options: ModelOptions`); `@command` makes one option of each
of their fields and hands the command the groups filled in.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer

from expertree.cli.failures import failures_reported
from expertree.memory_size import parse_size

_MODEL_PANEL = "Model and machine"
_SAMPLING_PANEL = "Sampling"
_DRAFTING_PANEL = "Drafting: several tokens in one pass; the text stays the same"
# What the commands start from. `generate` is for programs and repeats itself exactly; `chat` is for people: enough
# warmth to be pleasant, and the long tail of unlikely words cut, which small models need.
GENERATE_DEFAULTS: Mapping[str, float] = {"temperature": 0.0}
CHAT_DEFAULTS: Mapping[str, float] = {"temperature": 0.4, "top_p": 0.9, "min_p": 0.05, "repeat_penalty": 1.05}

# Chat drafts where it pays; `generate` is what others are measured against, and drafts when told to.
CHAT_DRAFT = "auto"


def check_budget(text: str | None) -> str | None:
    if text is not None and text not in ("auto", "all") and parse_size(text) is None:
        raise typer.BadParameter(f"{text!r} is no size; give for example 6GiB, 800MiB, auto or all")
    return text


def _check_policy(name: str | None) -> str | None:
    from expertree.model import policy_names

    if name is not None and name not in ("auto", *policy_names()):
        raise typer.BadParameter(f"{name!r} is no policy to run with; there are: auto, {', '.join(policy_names())}")
    return name


def _check_plug(kind: str, known: list[str], spec: str) -> None:
    if spec.partition(":")[0] not in [name.partition(":")[0] for name in known]:
        raise typer.BadParameter(f"{spec!r} is no {kind}; there are: {', '.join(known)}")


def check_draft(spec: str | None) -> str | None:
    from expertree._core import split_drafters
    from expertree.model import drafter_names

    if spec is not None:
        parts = split_drafters(spec)
        whole = ["auto", "none"] if len(parts) == 1 else []  # a merge is of drafters themselves
        for part in parts:
            _check_plug("drafter", [*whole, *drafter_names()], part)
    return spec


def _check_select(spec: str | None) -> str | None:
    from expertree.model import selector_names

    if spec is not None:
        _check_plug("selector", selector_names(), spec)
    return spec


def _check_predict(spec: str | None) -> str | None:
    from expertree.model import predictor_names

    if spec is not None:
        _check_plug("predictor", ["none", *predictor_names()], spec)
    return spec


def _check_isa(name: str | None) -> str | None:
    from expertree._core import isa_names

    if name is not None and name not in isa_names():
        raise typer.BadParameter(f"{name!r} does not run here; this machine has: {', '.join(isa_names())}")
    return name


def _check_cache_type(name: str | None) -> str | None:
    from expertree.kv_cache import CACHE_TYPES

    if name is not None and name not in CACHE_TYPES:
        raise typer.BadParameter(f"{name!r} is no format of the KV cache; there are: {', '.join(CACHE_TYPES)}")
    return name


def _check_number(value: float | None) -> float | None:
    if value is not None and value - value != 0:
        raise typer.BadParameter(f"{value} is no finite number")
    return value


def _check_repeat_penalty(value: float | None) -> float | None:
    if value is not None and value <= 0:
        raise typer.BadParameter(f"{value} is not above 0; 1 is off")
    return _check_number(value)


def _check_seed(value: int | None) -> int | None:
    if value is not None and not 0 <= value < 2**64:
        raise typer.BadParameter(f"{value} is outside 0 to 2^64 - 1")
    return value


def _model(*names: str, help: str, **rest: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=_MODEL_PANEL, show_default=False, **rest)


def _sampling(*names: str, help: str, callback: Callable[..., Any] | None = _check_number, **rest: Any) -> Any:
    panel = _SAMPLING_PANEL
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=False, callback=callback, **rest)


def _drafting(*names: str, help: str, **rest: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=_DRAFTING_PANEL, show_default=False, **rest)


def _per_command(name: str, off: str) -> str:
    """The end of a help text: the default, by command."""
    chat, generate = (
        f"{defaults[name]:g}" if name in defaults else off for defaults in (CHAT_DEFAULTS, GENERATE_DEFAULTS)
    )
    return f"Default: {chat} in chat, else {generate}."


class OptionGroup:
    """A dataclass whose fields are options of the commands that take one."""


@dataclass(frozen=True)
class CacheOptions(OptionGroup):
    """In what format keys and values are kept."""

    cache_type: Annotated[
        str | None,
        _model(
            "--cache-type",
            metavar="NAME",
            callback=_check_cache_type,
            help="Format of the KV cache: f32, f16 (half the memory) or q8_0 (a quarter). Default: f32.",
        ),
    ] = None
    cache_type_k: Annotated[
        str | None,
        _model("--cache-type-k", "-ctk", metavar="NAME", callback=_check_cache_type, help="The same, of keys alone."),
    ] = None
    cache_type_v: Annotated[
        str | None,
        _model("--cache-type-v", "-ctv", metavar="NAME", callback=_check_cache_type, help="The same, of values alone."),
    ] = None

    @property
    def types(self) -> tuple[str, str]:
        both = self.cache_type or "f32"
        return self.cache_type_k or both, self.cache_type_v or both


@dataclass(frozen=True)
class ModelOptions(CacheOptions):
    """How a model is loaded."""

    threads: Annotated[int, _model("--threads", min=0, metavar="N", help="Worker threads. Default: one per core.")] = 0
    ctx: Annotated[
        int | None,
        _model("--ctx", min=1, metavar="N", help="Context length in tokens. Default: the model's own, at most 4096."),
    ] = None
    ram: Annotated[
        str | None,
        _model(
            "--ram",
            metavar="SIZE",
            callback=check_budget,
            help="Memory for expert weights: 6GiB, 800MiB, all; others are read when needed. Default: auto, all that "
            "leave room for the context and the system.",
        ),
    ] = None
    policy: Annotated[
        str | None,
        _model(
            "--policy",
            metavar="NAME",
            callback=_check_policy,
            help="Which experts stay in memory when not all do: lru, lfu-decay, layer-lfu, pinned. Default: auto.",
        ),
    ] = None
    vram: Annotated[
        str | None,
        _model(
            "--vram",
            metavar="SIZE",
            callback=check_budget,
            help="GPU memory for the model: 6GiB, all, or auto, what is free there. Default: 0, none.",
        ),
    ] = None
    isa: Annotated[
        str | None,
        _model(
            "--isa",
            metavar="NAME",
            callback=_check_isa,
            help="Instruction set: scalar, avx2, avx512, neon, dotprod. The text is the same. Default: the best here.",
        ),
    ] = None
    pre: Annotated[
        str | None,
        _model("--pre", metavar="NAME", help="Pre-tokenizer to use when the file's own is missing or unknown."),
    ] = None


@dataclass(frozen=True)
class SamplingOptions(OptionGroup):
    """How the next token is drawn; None where the command's default counts."""

    temperature: Annotated[
        float | None,
        _sampling(
            "--temperature",
            "--temp",
            min=0,
            metavar="T",
            help="0 always takes the likeliest token, more is more varied. " + _per_command("temperature", "0"),
        ),
    ] = None
    top_k: Annotated[
        int | None,
        _sampling("--top-k", min=0, metavar="N", help="Draw among the N likeliest tokens; 0 is off, the default."),
    ] = None
    top_p: Annotated[
        float | None,
        _sampling(
            "--top-p",
            min=0,
            max=1,
            metavar="P",
            help="Draw among the likeliest tokens that together reach P. " + _per_command("top_p", "1 (off)"),
        ),
    ] = None
    min_p: Annotated[
        float | None,
        _sampling(
            "--min-p",
            min=0,
            max=1,
            metavar="P",
            help="Leave out tokens below P times the likeliest. " + _per_command("min_p", "0 (off)"),
        ),
    ] = None
    repeat_penalty: Annotated[
        float | None,
        _sampling(
            "--repeat-penalty",
            metavar="X",
            callback=_check_repeat_penalty,
            help="Divide the scores of recent tokens. " + _per_command("repeat_penalty", "1 (off)"),
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        _sampling("--presence-penalty", metavar="X", help="Lower the score of tokens that occurred. Default: 0 (off)."),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        _sampling("--frequency-penalty", metavar="X", help="The same, for each occurrence. Default: 0 (off)."),
    ] = None
    seed: Annotated[
        int | None,
        _sampling(
            "--seed",
            metavar="N",
            callback=_check_seed,
            help="Same seed, same text. Default: drawn anew, and shown.",
        ),
    ] = None

    def values(self, defaults: Mapping[str, float]) -> dict[str, Any]:
        """Arguments for `Model.session`."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**defaults, **{name: value for name, value in given.items() if value is not None}}


@dataclass(frozen=True)
class DraftOptions(OptionGroup):
    """How tokens are drafted, if at all."""

    draft: Annotated[
        str | None,
        _drafting(
            "--draft",
            metavar="NAME[:ARG][+..]",
            callback=check_draft,
            help="Who proposes tokens: ngram looks for the last ones earlier in the text, eagle3:FILE is a trained "
            "head; auto takes the default model's own, for others ngram. Several in one tree: eagle3:FILE+ngram. "
            "Default: auto in chat, else none.",
        ),
    ] = None
    select: Annotated[
        str | None,
        _drafting(
            "--select",
            metavar="NAME[:ARG]",
            callback=_check_select,
            help="Which of them are verified: all, chain:N, ... Default: residency, those worth their time here.",
        ),
    ] = None
    predict: Annotated[
        str | None,
        _drafting(
            "--predict",
            metavar="NAME",
            callback=_check_predict,
            help="How the experts that they will need are guessed; none does not. Default: the default model's own "
            "where its head drafts, else last.",
        ),
    ] = None

    def values(self, default_draft: str | None = None) -> dict[str, Any]:
        """Arguments for `Model.session`."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        if default_draft is not None:
            return {"draft": default_draft, **given}
        for name in ("select", "predict"):
            if name in given and "draft" not in given:
                raise typer.BadParameter(f"--{name} needs a drafter: give --draft, for example --draft ngram")
        return given


_DEBUG = Annotated[bool, typer.Option("--debug", help="Show where an error came from (a traceback).")]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Makes a command of a function: option groups become options, failures become exit statuses, --debug is added."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    # Not get_type_hints: Python 3.10's hides the Annotated of a parameter that defaults to None inside an Optional.
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if isinstance(parameter.annotation, type) and issubclass(parameter.annotation, OptionGroup):
            groups[name] = parameter.annotation
            parameters += _group_parameters(parameter.annotation)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    debug = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_DEBUG)

    @functools.wraps(function)
    def run(**values: Any) -> None:
        with failures_reported(debug=values.pop("debug")):
            for name, group in groups.items():
                values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
            function(**values)

    parameters.append(debug)
    wrapper: Any = run
    wrapper.__doc__ = unwrapped(function.__doc__ or "")
    wrapper.__signature__ = inspect.Signature(parameters)
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del wrapper.__wrapped__  # or its signature would be taken
    return run


def _group_parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(group)
    ]


def unwrapped(documentation: str) -> str:
    """One line for each paragraph, for the terminal's width decides; indented lines stay as they are."""
    paragraphs = inspect.cleandoc(documentation).split("\n\n")
    return "\n\n".join(p if p.startswith(" ") else " ".join(p.split("\n")) for p in paragraphs)
