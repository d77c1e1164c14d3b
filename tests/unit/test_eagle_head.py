"""tools/default_model/eagle_head.py from end to end on a tiny model that can chat; only where torch is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import expertree
import numpy as np
import pytest
from chat_model import write_chat_model

torch = pytest.importorskip("torch", reason="torch is not installed; it trains heads")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "default_model"))

import eagle_head  # noqa: E402
from target_file import TargetFile, head_sizes  # noqa: E402
from target_text import Shards  # noqa: E402

LENGTH, TOKENS = 96, 700


def arguments(model: Path, work: Path, *more: str) -> list[str]:
    sizes = ["--tokens", str(TOKENS), "--length", str(LENGTH), "--shard", "256", "--batch", "256", "--passes", "2"]
    fixed = ["--draft-vocabulary", "64", "--measure", "0", "--threads", "1"]
    return [str(model), "--work", str(work), "--out", str(work / "head.gguf"), *sizes, *fixed, *more]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("eagle")
    model = write_chat_model(folder / "tiny.gguf", arch="mixtral")
    prompts = folder / "prompts.txt"
    prompts.write_text("What is it?\nWhy?\nTell me about rivers.\n")
    eagle_head.main(arguments(model, folder / "work", "--prompts", str(prompts)))
    return model, folder / "work"


def test_the_engine_drafts_with_the_head(made: tuple[Path, Path]) -> None:
    model = expertree.Model(made[0], n_ctx=256)
    plain = model.generate([1, 2, 3], max_tokens=40, temperature=0.0, ignore_eos=True)
    drafted = model.generate(
        [1, 2, 3], max_tokens=40, temperature=0.0, ignore_eos=True, draft=f"eagle3:{made[1]}/head.gguf", select="all"
    )
    assert drafted.tokens == plain.tokens
    assert drafted.stats["drafted"] > 0


def test_taps_and_distribution_are_the_targets(made: tuple[Path, Path]) -> None:
    """What training reads back from disk, against the engine's own logits."""
    model, target = expertree.Model(made[0], n_ctx=256), TargetFile(made[0])
    shards = Shards(made[1])
    assert sum(map(len, shards.tokens)) >= TOKENS and len(shards.folders) >= 2
    vocabulary = np.load(made[1] / "vocabulary.npy")
    assert len(vocabulary) == 64 and (np.diff(vocabulary) > 0).all()
    for text in (0, len(shards) - 1):
        logits = model.logits(shards.tokens[text]).astype(np.float64)
        wanted = np.exp(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))[:, vocabulary]
        shard, rows = shards.place(text)
        log_sum = np.load(shards.folders[shard] / "log_sum.npy")[rows]
        own = shards.floats(text, "hidden") @ target.output_rows(vocabulary).numpy().T
        assert np.abs(np.exp(own - log_sum[:, None]) - wanted).max() < 0.01
    sizes = head_sizes(model, None, LENGTH)
    assert shards.floats(0, "features").shape[1] == sizes.n_features


def test_a_finished_run_is_left_alone_and_another_is_refused(made: tuple[Path, Path]) -> None:
    model, work = made
    prompts = str(work.parent / "prompts.txt")
    before = {p: p.stat().st_mtime_ns for p in [*work.glob("shard-*/*"), work / "head.pt"]}
    eagle_head.main(arguments(model, work, "--prompts", prompts))
    assert before == {p: p.stat().st_mtime_ns for p in before}
    with pytest.raises(SystemExit, match="holds another run"):
        eagle_head.main(arguments(model, work, "--prompts", prompts, "--seed", "1"))


def test_an_interrupted_run_goes_on(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Text depends on the seed and its number alone, so a half-written shard comes back the same."""
    model, work = made
    prompts = str(work.parent / "prompts.txt")
    (tmp_path / "work" / "shard-00000.part").mkdir(parents=True)
    eagle_head.main(arguments(model, tmp_path / "work", "--prompts", prompts))
    first, again = Shards(work), Shards(tmp_path / "work")
    assert [t.tolist() for t in first.tokens] == [t.tolist() for t in again.tokens]
