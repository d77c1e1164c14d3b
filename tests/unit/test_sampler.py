"""The sampler chain: an oracle of it, and cases P1 and P3.

The distribution of what it draws and its use in verification: test_sampler_exactness.py.
"""

import math

import numpy as np
import pytest
from expertree._core import _testing
from expertree.errors import InvalidRequestError, ModelFormatError
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sampler_oracle import INF, f32, oracle, penalised, softmax, survivors

Sampler = _testing.Sampler

logit_values = st.one_of(
    st.floats(-30, 30, width=32),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 5.0, 1e-45, -1e-45, 3e38, -3e38, -INF]),
)


@st.composite
def requests(draw):
    n_vocab = draw(st.integers(1, 40))
    logits = f32(draw(st.lists(logit_values, min_size=n_vocab, max_size=n_vocab)))
    assume((logits > -INF).any())
    token = st.integers(0, n_vocab - 1)
    options = {
        "temperature": draw(st.sampled_from([0.0, 1e-9, 0.3, 1.0, 2.5])),
        "top_k": draw(st.sampled_from([0, 1, 2, 3, 7, 100])),
        "top_p": draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0])),
        "min_p": draw(st.sampled_from([0.0, 0.01, 0.3, 1.0])),
        "repeat_penalty": draw(st.sampled_from([1.0, 1.5, 0.7])),
        "presence_penalty": draw(st.sampled_from([0.0, 0.8, -0.5])),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.25])),
        "penalty_last_n": draw(st.sampled_from([0, 1, 3, 64, -1])),
        "logit_bias": draw(st.lists(st.tuples(token, st.sampled_from([-INF, -3.0, 2.0])), max_size=3)),
        "seed": draw(st.integers(0, 2**64 - 1)),
    }
    history = draw(st.lists(token, max_size=12))
    return logits, options, history, draw(st.integers(0, 2**40))


@settings(max_examples=400, deadline=None)
@given(requests(), st.integers(0, 12))
def test_chain_equals_the_oracle(request_, split):
    logits, options, history, position = request_
    adjusted = penalised(
        logits,
        history,
        options["repeat_penalty"],
        options["presence_penalty"],
        options["frequency_penalty"],
        options["penalty_last_n"],
    )
    adjusted = np.where(logits == -INF, f32(-INF), np.clip(adjusted, -3.4028234e38, 3.4028234e38)).astype(np.float32)
    for token, bias in options["logit_bias"]:
        adjusted[token] += np.float32(bias)
    sampler = Sampler(logits.size, **options)
    split = min(split, len(history))
    if not (adjusted > -INF).any():
        with pytest.raises(InvalidRequestError, match="logit_bias"):
            sampler.sample(logits, position, history)
        return
    kept = survivors(adjusted, options["top_k"], options["top_p"], options["min_p"])
    assume(kept is not None)
    expected = oracle(adjusted, kept, position, options["temperature"], options["seed"])
    got = sampler.sample(logits, position, history[:split], history[split:])
    assert got in kept
    if expected is not None:
        assert got == expected
    assert sampler.sample(logits, position, history) == got  # no state, and the split of the history is no matter
    token, probability = sampler.sample_with_probability(logits, position, history)
    assert token == got
    if options["temperature"] < 1e-6:
        assert probability == 1
    else:
        scaled = adjusted[kept].astype(np.float64) / options["temperature"]
        assert probability == pytest.approx(softmax(scaled)[kept.index(got)], rel=1e-4, abs=1e-37)


@settings(max_examples=200, deadline=None)
@given(requests(), st.integers(1, 8))
def test_rank_lists_the_best_scores(request_, n):
    logits, options, history, position = request_
    options["logit_bias"] = []
    sampler = Sampler(logits.size, **options)
    ranked = sampler.rank(logits, position, n, history)
    everything = sampler.rank(logits, position, logits.size, history)
    assert ranked == everything[:n]
    assert ranked[0][0] == sampler.sample(logits, position, history)
    order = [(-score, token) for token, score, _ in everything]
    assert order == sorted(order)
    assert sum(p for _, _, p in everything) == pytest.approx(1, abs=1e-4)
    if options["temperature"] >= 1e-6:
        noise = _testing.gumbel_noise(options["seed"], position, np.array([t for t, _, _ in everything], np.int32))
        total = sum(math.exp(float(s) - float(g)) for (_, s, _), g in zip(everything, noise, strict=True))
        for (_, score, p), g in zip(everything, noise, strict=True):
            assert p == pytest.approx(math.exp(float(score) - float(g)) / total, rel=2e-3, abs=1e-30)
    assert sampler.rank(logits, position, 0, history) == []


@pytest.mark.parametrize("n_vocab", [5_000, 151_936])
@pytest.mark.parametrize("top_k", [1, 40, 1000])
@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.9999, 1.0])
def test_large_vocabularies_equal_the_oracle(n_vocab, top_k, top_p):
    rng = np.random.default_rng(n_vocab + top_k)
    logits = f32(np.round(rng.normal(size=n_vocab) * 3, 2))  # two decimals: many ties
    kept = survivors(logits, top_k, top_p)
    assert kept is not None
    sampler = Sampler(n_vocab, temperature=0.8, top_k=top_k, top_p=top_p, seed=9)
    for position in range(20):
        expected = oracle(logits, kept, position, np.float32(0.8), 9)
        assert expected in (None, sampler.sample(logits, position))
    assert sorted(t for t, _, _ in sampler.rank(logits, 0, n_vocab)) == kept


def test_large_vocabulary_without_filters_equals_the_oracle():
    """Most noise values are never computed: the bound that settles them must not change the choice."""
    rng = np.random.default_rng(1)
    for scale in (0.0, 0.5, 3.0, 20.0):
        logits = f32(rng.normal(size=151_937) * scale)
        sampler = Sampler(logits.size, temperature=1.0, seed=5)
        for position in range(12):
            expected = oracle(logits, np.arange(logits.size), position, 1.0, 5)
            assert expected in (None, sampler.sample(logits, position))


# ---- P1: what a broken model may produce ----


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("token", [0, 3, 15])
@pytest.mark.parametrize(("bad", "name"), [(np.nan, "NaN"), (-np.nan, "NaN"), (INF, r"\+inf")])
def test_p1_nan_and_infinity_are_errors(temperature, token, bad, name):
    good = f32(np.linspace(0, 1, 16))
    sampler = Sampler(16, temperature=temperature, top_k=5, repeat_penalty=1.3, seed=3)
    before = sampler.sample(good, 77, [1, 2])
    broken = good.copy()
    broken[token] = bad
    for call in (sampler.sample, sampler.sample_with_probability, lambda *a: sampler.rank(a[0], a[1], 4)):
        with pytest.raises(ModelFormatError, match=f"{name} for token {token} .*position 78"):
            call(broken, 78)
    assert sampler.sample(good, 77, [1, 2]) == before


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_p1_all_minus_infinity_is_an_error(temperature):
    sampler = Sampler(8, temperature=temperature)
    with pytest.raises(ModelFormatError, match="-inf for every token at position 5"):
        sampler.sample(f32([-INF] * 8), 5)
    one_left = f32([-INF] * 6 + [-3e38] + [-INF])
    assert sampler.sample(one_left, 5) == 6


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_banning_everything_is_the_callers_fault(temperature):
    sampler = Sampler(3, temperature=temperature, logit_bias=[(0, -INF), (2, -INF)])
    assert sampler.sample(f32([5, 0, 5]), 0) == 1
    with pytest.raises(InvalidRequestError, match="logit_bias"):
        sampler.sample(f32([5, -INF, 5]), 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_outside_the_vocabulary_in_the_history_is_refused(temperature):
    sampler = Sampler(4, temperature=temperature, repeat_penalty=2.0)
    logits = f32([1, 2, 3, 4])
    before = sampler.sample(logits, 0, [3, 3, 1])
    for bad in (4, -1, 2**31 - 1):
        with pytest.raises(InvalidRequestError, match=str(bad)):
            sampler.sample(logits, 0, [3, 2], [bad])
    assert sampler.sample(logits, 0, [3, 3, 1]) == before


# ---- P3: edges of the settings ----

FIVE = f32([1.0, 3.0, 3.0, -2.0, 0.5])  # probabilities 0.060 0.443 0.443 0.003 0.036: two equal best, ids 1 and 2


@pytest.mark.parametrize(
    ("options", "possible"),
    [
        ({"temperature": 1.0, "top_p": 0.0}, {1}),
        ({"temperature": 1.0, "top_p": 1e-30}, {1}),
        ({"temperature": 1.0, "top_p": 0.5}, {1, 2}),
        ({"temperature": 1.0, "top_p": 1.0}, {0, 1, 2, 3, 4}),
        ({"temperature": 1.0, "min_p": 0.0}, {0, 1, 2, 3, 4}),
        ({"temperature": 1.0, "min_p": 1.0}, {1, 2}),
        ({"temperature": 1.0, "min_p": 0.1}, {0, 1, 2}),
        ({"temperature": 0.0}, {1}),
        ({"temperature": 1e-9}, {1}),
        ({"temperature": -1.0, "top_p": 0.0, "min_p": 1.0, "top_k": 3}, {1}),
        ({"temperature": 1.0, "top_k": 1}, {1}),
        ({"temperature": 100.0, "top_k": 1000, "top_p": 1.0}, {0, 1, 2, 3, 4}),
    ],
)
def test_p3_edge_settings(options, possible):
    chosen = set(Sampler(5, seed=1, **options).sample_positions(FIVE, 0, 4000).tolist())
    assert chosen == possible


def test_a_vocabulary_of_one():
    for options in ({}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 1, "top_p": 0.0, "min_p": 1.0}):
        assert Sampler(1, **options).sample(f32([-7.0]), 0) == 0


def test_ties_go_to_the_lowest_id():
    equal = f32([2.0] * 300)
    assert Sampler(300).sample(equal, 0) == 0
    assert Sampler(300, logit_bias=[(0, -INF), (1, -INF)]).sample(equal, 0) == 2
    signed_zeros = f32([-1.0, -0.0, 0.0, 0.0])
    assert Sampler(4).sample(signed_zeros, 0) == 1
    ranked = Sampler(4).rank(signed_zeros, 0, 4)
    assert [t for t, _, _ in ranked] == [1, 2, 3, 0]
    assert {t for t, _, _ in Sampler(300, temperature=1.0, top_k=7).rank(equal, 3, 300)} == set(range(7))


def test_extreme_logits_do_not_overflow():
    huge = f32([3.4e38, -3.4e38, 3.4e38, 1e-45, -1e-45])
    for temperature in (0.0, 1e-5, 1.0, 1e30):
        for options in ({}, {"top_p": 0.9}, {"min_p": 0.1}, {"repeat_penalty": 1e-20}, {"presence_penalty": -3e38}):
            sampler = Sampler(5, temperature=temperature, seed=2, **options)
            assert 0 <= sampler.sample(huge, 1, [0, 0, 1]) < 5
            total = sum(p for _, _, p in sampler.rank(huge, 1, 5, [0, 0, 1]))
            assert total == pytest.approx(1, abs=1e-5)
    for temperature in (0.0, 1.0):  # both biased tokens are held at the largest float: a tie
        biased = Sampler(5, temperature=temperature, logit_bias=[(2, 3.4e38), (0, 3.4e38)])
        assert biased.sample(huge, 0) in ({0} if temperature == 0 else {0, 2})
        assert {t: p for t, _, p in biased.rank(huge, 0, 5) if p > 0} == {0: 0.5, 2: 0.5}


# ---- options ----


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", np.nan), ("temperature", INF), ("top_k", -1), ("top_p", -0.1), ("top_p", 1.1),
        ("top_p", np.nan), ("min_p", -0.1), ("min_p", 1.5), ("min_p", np.nan), ("repeat_penalty", 0.0),
        ("repeat_penalty", -1.0), ("repeat_penalty", INF), ("repeat_penalty", np.nan), ("presence_penalty", np.nan),
        ("frequency_penalty", INF), ("penalty_last_n", -2), ("logit_bias", [(-1, 0.0)]), ("logit_bias", [(16, 0.0)]),
        ("logit_bias", [(3, np.nan)]), ("logit_bias", [(3, INF)]),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(option, value):
    with pytest.raises(InvalidRequestError, match=rf"{option}.*expected.*found") as caught:
        Sampler(16, **{option: value})
    if option == "logit_bias":
        token, bias = value[0]
        value = bias if token == 3 else token  # 3 is in the vocabulary: its bias is wrong
    assert f"{value:g}" in str(caught.value)


def test_the_chain_is_in_the_documented_order():
    assert _testing.sampler_stage_names() == ["penalties", "logit_bias", "top_k", "top_p", "min_p", "temperature"]


def test_penalties_by_hand():
    logits = f32([2.0, -2.0, 1.0, 0.0])

    def shifted(**options):
        ranked = Sampler(4, **options).rank(logits, 0, 4, [0, 1, 1], [3])
        return {t: s for t, s, _ in ranked}

    # repeat 2: 2 -> 1, -2 -> -4, 0 -> 0; scores are relative to the best
    assert shifted(repeat_penalty=2.0) == {0: 0.0, 2: 0.0, 3: -1.0, 1: -5.0}
    assert shifted(presence_penalty=0.5) == {0: 0.0, 2: -0.5, 3: -2.0, 1: -4.0}
    assert shifted(frequency_penalty=0.5) == {0: 0.0, 2: -0.5, 3: -2.0, 1: -4.5}
    assert shifted(frequency_penalty=0.5, penalty_last_n=2) == {0: 0.0, 2: -1.0, 3: -2.5, 1: -4.5}
    assert shifted(repeat_penalty=2.0, penalty_last_n=0) == {0: 0.0, 2: -1.0, 3: -2.0, 1: -4.0}
    # bias comes after the penalty and is not scaled by it
    assert shifted(repeat_penalty=2.0, logit_bias=[(0, 4.0)]) == {0: 0.0, 2: -4.0, 3: -5.0, 1: -9.0}


def test_penalty_window():
    logits = f32([1.0, 0.9, 0.0])
    history = [0] + [2] * 64
    assert Sampler(3, repeat_penalty=2.0).sample(logits, 65, history) == 0  # token 0 is 65 back: out of the 64
    assert Sampler(3, repeat_penalty=2.0).sample(logits, 65, history[:-1]) == 1
    assert Sampler(3, repeat_penalty=2.0, penalty_last_n=-1).sample(logits, 65, history) == 1
    assert Sampler(3, repeat_penalty=2.0, penalty_last_n=2).sample(logits, 65, [0], [2]) == 1
    assert Sampler(3, repeat_penalty=2.0, penalty_last_n=2).sample(logits, 65, [0], [2, 2]) == 0
    assert Sampler(3, repeat_penalty=2.0, penalty_last_n=2).sample(logits, 65, [0], [2, 2, 2]) == 0


@settings(max_examples=400, deadline=None)
@given(requests(), st.integers(0, 40))
def test_the_best_logits_are_enough(request_, n_more):
    """A sampler that says how many of a row's best logits decide chooses from them what it chooses from all."""
    logits, options, history, position = request_
    none = {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": []}
    sampler = Sampler(len(logits), **{**options, **none})
    greedy, top_k = options["temperature"] < 1e-6, options["top_k"]
    assert sampler.n_deciding == (1 if greedy else top_k + 1 if 0 < top_k < len(logits) else 0)
    penalises = Sampler(len(logits), **{**options, **none, "presence_penalty": 0.5, "penalty_last_n": 3})
    assert penalises.n_deciding == 0
    if sampler.n_deciding == 0:
        return
    ids = np.argsort(-logits, kind="stable")[: sampler.n_deciding + n_more].astype(np.int32)
    assert sampler.sample_best(logits[ids].copy(), ids, position) == sampler.sample(logits, position, history)
