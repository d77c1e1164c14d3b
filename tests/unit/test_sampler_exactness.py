"""What the sampler draws, and that speculation does not change it: P6, S8 to S11 and S16 of the list of cases."""

import numpy as np
import pytest
from expertree._core import _testing
from sampler_oracle import INF, chi_square_z, f32, softmax, survivors

Sampler = _testing.Sampler

# ---- S8: the distribution ----

N_DRAWS = 50_000
SIXTEEN = f32(np.random.default_rng(8).normal(size=16) * 1.2)


def counts_of(draws):
    return np.bincount(draws, minlength=16)


def filtered(logits, temperature=1.0, **filters):
    kept = survivors(f32(logits), **filters)
    probabilities = np.zeros(len(logits))
    probabilities[kept] = softmax(f32(logits).astype(np.float64)[kept] / temperature)
    return probabilities


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0.7},
        {"temperature": 1.8},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 1.3, "top_k": 9, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=str,
)
def test_s8_draws_follow_the_target(options):
    target = filtered(SIXTEEN, **options)
    draws = Sampler(16, seed=123, **options).sample_positions(SIXTEEN, 0, N_DRAWS)
    z = chi_square_z(counts_of(draws), target)
    assert z < 3.5, f"z = {z:.2f}"


def test_s8_draws_over_seeds_follow_the_target():
    draws = [Sampler(16, temperature=1.0, seed=seed).sample(SIXTEEN, 4) for seed in range(20_000)]
    assert chi_square_z(counts_of(draws), filtered(SIXTEEN)) < 3.5


def rejection_sampled(p, q_drawn, q_claimed, rng):
    """Speculative rejection sampling, told that drafts come from q_claimed while they come from q_drawn."""
    drafts = rng.choice(16, N_DRAWS, p=q_drawn)
    accepted = rng.random(N_DRAWS) < np.minimum(1, p[drafts] / np.maximum(q_claimed[drafts], 1e-300))
    rest = np.maximum(p - q_claimed, 0)
    return np.where(accepted, drafts, rng.choice(16, N_DRAWS, p=rest / rest.sum()))


def test_s8_negative_controls_are_rejected():
    """What other programs got wrong must be seen by the test above."""
    rng = np.random.default_rng(0)
    p = filtered(SIXTEEN)
    q = softmax(SIXTEEN + rng.normal(size=16) * 0.5)
    right = rejection_sampled(p, q, q, rng)
    assert chi_square_z(counts_of(right), p) < 3.5
    q_top = np.where(np.isin(np.arange(16), np.argsort(-q)[:4]), q, 0)
    drafted_after_top_k = rejection_sampled(p, q_top / q_top.sum(), q, rng)
    assert chi_square_z(counts_of(drafted_after_top_k), p) > 20
    argmax_draft = rejection_sampled(p, np.eye(16)[np.argmax(q)], q, rng)  # S9
    assert chi_square_z(counts_of(argmax_draft), p) > 20
    # And small faults of a sampler: temperature off by 6 %, a filter forgotten, a token never drawn.
    draws = Sampler(16, temperature=1.06, seed=123).sample_positions(SIXTEEN, 0, N_DRAWS)
    assert chi_square_z(counts_of(draws), p) > 3.5
    draws = Sampler(16, temperature=1.0, seed=123).sample_positions(SIXTEEN, 0, N_DRAWS)
    assert chi_square_z(counts_of(draws), filtered(SIXTEEN, top_k=14)) == INF
    banned = Sampler(16, temperature=1.0, seed=123, logit_bias=[(int(np.argmin(SIXTEEN)), -INF)])
    assert chi_square_z(counts_of(banned.sample_positions(SIXTEEN, 0, N_DRAWS)), p) > 3.5


# ---- P6, S10: seeds and streams ----


def text_of(seed, n=2000, logits=SIXTEEN, **options):
    return Sampler(logits.size, temperature=1.0, seed=seed, **options).sample_positions(logits, 0, n)


def test_p6_same_seed_same_text_other_seed_other_text():
    assert (text_of(7) == text_of(7)).all()
    assert (text_of(7) != text_of(8)).mean() > 0.5
    assert (text_of(7) != text_of(7 + 2**32)).mean() > 0.5
    a, b = _testing.draw_seed(), _testing.draw_seed()  # no seed given, twice
    assert a != b
    assert (text_of(a) != text_of(b)).any()


@pytest.mark.parametrize("other", ["seed", "next position", "far position"])
def test_s10_streams_are_independent(other):
    flat = f32(np.zeros(8))
    n = 40_000
    a = text_of(7, n + 1, flat)
    if other == "seed":
        a, b = a[:-1], text_of(8, n, flat)
    elif other == "next position":
        a, b = a[:-1], a[1:]
    else:
        b = Sampler(8, temperature=1.0, seed=7).sample_positions(flat, 2**32, n)
        a = a[:-1]
    pairs = np.bincount(a * 8 + b, minlength=64)
    assert abs(chi_square_z(pairs, np.full(64, 1 / 64))) < 4


def test_s10_interleaved_requests_do_not_disturb_each_other():
    together = [Sampler(16, temperature=1.0, seed=s) for s in (7, 8, 7)]
    texts = [[], [], []]
    for position in range(300):
        for sampler, text in zip(together, texts, strict=True):
            text.append(sampler.sample(SIXTEEN, position))
    assert texts[0] == texts[2] == text_of(7, 300).tolist()
    assert texts[1] == text_of(8, 300).tolist()


# ---- S9, S10, S11, S16: a toy model, decoded plainly and by verifying trees ----

V = 12


class ToyModel:
    """Logits that depend on the last two tokens; some rows hold exact ties at the top."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.table = f32(np.round(rng.normal(size=(V, V, V)) * 2, 1))

    def logits(self, tokens):
        return np.ascontiguousarray(self.table[tokens[-2], tokens[-1]])


def decode_plainly(model, sampler, prompt, n):
    tokens = list(prompt)
    while len(tokens) < len(prompt) + n:
        tokens.append(sampler.sample(model.logits(tokens), len(tokens), tokens))
    return tokens[len(prompt) :]


def decode_with_trees(model, sampler, prompt, n, draft, see_path=True):
    """draft(tokens) -> a tree as nested dicts {token: subtree}. Every node's row is sampled with its own ancestors."""
    tokens = list(prompt)
    n_steps = 0
    while len(tokens) < len(prompt) + n:
        n_steps += 1
        tree = draft(tokens)
        path = []
        while True:
            row = model.logits(tokens + path)
            chosen = sampler.sample(row, len(tokens) + len(path), tokens, path if see_path else [])
            path.append(chosen)
            if chosen not in tree:
                break
            tree = tree[chosen]
        tokens += path
    return tokens[len(prompt) :][:n], n_steps


def random_tree(rng, depth=4, width=3):
    if depth == 0:
        return {}
    children = rng.choice(V, rng.integers(0, width + 1), replace=False)
    return {int(token): random_tree(rng, depth - 1, width) for token in children}


def chain(tokens):
    tree = {}
    for token in reversed(tokens):
        tree = {token: tree}
    return tree


SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.5},
    {"temperature": 1.0, "top_k": 4, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.1, "repeat_penalty": 1.5, "penalty_last_n": 5},
    {"temperature": 0.0, "repeat_penalty": 1.5, "frequency_penalty": 0.3},
    {"temperature": 1.2, "presence_penalty": 1.0, "logit_bias": [(3, -INF), (5, 1.5)], "penalty_last_n": -1},
]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("drafter", ["empty", "random", "right", "wrong", "a a a"])
def test_s10_s11_text_is_the_same_with_and_without_drafts(options, drafter):
    model, prompt, n = ToyModel(), [1, 2, 3], 200
    sampler = Sampler(V, seed=7, **options)
    plain = decode_plainly(model, sampler, prompt, n + 8)
    rng = np.random.default_rng(1)

    def draft(tokens):
        done = len(tokens) - len(prompt)
        truth = plain[done : done + 5]
        if drafter == "right":
            return chain(truth)
        if drafter == "wrong":
            return chain([*truth[:2], (truth[2] + 1) % V, truth[3]])
        if drafter == "a a a":
            return chain([tokens[-1]] * 4)
        return random_tree(rng) if drafter == "random" else {}

    text, n_steps = decode_with_trees(model, sampler, prompt, n, draft)
    assert text == plain[:n]
    if drafter == "right":
        assert n_steps <= n / 6 + 1
    if drafter == "empty":
        assert n_steps == n


def test_s11_negative_control_forgetting_the_path_changes_the_text():
    model, prompt, n = ToyModel(), [1, 2, 3], 200
    sampler = Sampler(V, seed=7, repeat_penalty=1.5, frequency_penalty=0.3)
    plain = decode_plainly(model, sampler, prompt, n + 8)
    text, _ = decode_with_trees(
        model, sampler, prompt, n, lambda t: chain(plain[len(t) - 3 : len(t) + 2]), see_path=False
    )
    assert text != plain[:n]


def test_s9_a_deterministic_drafter_leaves_the_distribution_alone():
    """Always drafting the argmax: what is emitted is the target's own draw all the same."""
    draft = int(np.argmax(SIXTEEN))
    draws = Sampler(16, temperature=1.0, seed=31).sample_positions(SIXTEEN, 0, N_DRAWS)
    accepted = (draws == draft).mean()
    assert accepted == pytest.approx(filtered(SIXTEEN)[draft], abs=0.01)
    assert chi_square_z(counts_of(draws), filtered(SIXTEEN)) < 3.5


def test_coupling_makes_draft_and_target_agree():
    """Same noise on close distributions: they agree far more often than independent draws would, and at least as often
    as the bound (1 - d) / (1 + d), d the total variation distance (Daliri, Musco and Suresh 2024)."""
    rng = np.random.default_rng(2)
    draft_logits = f32(SIXTEEN + rng.normal(size=16) * 0.2)
    target = Sampler(16, temperature=1.0, seed=5).sample_positions(SIXTEEN, 0, 20_000)
    draft = Sampler(16, temperature=1.0, seed=5).sample_positions(draft_logits, 0, 20_000)
    distance = np.abs(softmax(SIXTEEN) - softmax(draft_logits)).sum() / 2
    agreement = (target == draft).mean()
    independent = float(softmax(SIXTEEN) @ softmax(draft_logits))
    assert agreement >= (1 - distance) / (1 + distance) - 0.01
    assert agreement > 3 * independent
