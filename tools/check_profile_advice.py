#!/usr/bin/env python3
"""Follows a profile's advice and compares what it foretold with what it brought; the limit is 30 %.

    python tools/check_profile_advice.py [--only memory|drafting|threads ...] [--tokens N] [--rounds N]
                                         [--paged MODEL] [--model MODEL] [--folder FOLDER]

memory:   --paged with a quarter of its experts in memory, then with a half.
drafting: --model plain, then with the drafter and the selector that the advice names.
threads:  --model with one thread, then with all cores.
--paged is by default a synthetic model of 2 layers of Qwen3-30B-A3B's shape (tools/make_synthetic_moe.py A --layers 2),
written to --folder, and read past the page cache; --model the default model. Both sides of a comparison are measured
alternately, and the profile of each round's first side makes the prediction; medians count. Run it on an idle machine.
Ends with status 1 if a prediction is off by more than the limit.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from expertree import Model
from expertree.models import resolve_model
from expertree.profile.advice import changes
from expertree.profile.budgets import BudgetModel
from expertree.profile.limits import Decoding
from expertree.profile.prompted_run import default_prompts, profile_prompts
from rich.console import Console

LIMIT = 0.3
SYNTHETIC_LAYERS = 2


def measure(model, arguments, **settings):
    return profile_prompts(model, default_prompts(model), arguments.tokens, **settings)


def speed(profile):
    return Decoding.of(profile).tokens_per_second


def probed(profile, model, seconds=20.0):
    profile.advise(model, seconds)
    return profile


def memory(arguments):
    path = arguments.paged or synthetic(arguments.folder)
    all_bytes = Model(path).experts["all_bytes"]
    drop_from_page_cache(path)  # and direct reads do not bring it back

    def round_():
        before = measure(Model(path, ram=int(0.25 * all_bytes)), arguments)
        foretold = BudgetModel(before).at_share(0.5).tokens_per_second
        after = measure(Model(path, ram=int(0.5 * all_bytes)), arguments)
        return speed(before), foretold / BudgetModel(before).at_share(0.25).tokens_per_second, speed(after)

    return "25 % of the experts in memory -> 50 %", round_


def drafting(arguments):
    model = Model(resolve_model(arguments.model, Console(stderr=True)))

    def round_():
        before = probed(measure(model, arguments), model)
        change = option(before, model, "--draft")
        words = change.option.split()
        settings = dict(zip(("draft", "select"), words[1::2], strict=True))
        after = measure(model, arguments, **settings)
        return speed(before), change.gain, speed(after)

    return "plain -> drafting as advised", round_


def threads(arguments):
    path = resolve_model(arguments.model, Console(stderr=True))

    def round_():
        model = Model(path, threads=1)
        before = probed(measure(model, arguments), model)
        change = option(before, model, "--threads")
        after = measure(Model(path, threads=int(change.option.split()[1])), arguments)
        return speed(before), change.gain, speed(after)

    return "1 thread -> all cores", round_


def option(profile, model, name):
    found = [change for change in changes(profile, model, 20.0) if change.option.startswith(name)]
    if not found:
        raise SystemExit(f"nothing was said about {name}")
    return max(found, key=lambda change: change.gain)


def drop_from_page_cache(path):
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def synthetic(folder):
    path = Path(folder) / f"synthetic-a{SYNTHETIC_LAYERS}.gguf"
    if not path.exists():
        tool = Path(__file__).parent / "make_synthetic_moe.py"
        command = [sys.executable, str(tool), "A", str(path), "--layers", str(SYNTHETIC_LAYERS), "--routing", "token"]
        subprocess.run(command, check=True)
    return path


CHECKS = {"memory": memory, "drafting": drafting, "threads": threads}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS))
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--paged", default=None)
    parser.add_argument("--model", default=None)
    parser.add_argument("--folder", default="/tmp")
    arguments = parser.parse_args()
    failed = False
    for name in arguments.only:
        what, round_ = CHECKS[name](arguments)
        rows = [round_() for _ in range(arguments.rounds)]
        before, foretold, after = (statistics.median(column) for column in zip(*rows, strict=True))
        brought = statistics.median(row[2] / row[0] for row in rows)
        error = foretold / brought - 1
        failed |= abs(error) > LIMIT
        print(
            f"{name:9} {what:40} {before:8.2f} -> {after:8.2f} tokens/s: foretold {foretold:.2f} times, "
            f"brought {brought:.2f} times, off by {error:+.0%}",
            flush=True,
        )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
