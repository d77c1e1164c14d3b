"""The sampler chain in numpy, and the statistics of its tests."""

import math

import numpy as np
from expertree._core import _testing

INF = float("inf")


def f32(values):
    return np.ascontiguousarray(values, np.float32)


def softmax(logits):
    weights = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    return weights / weights.sum()


def chi_square_z(counts, probabilities):
    """Chi-square statistic as a standard normal deviate (Wilson and Hilferty); impossible outcomes must not occur."""
    counts, probabilities = np.asarray(counts, float), np.asarray(probabilities, float)
    possible = probabilities > 0
    if counts[~possible].any():
        return INF
    counts, expected = counts[possible], probabilities[possible] * counts.sum()
    assert expected.min() > 5
    degrees = counts.size - 1
    statistic = np.sum((counts - expected) ** 2 / expected)
    return ((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))


def penalised(logits, history, repeat=1.0, presence=0.0, frequency=0.0, last_n=64):
    logits = f32(logits).copy()
    window = history if last_n < 0 else history[len(history) - min(last_n, len(history)) :]
    with np.errstate(over="ignore"):
        for token in set(window):
            value = logits[token]
            value = value / np.float32(repeat) if value > 0 else value * np.float32(repeat)
            logits[token] = value - (np.float32(window.count(token)) * np.float32(frequency) + np.float32(presence))
    return logits


def best_first(logits, tokens):
    return sorted(tokens, key=lambda t: (-logits[t], t))


def survivors(logits, top_k=0, top_p=1.0, min_p=0.0):
    """Tokens that the filters leave; None when rounding could decide differently."""
    kept = [t for t in range(len(logits)) if logits[t] > -INF]
    if 0 < top_k < len(kept):
        kept = best_first(logits, kept)[:top_k]
    if top_p < 1.0:
        ordered = best_first(logits, kept)
        cumulative = np.cumsum(softmax(logits[ordered]))
        wanted = float(np.float32(top_p))
        if np.abs(cumulative - wanted).min() < 1e-6 and len(set(logits[ordered].tolist())) > 1:
            return None
        n = int(np.searchsorted(cumulative, wanted, side="left")) + 1
        kept = ordered[: min(n, len(ordered))]
    if min_p > 0.0:
        behind = logits[kept].astype(np.float64) - np.float64(max(logits[kept]))  # log of the ratio of probabilities
        if min_p < 1.0 and np.abs(behind - math.log(min_p)).min() < 1e-5:
            return None
        kept = [t for t, b in zip(kept, behind, strict=True) if b >= math.log(min_p)]
    return sorted(kept)


def oracle(logits, kept, position, temperature, seed):
    """The token, or None when the two best scores are too close for float32 to be told apart."""
    kept = np.array(kept, np.int32)
    z = f32(logits)[kept]
    if temperature < 1e-6:
        return int(kept[np.argmax(z)])
    scores = (z.astype(np.float64) - np.float64(z.max())) / temperature + _testing.gumbel_noise(seed, position, kept)
    order = np.argsort(-scores, kind="stable")
    if len(kept) > 1 and scores[order[0]] - scores[order[1]] < 1e-4:
        return None
    return int(kept[order[0]])
