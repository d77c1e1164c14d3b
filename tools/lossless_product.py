#!/usr/bin/env python3
"""Drafting changes no token: the whole product of tests/equivalence/test_speculation.py's table, in bounded time.

    python tools/lossless_product.py [--hours H] [--jobs N] [--tokens N] [--journal FILE] [--only KEY=VALUE ...]

Every architecture, drafter, selector, predictor, temperature, sampler setting, memory and tree size together, 500
tokens each, against the session without a drafter: the tokens, and then the next token and the logits behind it, at the
end and half-way back. Left out are cases that are another one by another name: predictors for selectors that do not
look at experts, and predictors and paging for models without any.

First come cases in which every three values of the table meet (some thousand, a quarter of an hour on an idle core),
then all others, shuffled once and for all, so that a run which --hours ends has tried an even sample. The whole takes
days. The journal keeps what has been done, and a further run goes on from there; it begins anew when the table has
changed. A line of progress every 30 seconds; each failure is printed with its case. Status 1 if any case failed, 3 if
the time was up.
"""

import argparse
import hashlib
import itertools
import json
import multiprocessing
import queue
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "equivalence")]

LOOK_AT_EXPERTS = ("residency", "s2moe", "ecospec", "ecospec-static", "exhaustive", "random")
INCOMPLETE = 3


def all_cases(only):
    from test_speculation import FACTORS
    from tiny_model import MOE_ARCHITECTURES

    cases = []
    for values in itertools.product(*FACTORS.values()):
        case = dict(zip(FACTORS, values, strict=True))
        has_experts = case["arch"] in MOE_ARCHITECTURES
        if not has_experts and (case["memory"] != "all" or case["predictor"] != "none"):
            continue
        if case["selector"] not in LOOK_AT_EXPERTS and case["predictor"] != "none":
            continue
        if all(str(case[key]) == value for key, value in only):
            cases.append(case)
    random.Random(0).shuffle(cases)
    return triples_first(cases)


def triples_first(cases):
    """The cases in another order, and how many of them are enough for every three values to meet."""
    names = list(cases[0]) if cases else []
    groups = list(itertools.combinations(range(len(names)), 3))

    def triples(case):
        values = list(case.values())
        return [(group, tuple(values[i] for i in group)) for group in groups]

    met, chosen, taken = set(), [], set()
    # The fuller ones first; the last turn looks at all cases and takes whatever is new.
    for least, n_looked_at in ((40, 3000), (20, 6000), (10, 12000), (4, 24000), (1, len(cases))):
        for place, case in enumerate(cases[:n_looked_at]):
            if place in taken:
                continue
            fresh = [triple for triple in triples(case) if triple not in met]
            if len(fresh) >= least:
                met.update(fresh)
                taken.add(place)
                chosen.append(case)
    return chosen + [case for place, case in enumerate(cases) if place not in taken], len(chosen)


class Worker:
    """Runs cases; models and plain runs are kept."""

    def __init__(self, folder, n_tokens):
        self.folder, self.n_tokens = folder, n_tokens
        self.models, self.plain = {}, {}

    def load(self, fields, **options):
        import expertree
        from tiny_model import TinyModel

        key = repr((sorted(fields.items()), sorted(options.items())))
        if key not in self.models:
            path = self.folder / f"{hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()}.gguf"
            if not path.exists():
                TinyModel(**fields).write(path)
            self.models[key] = expertree.Model(path, **options)
        return self.models[key]

    def check(self, case):
        """Raises AssertionError when drafting changed anything."""
        from test_speculation import DRAFTERS, PROMPT, SAMPLERS, SELECTORS, assert_same_state, load, run

        sampling = {"temperature": case["temperature"], "seed": 11, **SAMPLERS[case["sampler"]]}
        key = tuple(case[name] for name in ("arch", "temperature", "sampler", "cache"))
        if key not in self.plain:
            session = load(self.load, case["arch"], cache=case["cache"]).session(n_ctx=1024, **sampling)
            session.prefill(PROMPT)
            truth = PROMPT + run(session, self.n_tokens + 4)
            session.truncate(len(PROMPT) + self.n_tokens)
            self.plain[key] = truth, session
        truth, plain = self.plain[key]
        nodes = min(case["nodes"], 16) if case["selector"] == "exhaustive" else case["nodes"]
        session = load(self.load, case["arch"], case["memory"], case["cache"]).session(
            n_ctx=1024,
            draft=DRAFTERS[case["drafter"]](truth),
            select=SELECTORS[case["selector"]](),
            predict=case["predictor"],
            draft_nodes=nodes,
            **sampling,
        )
        session.prefill(PROMPT)
        run(session, self.n_tokens)
        end = len(PROMPT) + self.n_tokens
        assert session.tokens == truth[:end], "another text"
        session.truncate(end - 1)
        other = plain.branch()
        other.truncate(end - 1)
        assert_same_state(session, other, [len(PROMPT) + self.n_tokens // 2])


def work(places, cases, folder, n_tokens, deadline, found):
    worker = Worker(folder, n_tokens)
    for place in places:
        if time.time() > deadline or not multiprocessing.parent_process().is_alive():
            break
        try:
            worker.check(cases[place])
            found.put((place, None))
        except Exception:
            found.put((place, traceback.format_exc()))
    found.put((None, None))


class Journal:
    """Places of cases that have passed, one a line, below a line that tells the table."""

    def __init__(self, path, cases, n_tokens):
        table = hashlib.sha256(json.dumps([n_tokens, cases]).encode()).hexdigest()
        self.done = set()
        if path.exists():
            first, *lines = path.read_text().splitlines() or [""]
            if first == table:
                self.done = {int(line) for line in lines if line.isdigit()}
        if not self.done:
            path.write_text(table + "\n")
        self.file = path.open("a", buffering=1)

    def add(self, place):
        self.done.add(place)
        self.file.write(f"{place}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--hours", type=float, default=1.0, help="stop after so long (default 1)")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--journal", type=Path, default=Path("lossless-product.txt"))
    parser.add_argument("--only", action="append", default=[], metavar="KEY=VALUE", help="cases with this value")
    arguments = parser.parse_args()
    cases, n_triples = all_cases([entry.partition("=")[::2] for entry in arguments.only])
    journal = Journal(arguments.journal, cases, arguments.tokens)
    left = [place for place in range(len(cases)) if place not in journal.done]
    print(f"{len(cases)} cases, {len(journal.done)} done before; every three values meet in {n_triples}", flush=True)
    start, failed, n_run, n_ended = time.time(), 0, 0, 0
    deadline = start + arguments.hours * 3600
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        workers = []
        for i in range(arguments.jobs):
            share = (left[i :: arguments.jobs], cases, Path(folder) / str(i), arguments.tokens, deadline, found)
            share[2].mkdir()
            workers.append(context.Process(target=work, args=share))
            workers[-1].start()
        shown = start
        while n_ended < len(workers):
            try:
                place, error = found.get(timeout=5)
            except queue.Empty:
                if any(worker.exitcode not in (None, 0) for worker in workers):
                    raise SystemExit("a worker died") from None
                continue
            if place is None:
                n_ended += 1
                continue
            n_run += 1
            if error is None:
                journal.add(place)
            else:
                failed += 1
                print(f"FAILED {cases[place]}\n{error}", flush=True)
            if time.time() - shown > 30:
                shown = time.time()
                rate = n_run / (shown - start)
                hours = [max(0, n - len(journal.done)) / rate / 3600 for n in (n_triples, len(cases))]
                print(
                    f"{len(journal.done)}/{len(cases)}, {failed} failed, {rate:.1f} cases/s, {hours[0]:.1f} h to go "
                    f"for triples, {hours[1]:.1f} h for all",
                    flush=True,
                )
        for worker in workers:
            worker.join()
    seconds = time.time() - start
    print(
        f"{len(journal.done)}/{len(cases)} passed, {failed} failed; {n_run} in {seconds / 60:.1f} minutes", flush=True
    )
    if failed:
        raise SystemExit(1)
    raise SystemExit(0 if len(journal.done) == len(cases) else INCOMPLETE)


if __name__ == "__main__":
    main()
