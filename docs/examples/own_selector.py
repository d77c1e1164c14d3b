"""Write your own selector in 30 lines, and compare it with those that are there.

    python docs/examples/own_selector.py [MODEL] [--draft NAME] [--tokens N]

A selector decides which drafted tokens are worth verifying; whatever it says, the text stays the same, only the speed
changes. This one walks down from the likeliest drafts and goes on while the tokens that a step is expected to give,
divided by the seconds that the step is expected to take, still rise.
"""

import argparse

import expertree
import numpy as np
from expertree.models import resolve_model
from expertree.profile.prompted_run import default_prompts, profile_prompts
from rich.console import Console

# ---- The selector


class BestRate(expertree.Selector):
    """Adds nodes, likeliest first, for as long as expected tokens per second rise."""

    def select(self, tree, cost):
        chosen, best = [], self.rate(tree, [], cost)
        # A node's score is at most its parent's, and parents come first: a stable sort keeps the choice closed.
        for node in np.argsort(-tree.scores, kind="stable"):
            rate = self.rate(tree, [*chosen, node], cost)
            if rate < best:
                break
            chosen, best = [*chosen, node], rate
        return chosen

    def rate(self, tree, nodes, cost):
        # The score is the probability that the node is kept; one more token comes from the model in any case.
        tokens = 1.0 + float(tree.scores[nodes].sum()) if len(nodes) else 1.0
        seconds = cost.draft_seconds() + cost.step_seconds(sorted(int(n) for n in nodes))
        return tokens / max(seconds, 1e-9)


# ---- The comparison


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=None, help="a GGUF file; default: the default model")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    model = expertree.Model(resolve_model(arguments.model, Console(stderr=True)))
    prompts = default_prompts(model)[:2]

    print(f"{'selector':12}{'tokens/s':>10}{'drafted':>9}{'verified':>9}{'accepted':>9}{'predicted/measured':>20}")
    texts = set()
    for name, select in (("plain", None), ("residency", "residency"), ("all", "all"), ("BestRate", BestRate())):
        settings = {} if select is None else {"draft": arguments.draft, "select": select}
        profile = profile_prompts(model, prompts, arguments.tokens, **settings)
        steps = profile.steps
        decoding = steps.decoding()
        speed = steps.tokens[decoding].sum() / steps.wall[decoding].sum()
        foretold = decoding & (steps.predicted > 0)
        error = float(np.median(steps.predicted[foretold] / steps.measured[foretold])) if foretold.any() else np.nan
        means = [float(column[decoding].mean()) for column in (steps.drafted, steps.verified, steps.accepted)]
        print(f"{name:12}{speed:10.1f}{means[0]:9.2f}{means[1]:9.2f}{means[2]:9.2f}{error:20.2f}")
        texts.add(tuple(steps.last_token[decoding & (steps.session == 0)][-1:]))
    print("the last token is the same each time" if len(texts) == 1 else f"the texts differ: {texts}")


if __name__ == "__main__":
    main()
