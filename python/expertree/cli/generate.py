"""`expertree generate`: one completion."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from expertree.cli.failures import EXIT_INTERRUPTED
from expertree.cli.interrupts import cancel_on_interrupt
from expertree.cli.loading import load_model, remember_experts
from expertree.cli.options import GENERATE_DEFAULTS, DraftOptions, ModelOptions, SamplingOptions, command
from expertree.cli.terminal import TextStream
from expertree.errors import InvalidRequestError
from expertree.generation import Generation, run_generation
from expertree.model import Model, encode_messages, text_options
from expertree.text import ReasoningForm

SCHEMA = "expertree.generate/1"


@command
def generate(
    model: Annotated[
        str | None, typer.Argument(help="A GGUF file, or a name that `expertree models` lists.", show_default=False)
    ] = None,
    *,
    prompt: Annotated[
        str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The text to go on from.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", metavar="FILE", help="Read it from a file; - is stdin.")
    ] = None,
    as_chat: Annotated[
        bool, typer.Option("--chat", help="Take the text as a message and answer it, through the chat template.")
    ] = False,
    max_tokens: Annotated[
        int, typer.Option("-n", "--max-tokens", metavar="N", min=0, help="Most tokens to generate.")
    ] = 256,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="End where this text comes; may be given several times."),
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after an end-of-text token.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: tokens, text, statistics.")] = False,
    sampling: SamplingOptions,
    drafting: DraftOptions,
    options: ModelOptions,
) -> None:
    """Complete a text once, and stream what comes. Without -p and -f the text is read from stdin.

    The same command gives the same text: the temperature is 0 unless you set it; then --seed decides.

    [bold]Examples[/bold]

      expertree generate -p "The capital of France is" -n 16
      expertree generate model.gguf --chat -f question.txt --temperature 0.7 --seed 1
      expertree generate --json -p "1, 2, 3," --stop "10" | jq -r .text

    --json prints schema ("expertree.generate/1"), model, prompt_tokens (how many), tokens (the ids generated), text,
    reasoning (null without), finish_reason (stop, length or cancelled) and stats.
    """
    drafts = drafting.values()
    text = _read_prompt(prompt, file)
    loaded = load_model(model, options, drafts)
    ids, reasoning = _encode(loaded, text, as_chat)
    settings = text_options(max_tokens, stop, ignore_eos=ignore_eos, reasoning=reasoning)
    session = loaded.session(**drafts, **sampling.values(GENERATE_DEFAULTS))
    out = TextStream(sys.stdout)
    with cancel_on_interrupt() as interrupt:
        generation = run_generation(session, loaded.tokenizer, ids, settings, None if as_json else out.write)
    remember_experts(loaded)
    if as_json:
        print(json.dumps(_to_json(loaded, len(ids), generation)))
    else:
        out.end_line()
        _comment(generation)
    if interrupt.happened:
        raise typer.Exit(EXIT_INTERRUPTED)


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    """The text to go on from. Bytes that are not UTF-8 survive as what the tokenizer makes byte tokens of."""
    if prompt is not None and file is not None:
        raise typer.BadParameter("give -p TEXT or -f FILE, not both")
    if prompt is not None:
        return prompt
    if file is not None and str(file) != "-":
        return file.read_bytes().decode("utf-8", "surrogateescape")
    if file is None and sys.stdin.isatty():
        raise typer.BadParameter("give the text to go on from: -p TEXT, -f FILE, or on stdin")
    return sys.stdin.buffer.read().decode("utf-8", "surrogateescape")


def _encode(model: Model, text: str, as_chat: bool) -> tuple[list[int], ReasoningForm | None]:
    """Token ids, and how the answer of a chat marks reasoning."""
    reasoning = None
    if as_chat:
        ids, reasoning = encode_messages(model, [{"role": "user", "content": text}])
    else:
        ids = model.tokenizer.encode(text, add_special=True, parse_special=True)
    if not ids:
        raise InvalidRequestError("the prompt is empty, and this model has no start token; give some text")
    return ids, reasoning


def _to_json(model: Model, n_prompt: int, generation: Generation) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": str(model.path),
        "prompt_tokens": n_prompt,
        "tokens": generation.tokens,
        "text": generation.text,
        "reasoning": generation.reasoning,
        "finish_reason": generation.finish_reason,
        "stats": generation.stats,
    }


def _comment(generation: Generation) -> None:
    """A dim line for a person at the terminal."""
    notes = TextStream(sys.stderr)
    if not notes.is_terminal:
        return
    stats = generation.stats
    speed = f"{len(generation.tokens):,} tokens, {stats.get('decode_tokens_per_second', 0.0):.1f} tokens/s"
    if "accepted_per_step" in stats:
        speed += f", {stats['accepted_per_step']:.2f} drafted tokens accepted per step"
    inside = " inside its reasoning" if generation.reasoning and not generation.text else ""
    reasons = {"length": f"; stopped{inside} at the limit (-n, --ctx)", "cancelled": "; stopped by Ctrl-C"}
    notes.note(f"{speed}; seed {stats.get('seed')}{reasons.get(generation.finish_reason, '')}")
