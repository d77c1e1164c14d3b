"""Speed of a model on this machine, beside what the machine can do and, on request, beside llama.cpp.

A shared machine drifts by a factor of two within an hour. So every figure is the median of interleaved rounds, the
machine's limits are probed in every round, and a peer runs in the same rounds on the same file: after each case,
or, where memory does not hold the model twice, after all of them with the model unloaded (`run_in_turn`).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expertree import _core
from expertree.errors import DeviceError, InvalidRequestError
from expertree.model import Model
from expertree.session import Session

SCHEMA = "expertree.bench/1"
TESTS = ("prefill", "decode", "verify-chain", "verify-tree")
VERIFY_ROWS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Case:
    """test: prefill, decode, verify-chain or verify-tree; n: tokens or rows; depth: tokens before them."""

    test: str
    n: int
    depth: int = 0

    @property
    def n_ctx(self) -> int:
        return self.depth + self.n + 1


def default_cases(n_ctx: int) -> list[Case]:
    """Prefill 1 to 2048; decoding of 64 at depths 0 and 2048; verification of 1 to 64 rows after 32 tokens."""
    cases = [Case("prefill", n) for n in (1, 32, 512, 2048)]
    cases += [Case("decode", 64, depth) for depth in (0, 2048)]
    cases += [Case(f"verify-{form}", k, 32) for form in ("chain", "tree") for k in VERIFY_ROWS]
    return [case for case in cases if case.n_ctx <= n_ctx]


@dataclass(frozen=True)
class Result:
    """One case. Times are seconds per call (decode: per token).

    bytes_read: weights that a call must read from memory at least, and the KV cache before it; operations: a
    multiply-add counts two. of_read, of_int8: the share of the machine's probed limit that this is. spread: (min, max)
    seconds. cache_types: formats of keys and values. peer_ratio: peer's time over ours, with its 90 % interval over the
    rounds, of the better one of the peer's settings, peer_setting.
    """

    test: str
    n: int
    depth: int
    seconds: float
    spread: tuple[float, float]
    tokens_per_second: float
    bytes_read: float
    operations: float
    of_read: float
    of_int8: float | None
    read_gb_per_s: float
    int8_gops: float
    cache_types: tuple[str, str]
    peer_setting: str | None = None
    peer_tokens_per_second: float | None = None
    peer_ratio: float | None = None
    peer_ratio_interval: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}


class Work:
    """Bytes and operations that a call needs at least, from the file's tensors and the experts that it routes to."""

    def __init__(self, model: Model) -> None:
        tensors = model._core.file.tensors
        tied = all(t.name != "output.weight" for t in tensors)
        self._model = model
        self._head = next(t for t in tensors if t.name == ("token_embd.weight" if tied else "output.weight"))
        experts = [t for t in tensors if ".ffn_" in t.name and t.shape[-1:] == (model.n_experts,) and model.n_experts]
        experts = [t for t in experts if len(t.shape) == 3]
        names = {t.name for t in experts} | {self._head.name, "token_embd.weight"}
        rest = [t for t in tensors if t.name not in names]
        self._expert_bytes = sum(t.size_bytes for t in experts) / max(1, model.n_experts)
        self._expert_size = sum(int(np.prod(t.shape)) for t in experts) / max(1, model.n_experts)
        self._rest_bytes = sum(t.size_bytes for t in rest)
        self._rest_size = sum(int(np.prod(t.shape)) for t in rest)
        # Rows whose logits nobody asks for end with the keys and values of the last layer.
        last = f"blk.{model.n_layers - 1}."
        ends = {f"{last}attn_k.weight", f"{last}attn_v.weight"}
        self._ends_early = f"{last}attn_k.weight" in {t.name for t in tensors}
        left_out = [t for t in rest if t.name.startswith(last) and t.name not in ends] if self._ends_early else []
        self._last_size = sum(int(np.prod(t.shape)) for t in left_out)
        self._last_expert_size = sum(
            int(np.prod(t.shape)) for t in experts if self._ends_early and t.name.startswith(last)
        ) / max(1, model.n_experts)
        self._kv_bytes_per_token = model._core.kv_bytes(2) - model._core.kv_bytes(1)

    def bytes_read(
        self, ids: npt.NDArray[np.int32] | None, depth: int, head: bool = True, logit_rows: int | None = None
    ) -> float:
        """ids: (moe layers, rows, used) of a call's rows, of which the last logit_rows (None: all) have logits."""
        union = 0.0
        if ids is not None and ids.size > 0:
            unions = [np.unique(layer).size for layer in ids]
            if logit_rows is not None and self._ends_early:
                unions[-1] = np.unique(ids[-1][-logit_rows:]).size
            union = float(np.mean(unions))
        weights = self._rest_bytes + self._expert_bytes * union + (self._head.size_bytes if head else 0)
        return float(weights + depth * self._kv_bytes_per_token)

    def operations(self, rows: int, logit_rows: int) -> float:
        """Matrix products only; attention over the context is left out."""
        used = self._model.n_experts_used
        per_row = self._rest_size + self._expert_size * used
        left_out = (rows - logit_rows) * (self._last_size + self._last_expert_size * used)
        return 2.0 * (rows * per_row - left_out + logit_rows * int(np.prod(self._head.shape)))


@dataclass
class Rounds:
    """What the rounds of a case gave: seconds per call (decode: per token), the machine's limits (GB/s, GOPS), and the
    peer's seconds by its settings; and the bytes and operations of a call."""

    times: list[float] = field(default_factory=list)
    limits: list[tuple[float, float]] = field(default_factory=list)
    peer: list[dict[str, float]] = field(default_factory=list)
    bytes_read: float = 0.0
    operations: float = 0.0

    def result(self, case: Case, cache_types: tuple[str, str]) -> Result:
        seconds = statistics.median(self.times)
        rows = 1 if case.test == "decode" else case.n
        read = statistics.median(limit[0] for limit in self.limits)
        int8 = statistics.median(limit[1] for limit in self.limits)
        settings = self.peer[0] if self.peer else ()
        medians = {name: statistics.median(seconds[name] for seconds in self.peer) for name in settings}
        best = min(medians, key=lambda name: medians[name]) if medians else None
        ratios = [] if best is None else [p[best] / t for p, t in zip(self.peer, self.times, strict=True)]
        return Result(
            test=case.test,
            n=case.n,
            depth=case.depth,
            seconds=seconds,
            spread=(min(self.times), max(self.times)),
            tokens_per_second=rows / seconds,
            bytes_read=self.bytes_read,
            operations=self.operations,
            of_read=self.bytes_read / seconds / (read * 1e9),
            of_int8=self.operations / seconds / (int8 * 1e9) if int8 else None,
            read_gb_per_s=read,
            int8_gops=int8,
            cache_types=cache_types,
            peer_setting=best,
            peer_tokens_per_second=None if best is None else rows / medians[best],
            peer_ratio=statistics.median(ratios) if ratios else None,
            peer_ratio_interval=_interval(ratios) if ratios else None,
        )


class Bench:
    """Runs cases on a loaded model in interleaved rounds."""

    def __init__(self, model: Model, peer: Path | None = None, seed: int = 0) -> None:
        self._model = model
        self._peer = None if peer is None else Peer(peer, model)
        self._rng = np.random.default_rng(seed)
        self._work = Work(model)
        self._probe = _core.LimitProbe(model._core)

    def run(self, cases: Sequence[Case], rounds: int, progress: Callable[[], object] | None = None) -> Iterator[Result]:
        """Yields a result per case, in order; each case's rounds alternate with the probes and the peer.

        Raises:
            InvalidRequestError: no rounds, or a case longer than the model's context.
            DeviceError: the peer does not run.
        """
        _check(rounds)
        for case in cases:
            session = self.warm(case)
            measured = Rounds()
            for _ in range(rounds):
                self.measure(session, case, measured)
                if self._peer is not None:
                    measured.peer.append(self._peer.seconds([case])[case])
                if progress is not None:
                    progress()
            yield measured.result(case, self._model.cache_types)

    def warm(self, case: Case) -> Session:
        """A session that has run the case once: caches and pages are warm."""
        session = self._model.session(n_ctx=case.n_ctx)
        self._once(session, case)
        return session

    def measure(self, session: Session, case: Case, into: Rounds) -> None:
        """One more round of the case and of the machine's limits."""
        seconds, ids = self._once(session, case)
        into.times.append(seconds)
        into.limits.append(self._probe.measure(0.1))
        if into.operations and ids is None:
            return
        rows = 1 if case.test == "decode" else case.n
        if ids is None and self._model.n_experts:
            ids = self._model.routing(self._tokens(rows))[0]
        depth = case.depth + (case.n // 2 if case.test == "decode" else 0)
        logit_rows = case.n if case.test.startswith("verify") else 1
        into.bytes_read = self._work.bytes_read(ids, depth, logit_rows=logit_rows)
        into.operations = self._work.operations(rows, logit_rows)

    def _once(self, session: Session, case: Case) -> tuple[float, npt.NDArray[np.int32] | None]:
        session.truncate(min(len(session), case.depth))
        if len(session) < case.depth:
            session.prefill(self._tokens(case.depth - len(session)))
        if case.test == "prefill":
            return _timed(lambda: session.prefill(self._tokens(case.n))), None
        if case.test == "decode":
            if case.depth == 0:
                session.prefill(self._tokens(1))
            session.step()
            return _timed(lambda: [session.step() for _ in range(case.n - 1)]) / (case.n - 1), None
        parents = np.arange(-1, case.n - 1) if case.test == "verify-chain" else np.full(case.n, -1)
        rows = self._tokens(case.n)
        start = time.perf_counter()
        _, routed, _ = session._core.evaluate(rows, parents.astype(np.int32), bool(self._model.n_experts))
        seconds = time.perf_counter() - start
        session.rollback()
        return seconds, None if routed is None else routed[0]

    def _tokens(self, n: int) -> npt.NDArray[np.int32]:
        return self._rng.integers(0, self._model.n_vocab, n, dtype=np.int32)


def run_in_turn(
    load: Callable[[], Model],
    peer: Path,
    cases: Sequence[Case],
    rounds: int,
    progress: Callable[[], object] | None = None,
) -> list[Result]:
    """Each round loads the model, runs every case, unloads it, and runs the peer: only one of the two is in memory.

    Raises:
        InvalidRequestError: no rounds, or a case longer than the model's context.
        DeviceError: the peer does not run.
    """
    _check(rounds)
    measured = {case: Rounds() for case in cases}
    for i in range(rounds):
        model = load()
        other, cache_types = Peer(peer, model), model.cache_types
        _measure_all(model, measured, i, progress)
        del model
        for case, seconds in other.seconds(cases).items():
            measured[case].peer.append(seconds)
    return [rows.result(case, cache_types) for case, rows in measured.items()]


def _measure_all(model: Model, cases: dict[Case, Rounds], seed: int, progress: Callable[[], object] | None) -> None:
    bench = Bench(model, seed=seed)
    for case, rounds in cases.items():
        bench.measure(bench.warm(case), case, rounds)
        if progress is not None:
            progress()


class Peer:
    """llama.cpp's llama-bench on the same file and as many threads, with its weights repacked and as they are.

    It computes the logits of the last row only, so its cost of verifying k rows is understated, and it has no trees: a
    chain of the same length stands for both forms.
    """

    def __init__(self, program: Path, model: Model) -> None:
        self._command = [str(program), "-m", str(model.path), "-t", str(model.threads), "-r", "1", "-o", "json"]
        if model.cache_types != ("f32", "f32"):  # its own default is f16
            keys, values = model.cache_types
            self._command += ["-ctk", keys, "-ctv", values, *(["-fa", "1"] if values == "q8_0" else [])]
        knows = "--repack" in self._run(["--help"])
        self._settings = {"repack 0": ["--repack", "0"], "repack 1": ["--repack", "1"]} if knows else {"": []}

    def seconds(self, cases: Sequence[Case]) -> dict[Case, dict[str, float]]:
        """Seconds per call, or per token of decoding, by setting. One process for all cases of a depth."""
        found: dict[Case, dict[str, float]] = {case: {} for case in cases}
        for depth in {case.depth: None for case in cases}:
            here = [case for case in cases if case.depth == depth]
            prompts = sorted({case.n for case in here if case.test != "decode"})
            answers = sorted({case.n for case in here if case.test == "decode"})
            options = ["-p", _list(prompts), "-n", _list(answers), "-d", str(depth)]
            for name, setting in self._settings.items():
                rates = self._rates(setting + options)
                for case in here:
                    n_prompt, n_gen = (0, case.n) if case.test == "decode" else (case.n, 0)
                    found[case][name] = (1 if n_gen else n_prompt) / self._of(rates, n_prompt, n_gen)
        return found

    def _rates(self, options: list[str]) -> dict[tuple[int, int], float]:
        """Tokens per second by (n_prompt, n_gen)."""
        try:
            rows = json.loads(self._run(self._command[1:] + options))
            return {(int(row["n_prompt"]), int(row["n_gen"])): float(row["avg_ts"]) for row in rows}
        except (ValueError, LookupError, TypeError) as error:
            raise self._error(error) from error

    def _of(self, rates: dict[tuple[int, int], float], n_prompt: int, n_gen: int) -> float:
        rate = rates.get((n_prompt, n_gen), 0.0)
        if rate <= 0:
            raise self._error(f"no rate of {n_prompt or n_gen} tokens in its output")
        return rate

    def _run(self, options: list[str]) -> str:
        try:
            return subprocess.run([self._command[0], *options], capture_output=True, text=True, check=True).stdout
        except (OSError, UnicodeDecodeError, subprocess.CalledProcessError) as error:
            raise self._error(error) from error

    def _error(self, cause: object) -> DeviceError:
        return DeviceError(f"{self._command[0]} does not run as llama-bench does: {cause}")


def _check(rounds: int) -> None:
    if rounds < 1:
        raise InvalidRequestError(f"rounds is {rounds}; expected at least 1")


def _list(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers)) or "0"


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _interval(values: list[float]) -> tuple[float, float]:
    """5th and 95th percentile."""
    low, high = np.percentile(values, [5, 95])
    return float(low), float(high)
