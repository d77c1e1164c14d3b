"""Records what llama.cpp computes for the models of tests/variants.py, as tests/golden/variants.npz.

    python tools/record_variants.py PROGRAM MTP_PROGRAM

Both are small programs that link llama.cpp, which whoever records writes and builds: F32 keys and values, no flash
attention, one thread, no weight repacking, GELU's table off, each batch whole.

PROGRAM MODEL JOB OUT: JOB has whitespace-separated integers: the context, then three lists, each its length and its
tokens (prompt, tokens to take back, tokens fed instead), then a number of greedy tokens. OUT: int32 [5] (the prompt's
length, that of the third list, greedy tokens, anything, vocabulary), float32 logits of the prompt and of the third
list, int32 greedy tokens.

MTP_PROGRAM MODEL JOB OUT: JOB has a list and a number of steps. OUT: int32 [4] (tokens, vocabulary, width, steps),
float32 logits, hidden states, the block's logits at each position, and those of each step; int32 the tokens fed in the
steps, and those drafted.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

from variants import DRAWN, NEXTN, Job, checksum, draw, job_of  # noqa: E402

SEEDS = {"f32": range(6), "quantised": range(1), "nextn": range(2)}
N_GREEDY = 8
N_STEPS = 4


def listed(tokens: list[int]) -> str:
    return " ".join(str(number) for number in (len(tokens), *tokens))


def run(program: str, model: Path, job: str) -> bytes:
    job_path, out = model.with_suffix(".job"), model.with_suffix(".out")
    job_path.write_text(job + "\n")
    subprocess.run([program, str(model), str(job_path), str(out)], check=True, capture_output=True)
    return out.read_bytes()


def record(program: str, model: Path, n_ctx: int, job: Job) -> dict[str, np.ndarray]:
    lists = " ".join(listed(tokens) for tokens in (job.tokens, job.wrong, job.right))
    raw = run(program, model, f"{n_ctx} {lists} {N_GREEDY}")
    n, n_right, n_greedy, _, n_vocab = np.frombuffer(raw, np.int32, 5)
    logits = np.frombuffer(raw, np.float32, (n + n_right) * n_vocab, 20).reshape(-1, n_vocab)
    return {"logits": logits[n - 1], "after": logits[-1], "greedy": np.frombuffer(raw, np.int32)[-n_greedy:]}


def record_nextn(program: str, model: Path, job: Job) -> dict[str, np.ndarray]:
    raw = run(program, model, f"{listed(job.tokens)} {N_STEPS}")
    n_vocab, steps = np.frombuffer(raw, np.int32, 4)[[1, 3]]
    fed, drafted = np.frombuffer(raw, np.int32)[-2 * steps :].reshape(2, steps)
    logits = np.frombuffer(raw, np.float32)[: -2 * steps][-steps * n_vocab :].reshape(steps, n_vocab)
    return {"first": fed[0], "drafted": drafted, "drafted_logits": logits}


def main() -> None:
    """Records all."""
    program, nextn_program = sys.argv[1:]
    recorded: dict[str, list[np.ndarray]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, seeds in SEEDS.items():
            for arch in NEXTN if kind == "nextn" else DRAWN:
                for seed in seeds:
                    model = draw(arch, seed, quantised=kind == "quantised", nextn=kind == "nextn")
                    path = model.write(Path(folder) / "model.gguf", decode=True)
                    if kind == "nextn":
                        values = record_nextn(nextn_program, path, job_of(seed))
                    else:
                        values = record(program, path, model.n_ctx, job_of(seed))
                    values |= {"name": np.array(f"{arch} {seed} {kind}"), "checksum": np.array(checksum(model))}
                    for key, value in values.items():
                        recorded.setdefault(("nextn " if kind == "nextn" else "") + key, []).append(value)
    np.savez_compressed(TESTS / "golden" / "variants.npz", **{key: np.array(v) for key, v in recorded.items()})


if __name__ == "__main__":
    main()
