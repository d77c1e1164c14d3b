"""Find the best memory budget for your model: profile once, ask what each budget would give, check the answer.

    python docs/examples/best_budget.py [MODEL] [--ram SIZE] [--tokens N]

Experts that are not in memory are read from disk when a token needs them. How much speed more memory buys depends on
how often experts come back, which is a matter of the model and the text. A profile has recorded which experts each
token used, so the same run can be replayed through caches of other sizes, in no time.
"""

import argparse

import expertree
from expertree.models import resolve_model
from expertree.profile.prompted_run import default_prompts, profile_prompts
from rich.console import Console

CLOSE = 0.95  # of the fastest: worth less memory


def measure(path, ram, n_tokens):
    model = expertree.Model(path, ram=ram)
    return profile_prompts(model, default_prompts(model), n_tokens)


def speed(profile):
    decoding = profile.steps.decoding()
    return profile.steps.tokens[decoding].sum() / profile.steps.wall[decoding].sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=None, help="a GGUF file; default: the default model")
    parser.add_argument("--ram", default="30%", help="where to begin: a size, or a share of all experts")
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    path = resolve_model(arguments.model, Console(stderr=True))

    # ---- One profile, at a budget that does not hold everything.
    ram = arguments.ram
    if ram.endswith("%"):
        all_bytes = expertree.Model(path).experts["all_bytes"]
        ram = int(float(ram[:-1]) / 100 * all_bytes)
    profile = measure(path, ram, arguments.tokens)
    budget = profile.facts["budget"]
    print(f"measured with {budget['bytes'] / 2**20:.0f} MiB: {speed(profile):.2f} tokens/s\n")

    # ---- What other budgets would have given.
    curve = profile.budget_curve()
    print(f"{'share':>6}{'MiB':>8}{'hit rate':>10}{'MB/token':>10}{'tokens/s':>10}")
    for point in curve:
        fast = "" if point.tokens_per_second is None else f"{point.tokens_per_second:.2f}"
        size = point.bytes / 2**20
        print(f"{point.share:6.0%}{size:8.0f}{point.hit_rate:10.1%}{point.bytes_per_token / 1e6:10.2f}{fast:>10}")
    known = [point for point in curve if point.tokens_per_second is not None]
    if not known:
        print("\nnothing had to be read in this run, so it does not say what reading takes; begin with less (--ram)")
        return
    fastest = max(point.tokens_per_second for point in known)
    best = next(point for point in known if point.tokens_per_second >= CLOSE * fastest)

    # ---- Does it hold?
    print(f"\nbest: {best.bytes / 2**20:.0f} MiB, the least within {1 - CLOSE:.0%} of the fastest")
    measured = speed(measure(path, best.bytes, arguments.tokens))
    print(f"foretold {best.tokens_per_second:.2f} tokens/s, measured {measured:.2f}")


if __name__ == "__main__":
    main()
