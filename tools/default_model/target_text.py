"""What a head is trained on, for any GGUF that the engine runs: conversations that the model writes through the engine,
with its hidden states tapped while it writes, in shards on disk.

Half precision, each row scaled by its largest value, so that no residual stream overflows:
(taps + 1) * width * 2 bytes and 16 more per token.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import expertree
import numpy as np
import numpy.typing as npt
from expertree import Drafter
from prompts import STARTS

_MARK = "OPENING"
_QUESTION_TOKENS = 100  # a longer question is dropped
_GREEDY_SHARE = 0.4
_HALF_MOST = 32768.0  # what the largest value of a row becomes

Floats = npt.NDArray[np.float32]


class Recorder(Drafter):
    """Drafts nothing; keeps what the target shows of every position."""

    last_hidden = True

    def __init__(self, tap_layers: Sequence[int]) -> None:
        self.tap_layers = list(tap_layers)
        self.rows: list[tuple[Any, Floats, Floats]] = []

    def draft(self, history: Any, limits: Any) -> tuple[list[int], list[int], list[float]]:
        return [], [], []

    def observe(self, tokens: Any, first_position: int, taps: Any, last_hidden: Any) -> None:
        self.rows.append((tokens.copy(), taps.reshape(len(tokens), -1).copy(), last_hidden.copy()))


@dataclass(frozen=True)
class TappedText:
    """One text. tokens int32 [n], of which `prompt` are given; features [n, taps * width], hidden [n, width]: the last
    layer's normalised output."""

    tokens: npt.NDArray[np.int32]
    prompt: int
    features: Floats
    hidden: Floats


def bytes_per_token(n_taps: int, width: int) -> int:
    return (n_taps + 1) * width * 2 + 16


def write_text(
    model: expertree.Model, prompt: list[int], tap_layers: Sequence[int], n: int, temperature: float, seed: int
) -> TappedText:
    """The prompt and at most n - len(prompt) tokens of the model's own, those that were run."""
    recorder = Recorder(tap_layers)
    # Nothing is drafted, so every step is a plain one.
    session = model.session(
        n_ctx=n + 1, draft=recorder, select="all", predict="none", temperature=temperature, seed=seed
    )
    session.prefill(prompt)
    ends = set(model.tokenizer.eog_ids)
    while len(session) < n:
        step = session.step(end_tokens=sorted(ends))
        if step is None or step.tokens[-1] in ends:
            break
    session.step()  # runs the last token
    tokens, features, hidden = (np.concatenate(part) for part in zip(*recorder.rows, strict=True))
    return TappedText(tokens.astype(np.int32), len(prompt), features, hidden)


def openings(model: expertree.Model) -> Callable[[str], list[int]]:
    """Ids of a conversation up to the first words of the user's turn; of the words alone without a chat template."""
    tokenizer = model.tokenizer
    head = ""
    if tokenizer.chat_template is not None:
        head = model.chat_template.render([{"role": "user", "content": _MARK}]).split(_MARK)[0]

    def encode(words: str) -> list[int]:
        ids = tokenizer.encode(head + words, parse_special=True)
        if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
            ids.insert(0, tokenizer.bos_id)
        return ids

    return encode


def question_prompt(model: expertree.Model, question: str) -> list[int]:
    """Ids up to where the answer begins."""
    if model.tokenizer.chat_template is None:
        return model.tokenizer.encode(question, add_special=True)
    return model.chat_template.encode_chat(model.tokenizer, [{"role": "user", "content": question}])


def prompts_for(model: expertree.Model, given: Sequence[str], seed: int) -> Iterator[tuple[list[int], float, int]]:
    """Prompt ids, temperature and seed of one text after the other, without end.

    given: user messages; without any the model writes them itself from the openings of the recipe (Xu et al. 2024,
    "Magpie"). Text number i depends on `seed` and i alone.
    """
    starts = ["", *(s.strip("\n") for s in STARTS.split("|"))]
    opening = openings(model)
    number = 0
    while True:
        draw = random.Random(f"{seed} {number}")
        heat = 0.0 if draw.random() < _GREEDY_SHARE else 0.8
        number += 1
        if given:
            yield question_prompt(model, draw.choice(given)), heat, draw.getrandbits(31)
            continue
        words = draw.choice(starts)
        ids = opening(words)
        if not ids:
            continue
        if model.tokenizer.chat_template is None:
            yield ids, heat, draw.getrandbits(31)
            continue
        asked = model.generate(ids, max_tokens=_QUESTION_TOKENS, temperature=1.0, top_p=0.95, seed=draw.getrandbits(31))
        if asked.finish_reason == "stop" and (words + asked.text).strip():
            yield question_prompt(model, words + asked.text), heat, draw.getrandbits(31)


def _halved(rows: Floats) -> tuple[npt.NDArray[np.float16], Floats]:
    scale = np.maximum(np.abs(rows).max(-1), 1e-20) / _HALF_MOST
    return (rows / scale[:, None]).astype(np.float16), scale.astype(np.float32)


def save_shard(folder: Path, texts: Sequence[TappedText]) -> None:
    """All or nothing."""
    staged = folder.with_name(folder.name + ".part")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    np.save(staged / "tokens.npy", np.concatenate([t.tokens for t in texts]))
    np.save(staged / "lengths.npy", np.array([[len(t.tokens), t.prompt] for t in texts]))
    for name in ("features", "hidden"):
        half, scale = _halved(np.concatenate([getattr(t, name) for t in texts]))
        np.save(staged / f"{name}.npy", half)
        np.save(staged / f"{name}_scale.npy", scale)
    staged.rename(folder)


class Shards:
    """All texts of a folder; the large arrays stay on disk."""

    def __init__(self, folder: Path) -> None:
        self.folders = sorted(p for p in folder.glob("shard-*") if p.suffix != ".part")
        self.tokens: list[npt.NDArray[np.int32]] = []
        self.prompts: list[int] = []
        self._places: list[tuple[int, slice]] = []
        self._arrays = [
            {name: np.load(p / f"{name}.npy", mmap_mode="r") for name in ("features", "hidden")}
            | {f"{name}_scale": np.load(p / f"{name}_scale.npy") for name in ("features", "hidden")}
            for p in self.folders
        ]
        for shard, path in enumerate(self.folders):
            tokens, first = np.load(path / "tokens.npy"), 0
            for length, prompt in np.load(path / "lengths.npy").tolist():
                self.tokens.append(tokens[first : first + length])
                self.prompts.append(prompt)
                self._places.append((shard, slice(first, first + length)))
                first += length

    def __len__(self) -> int:
        return len(self.tokens)

    def place(self, text: int) -> tuple[int, slice]:
        """Its shard, and its rows there."""
        return self._places[text]

    def floats(self, text: int, name: str) -> Floats:
        """name: "features" or "hidden"."""
        shard, rows = self._places[text]
        arrays = self._arrays[shard]
        return arrays[name][rows].astype(np.float32) * arrays[f"{name}_scale"][rows, None]
