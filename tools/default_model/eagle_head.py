"""Makes an EAGLE-3 head for any GGUF model that the engine runs, and measures it there.

    python tools/default_model/eagle_head.py MODEL.gguf --work DIR --out head.gguf [--prompts FILE] [--tokens N]

The model writes text through the engine, which taps its hidden states as it goes; the head is trained on them with
torch; `expertree chat MODEL.gguf --draft eagle3:head.gguf` uses it. Stages whose result is in DIR are skipped, and an
interrupted one goes on where it was: text by shards, training by its checkpoint of the last minute. Logs and curves:
DIR/logs. The same seed gives the same text and batches, whatever the hardware. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from functools import cached_property
from pathlib import Path
from typing import Any

import expertree
import numpy as np
import torch
from draft_heads import EagleHead, HeadSizes
from drafting_in_engine import tokens_per_step
from expertree.comparison.prompts import load_prompts
from export import write_eagle
from fitting import batches_by_length, fit
from target_file import TargetFile, head_sizes
from target_text import Shards, TappedText, bytes_per_token, prompts_for, question_prompt, save_shard, write_text
from torch import Tensor
from train_heads import STEPS, draft_vocabulary, eagle_losses

_HELD_OUT = 0.05  # share of the texts that the losses are measured on at the end
_NORM_SAMPLE = 64  # texts that feature scales come from
_MEASURED = ("chat", "code", "mathematics")  # the project's own prompts, never trained on
_VOCAB_ROWS = 8192  # of the output matrix at once


class HeadRecipe:
    """The stages, in order."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.a = arguments
        self.work: Path = arguments.work
        (self.work / "logs").mkdir(parents=True, exist_ok=True)
        self.target = TargetFile(arguments.model)
        self.sizes: HeadSizes = head_sizes(self.model, arguments.ffn, arguments.length + STEPS + 2)
        self._check_same_run()

    @cached_property
    def model(self) -> expertree.Model:
        return expertree.Model(self.a.model, threads=self.a.threads, n_ctx=max(1024, self.a.length + 1))

    def _check_same_run(self) -> None:
        """A work folder belongs to one model and one way of making text."""
        path = self.work / "run.json"
        now = {
            "model": self.a.model.name, "bytes": self.a.model.stat().st_size, "taps": list(self.sizes.taps),
            "length": self.a.length, "seed": self.a.seed, "prompts": str(self.a.prompts),
        }  # fmt: skip
        if not path.exists():
            path.write_text(json.dumps(now))
        elif (before := json.loads(path.read_text())) != now:
            raise SystemExit(f"{self.work} holds another run, {before}; this one is {now}. Give another --work")

    def log(self, stage: str, **values: Any) -> None:
        line = json.dumps(values)
        print(f"{stage}: {line}", flush=True)
        with (self.work / "logs" / f"{stage}.jsonl").open("a") as lines:
            print(line, file=lines)

    def run(self) -> None:
        self.write_texts()
        shards = Shards(self.work)
        self.normalise(shards)
        if not (self.work / "head.pt").exists():
            self.train(shards)
        self.export()
        self.measure()

    # Text and taps.

    def write_texts(self) -> None:
        done = Shards(self.work)
        n_tokens = sum(map(len, done.tokens))
        size = bytes_per_token(len(self.sizes.taps), self.sizes.width)
        needed = max(0, self.a.tokens - n_tokens) * size
        free = shutil.disk_usage(self.work).free
        print(f"hidden states of {self.a.tokens} tokens take {self.a.tokens * size / 1e6:.0f} MB in {self.work}")
        if needed * 1.1 > free:
            raise SystemExit(f"{self.work}: {needed / 1e6:.0f} MB needed, {free / 1e6:.0f} free; give fewer --tokens")
        given = read_prompts(self.a.prompts)
        for number in range(len(done.folders), 10**6):
            if n_tokens >= self.a.tokens:
                return
            start = time.monotonic()
            texts: list[TappedText] = []
            for prompt, heat, seed in prompts_for(self.model, given, self.a.seed * 10**6 + number):
                if STEPS + 2 < len(prompt) < self.a.length - 8:
                    texts.append(write_text(self.model, prompt, self.sizes.taps, self.a.length, heat, seed))
                    n_tokens += len(texts[-1].tokens)
                if sum(len(t.tokens) for t in texts) >= self.a.shard or n_tokens >= self.a.tokens:
                    break
            save_shard(self.work / f"shard-{number:05d}", texts)
            self.log(
                "text", shard=number, texts=len(texts), tokens=n_tokens, seconds=round(time.monotonic() - start, 1)
            )

    @torch.no_grad()
    def normalise(self, shards: Shards) -> None:
        """Of each token the logarithm of the sum of exp(logit) over the whole vocabulary, so that training needs the
        draft vocabulary's rows of the output matrix only."""
        for shard, folder in enumerate(shards.folders):
            if (folder / "log_sum.npy").exists():
                continue
            texts = [i for i in range(len(shards)) if shards.place(i)[0] == shard]
            hidden = torch.from_numpy(np.concatenate([shards.floats(i, "hidden") for i in texts]))
            total = torch.full((len(hidden),), -torch.inf)
            for first in range(0, self.target.n_vocab, _VOCAB_ROWS):
                rows = self.target.output_rows(np.arange(first, min(first + _VOCAB_ROWS, self.target.n_vocab)))
                for part, sum_so_far in zip(hidden.split(512), total.split(512), strict=True):
                    torch.logaddexp(sum_so_far, (part @ rows.T).logsumexp(-1), out=sum_so_far)
            np.save(folder / "log_sum.part.npy", total.numpy())
            (folder / "log_sum.part.npy").rename(folder / "log_sum.npy")

    # Training.

    @cached_property
    def vocabulary(self) -> Tensor:
        path = self.work / "vocabulary.npy"
        if not path.exists():
            size = min(self.a.draft_vocabulary, self.target.n_vocab)
            found = draft_vocabulary(Shards(self.work).tokens, [], size, tuple(self.model.tokenizer.eog_ids))
            np.save(path, found.numpy())
        return torch.from_numpy(np.load(path))

    def train(self, shards: Shards) -> None:
        torch.manual_seed(self.a.seed)
        head = EagleHead(len(self.vocabulary), self.sizes)
        data = TrainingData(shards, self.target, self.vocabulary)
        order = random.Random(self.a.seed).sample(range(len(shards)), len(shards))
        n_held = max(1, int(len(order) * _HELD_OUT))
        held, used = order[:n_held], order[n_held:]
        lengths = [len(shards.tokens[i]) for i in used]
        shortest = STEPS + 3
        if not any(n >= shortest for n in lengths):
            raise SystemExit(f"{len(shards)} texts, none of {shortest} tokens to train on; give more --tokens")
        sample = np.concatenate([shards.floats(i, "features") for i in used[:_NORM_SAMPLE]])
        head.start_from_target(torch.from_numpy(sample), data.output_rows, self.target.output_norm())

        def losses(batch: list[int]) -> tuple[dict[str, Tensor], int]:
            found, n = data.losses(head, [used[i] for i in batch])
            return found | {"loss": found["eagle"]}, n

        def one_pass(draw: random.Random) -> list[list[int]]:
            return batches_by_length(lengths, self.a.batch, draw, shortest)

        fit(
            head, losses, one_pass,
            self.work / "logs" / "train.jsonl", self.work / "head.pt",
            rate=1.5e-3, seed=self.a.seed, steps=self.a.passes * len(one_pass(random.Random(0))),
        )  # fmt: skip
        with torch.no_grad():
            found = [data.losses(head, [i])[0] for i in held if len(shards.tokens[i]) >= shortest]
        steps = [f"eagle_{s + 1}" for s in range(STEPS)]
        mean = {s: round(float(np.mean([f[s] for f in found])), 3) for s in steps if found}
        self.log("held_out", texts=len(found), cross_entropy=mean)

    def export(self) -> None:
        head = EagleHead(len(self.vocabulary), self.sizes)
        head.load_state_dict(torch.load(self.work / "head.pt", weights_only=True))
        metadata = self.model.metadata
        name = str(metadata.get("general.name", self.a.model.stem))
        write_eagle(head, self.vocabulary, self.a.out, name, metadata.get("general.license"))
        print(f"{self.a.out}: {self.a.out.stat().st_size / 1e6:.1f} MB", flush=True)

    # In the engine.

    def measure(self) -> None:
        if self.a.measure == 0:
            return
        for category in _MEASURED:
            texts = [p.text for p in load_prompts(categories=[category], per_category=self.a.measure)]
            prompts = [question_prompt(self.model, text) for text in texts]
            found = tokens_per_step(self.model, prompts, self.a.measure_tokens, {"eagle3": f"eagle3:{self.a.out}"})
            self.log("measure", category=category, prompts=len(prompts), tokens_per_step=found["eagle3"])


class TrainingData:
    """Batches out of shards. The target's rows of the draft vocabulary are in memory, its embeddings of what occurs."""

    def __init__(self, shards: Shards, target: TargetFile, vocabulary: Tensor) -> None:
        self.shards = shards
        self.output_rows = target.output_rows(vocabulary.numpy())
        occurring = np.unique(np.concatenate(shards.tokens))
        self._embeddings = target.embeddings(occurring)
        self._row_of = torch.zeros(target.n_vocab, dtype=torch.long)
        self._row_of[torch.from_numpy(occurring).long()] = torch.arange(len(occurring))
        self._log_sums = [np.load(folder / "log_sum.npy") for folder in shards.folders]

    def embed(self, tokens: Tensor) -> Tensor:
        return self._embeddings[self._row_of[tokens]]

    def losses(self, head: EagleHead, texts: list[int]) -> tuple[dict[str, Tensor], int]:
        """See `eagle_losses`; and how many tokens."""
        sizes, lengths = head.sizes, [len(self.shards.tokens[i]) for i in texts]
        shape = (len(texts), max(lengths))
        tokens = torch.zeros(shape, dtype=torch.long)
        features, p = torch.zeros(*shape, sizes.n_features), torch.zeros(*shape, len(self.output_rows))
        for row, (text, n) in enumerate(zip(texts, lengths, strict=True)):
            shard, place = self.shards.place(text)
            tokens[row, :n] = torch.from_numpy(self.shards.tokens[text].astype(np.int64))
            features[row, :n] = torch.from_numpy(self.shards.floats(text, "features"))
            logits = torch.from_numpy(self.shards.floats(text, "hidden")) @ self.output_rows.T
            p[row, :n] = (logits - torch.from_numpy(self._log_sums[shard][place])[:, None]).exp()
        found = eagle_losses(head, features, self.embed, p, tokens, torch.tensor(lengths))
        return found, sum(lengths)


def read_prompts(path: Path | None) -> list[str]:
    """User messages: one a line, or JSON lines with "text" or with "turns" (of which the first)."""
    if path is None:
        return []
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        if path.suffix == ".jsonl":
            try:
                entry = json.loads(line)
                line = entry["text"] if "text" in entry else entry["turns"][0]
            except (ValueError, LookupError, TypeError) as error:
                raise SystemExit(f'{path}:{number}: expected {{"text": ...}} or {{"turns": [...]}}: {error}') from error
        found.append(line)
    if not found:
        raise SystemExit(f"{path}: no prompts")
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder of hidden states, checkpoints and logs")
    parser.add_argument("--out", type=Path, required=True, help="the head's file")
    parser.add_argument("--prompts", type=Path, help="user messages; without: the model writes its own")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="tokens of text")
    parser.add_argument("--length", type=int, default=320, help="tokens of a text at most")
    parser.add_argument("--shard", type=int, default=8192, help="tokens of a shard")
    parser.add_argument("--passes", type=int, default=6, help="over the text, in training")
    parser.add_argument("--batch", type=int, default=1024, help="tokens of a training step")
    parser.add_argument("--draft-vocabulary", type=int, default=8192)
    parser.add_argument("--ffn", type=int, help="feed-forward width of the head; without: the model's dense one")
    parser.add_argument("--measure", type=int, default=8, help="prompts per category; 0: do not measure")
    parser.add_argument("--measure-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    parser.add_argument("--seed", type=int, default=0)
    found = parser.parse_args(arguments)
    if found.threads:
        torch.set_num_threads(found.threads)
    if found.length < 64 or found.tokens < found.length:
        raise SystemExit(
            f"--length {found.length}, --tokens {found.tokens}: at least 64, and at least one text's length"
        )
    try:
        HeadRecipe(found).run()
    except (expertree.Error, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
