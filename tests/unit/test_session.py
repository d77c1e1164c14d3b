"""Sessions: context limits, cancelling, errors that leave everything as it was (CASES E4, H6, H8, K3, P6, P7, S2)."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import expertree
import numpy as np
import pytest
from tiny_model import TinyModel
from waiting import wait_until

Loader = Callable[..., expertree.Model]
QWEN = {"arch": "qwen3moe", "format": "Q8_0"}
CONFORMANCE = Path(__file__).parent.parent / "conformance"


def test_k3_prompt_around_the_context(load_tiny: Loader) -> None:
    """n_ctx - 1 and n_ctx tokens run; one more is refused with both numbers, and the session lives."""
    model = load_tiny(QWEN)
    for n, n_generated in ((31, 2), (32, 1)):
        session = model.session(n_ctx=32)
        session.prefill([1] * n)
        assert len(list(session)) == n_generated  # until the context is full
        assert session.step() is None
    session = model.session(n_ctx=32)
    with pytest.raises(expertree.InvalidRequestError, match=r"33 tokens.*32"):
        session.prefill([1] * 33)
    session.prefill([1, 2, 3])
    assert session.tokens == [1, 2, 3]


def test_context_full_ends_a_generation_with_length(load_tiny: Loader) -> None:
    model = load_tiny(QWEN, n_ctx=32)
    result = model.generate([1, 2, 3], max_tokens=None, ignore_eos=True)
    assert result.finish_reason == "length"
    assert len(result.tokens) == 30
    longer = load_tiny(QWEN, n_ctx=64).generate([1, 2, 3], max_tokens=30, ignore_eos=True)
    assert longer.tokens == result.tokens  # the limit changes where it ends, not what it says


def test_s2_a_tree_past_the_context_is_refused_whole(load_tiny: Loader) -> None:
    session = load_tiny(QWEN).session(n_ctx=8)
    session.prefill([1, 2, 3, 4, 5, 6])
    with pytest.raises(expertree.InvalidRequestError, match=r"9 tokens.*8"):
        session.evaluate([1, 2, 3])
    wide = session.evaluate([1, 2, 3, 4, 5], [-1, -1, -1, 0, 0])  # many rows, two positions
    assert wide.shape == (5, 96)
    session.rollback()
    with pytest.raises(expertree.InvalidRequestError, match="rows fit"):
        session.evaluate([1] * 600, [-1] * 600)
    assert session.tokens == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([], "no tokens"),
        ([96], "96"),
        ([-1], "-1"),
        ([2**40], "32-bit"),
        ([[1]], "flat"),
        ([1.5], "flat"),
        ("ab", "flat"),
    ],
)
def test_bad_tokens(tokens: object, words: str, load_tiny: Loader) -> None:
    session = load_tiny(QWEN).session()
    session.prefill([4])
    for call in (session.prefill, session.evaluate):
        with pytest.raises(expertree.InvalidRequestError, match=words):
            call(tokens)  # type: ignore[arg-type]
    assert session.tokens == [4]
    assert session.step() is not None


def test_empty_prompt_and_nothing_to_continue(load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    with pytest.raises(expertree.InvalidRequestError, match="no tokens"):
        model.generate([])
    with pytest.raises(expertree.InvalidRequestError, match="prefill first"):
        model.session().step()


@pytest.mark.parametrize("parents", [[0], [-2], [5], [-1, 1], [-1, -1, 0]])
def test_bad_parents(parents: list[int], load_tiny: Loader) -> None:
    session = load_tiny(QWEN).session()
    session.prefill([1])
    with pytest.raises(expertree.InvalidRequestError, match="parent"):
        session.evaluate([1] * min(2, len(parents)), parents)


@pytest.mark.parametrize("path", [[1], [0, 2], [0, 1, 1], [7], [-1]])
def test_bad_commit_changes_nothing(path: list[int], load_tiny: Loader) -> None:
    session = load_tiny(QWEN).session()
    session.prefill([1])
    session.evaluate([1, 2, 3], [-1, 0, -1])
    with pytest.raises(expertree.InvalidRequestError, match="path to commit"):
        session.commit(path)
    session.commit([0, 1])
    assert session.tokens == [1, 1, 2]


def test_pending_rows_must_be_settled(load_tiny: Loader) -> None:
    session = load_tiny(QWEN).session()
    session.prefill([1])
    session.evaluate([2])
    blocked = (session.step, lambda: session.prefill([1]), lambda: session.truncate(0), lambda: session.evaluate([1]))
    for call in blocked:
        with pytest.raises(expertree.InvalidRequestError, match=r"commit\(path\) or rollback\(\)"):
            call()
    session.rollback()
    assert session.step() is not None


def test_bad_sampler_settings(load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    for bad in (
        {"top_p": 1.5}, {"top_p": float("nan")}, {"min_p": -0.1}, {"repeat_penalty": 0.0}, {"top_k": -1},
        {"top_k": 1.5}, {"seed": -1}, {"seed": 2**64}, {"logit_bias": {96: 1.0}}, {"temperature": "hot"},
        {"penalty_last_n": -2}, {"temprature": 1.0}, {"top_k": 2**40}, {"logit_bias": [1]}, {"n_ctx": 0},
        {"n_ctx": "4"},
    ):  # fmt: skip
        with pytest.raises(expertree.InvalidRequestError, match=next(iter(bad))):
            model.session(**bad)
    for bad in ({"max_tokens": -1}, {"max_tokens": 1.5}, {"stop": ""}, {"stop": [1]}, {"stop": 5}):
        with pytest.raises(expertree.InvalidRequestError, match=next(iter(bad))):
            model.generate([1], **bad)


def test_p6_seeds(load_tiny: Loader) -> None:
    """The same seed twice: equal. Another: different. None: drawn anew, and reported so that it can be used again."""
    model = load_tiny(QWEN)

    def run(seed: int | None) -> tuple[list[int], int]:
        result = model.generate([1, 2, 3], max_tokens=24, temperature=1.0, seed=seed, ignore_eos=True)
        return result.tokens, result.stats["seed"]

    assert run(7) == run(7)
    assert run(7)[0] != run(8)[0]
    first, second = run(None), run(None)
    assert first[1] != second[1] and first[0] != second[0]
    assert run(first[1]) == first


def test_each_token_is_drawn_for_its_own_position(load_tiny: Loader) -> None:
    """Token n is what the sampler makes of the logits after n tokens, of noise n, and of those n tokens as history."""
    model = load_tiny(QWEN)
    session = model.session(temperature=1.0, repeat_penalty=1.5, seed=11)
    sampler = expertree._core._testing.Sampler(model.n_vocab, temperature=1.0, repeat_penalty=1.5, seed=11)
    session.prefill([1, 2, 3])
    for _ in range(20):
        tokens = session.tokens
        expected = sampler.sample(model.logits(tokens)[-1], len(tokens), tokens)
        assert session.step().tokens == [expected]  # type: ignore[union-attr]


def test_p7_alone_or_with_neighbours_or_after_a_kept_prefix(load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    prompt = list(range(30))
    alone = model.generate(prompt, max_tokens=20, ignore_eos=True).tokens
    # Two sessions take turns.
    a, b = model.session(), model.session(temperature=1.0, seed=3)
    a.prefill(prompt)
    b.prefill(prompt[::-1])
    mixed = []
    for _ in range(20):
        mixed += a.step().tokens  # type: ignore[union-attr]
        b.step()
    assert mixed == alone
    # A session that keeps the common prefix of an earlier request.
    b.truncate(0)
    b.prefill([*prompt[:12], 90, 91])
    b.step()
    b.truncate(12)
    b.prefill(prompt[12:])
    b.set_sampling(expertree.sampling.SamplingParams())
    assert [b.step().tokens[0] for _ in range(20)] == alone  # type: ignore[union-attr]


def test_e4_two_models_live_side_by_side(load_tiny: Loader) -> None:
    """Different architectures, instruction sets and thread counts in one process do not touch each other."""
    one, other = load_tiny(QWEN, threads=2), load_tiny({"arch": "llama", "format": "Q4_1"}, isa="scalar", threads=1)
    expected = [m.generate([1, 2], max_tokens=12, ignore_eos=True).tokens for m in (one, other)]
    a, b = one.session(), other.session()
    a.prefill([1, 2])
    b.prefill([1, 2])
    got: list[list[int]] = [[], []]
    for _ in range(12):
        got[0] += a.step().tokens  # type: ignore[union-attr]
        got[1] += b.step().tokens  # type: ignore[union-attr]
    assert got == expected


def test_many_threads_share_a_model(load_tiny: Loader) -> None:
    """Long enough that passes would overlap if the model let them."""
    model = load_tiny(QWEN)

    def texts_of(i: int) -> list[list[int]]:
        return [model.generate([i + 1] * 40, max_tokens=40, ignore_eos=True).tokens for _ in range(6)]

    expected = [texts_of(i) for i in range(6)]
    got: list[list[list[int]] | None] = [None] * 6
    together = threading.Barrier(6)

    def work(i: int) -> None:
        together.wait()
        got[i] = texts_of(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == expected


@pytest.fixture(scope="module")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> expertree.Model:
    """48 layers on scalar kernels: a prefill of 2,000 tokens takes many seconds, a layer's share a fraction of one."""
    spec = TinyModel(arch="qwen3moe", n_layers=48, n_ctx=4096)
    return expertree.Model(spec.write(tmp_path_factory.mktemp("slow") / "m.gguf"), isa="scalar", threads=1)


def test_h8_cancel_from_another_thread(slow_model: expertree.Model) -> None:
    session = slow_model.session(n_ctx=4096)
    session.prefill([5, 6])
    threading.Timer(0.3, session.cancel).start()
    with pytest.raises(expertree.Cancelled):
        session.prefill([1] * 4000)
    assert session.tokens == [5, 6]  # as it was
    fresh = slow_model.session()
    fresh.prefill([5, 6])
    assert session.step() == fresh.step()


def test_h8_a_second_thread_is_refused_while_a_call_runs(slow_model: expertree.Model) -> None:
    session = slow_model.session(n_ctx=4096)
    outcome: list[BaseException] = []

    def prefill() -> None:
        while not outcome:
            try:
                session.prefill([1] * 4000)
            except expertree.InvalidRequestError:
                continue  # came during a call of the other thread, so it is this one that was refused
            except expertree.Cancelled as error:
                outcome.append(error)

    thread = threading.Thread(target=prefill, daemon=True)

    def is_refused() -> bool:
        with pytest.raises(expertree.InvalidRequestError) as error:
            session.step()
        return "another thread" in str(error.value)  # before the call runs: nothing to continue

    thread.start()
    wait_until(is_refused)
    session.cancel()
    thread.join()
    assert len(outcome) == 1


def test_h3_a_cancelled_generation_says_so(slow_model: expertree.Model) -> None:
    session = slow_model.session(n_ctx=4096)

    def cancel_after_a_few() -> None:  # asks while the other thread generates, which is allowed
        while len(session) < 6 or session.stats["decode_tokens"] < 3:
            time.sleep(0.001)
        assert session.tokens[:2] == [1, 2]
        session.cancel()

    thread = threading.Thread(target=cancel_after_a_few)
    thread.start()
    options = expertree.generation.TextOptions(max_tokens=4000)
    result = expertree.generation.run_generation(session, None, [1, 2], options)
    thread.join()
    assert result.finish_reason == "cancelled"
    assert 3 <= len(result.tokens) < 4000


def test_h8_ctrl_c_in_a_prefill(tmp_path: Path) -> None:
    """A real SIGINT: KeyboardInterrupt comes out of the call, long before it would have ended by itself."""
    spec = TinyModel(arch="qwen3moe", n_layers=48, n_ctx=4096)
    spec.write(tmp_path / "m.gguf")
    script = f"""
import expertree, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell starts with it ignored
model = expertree.Model({str(tmp_path / "m.gguf")!r}, isa="scalar", threads=2)
session = model.session(n_ctx=4096)
try:
    print("ready", flush=True)
    session.prefill([1] * 4000)
except KeyboardInterrupt:
    print("interrupted", session.tokens, flush=True)
session.prefill([1, 2])
print(session.step() is not None)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait() == 0
    assert rest == "interrupted []\nTrue\n"


def test_h6_end_of_text_first_gives_an_empty_answer() -> None:
    model = expertree.Model(CONFORMANCE / "llama.gguf")
    result = model.generate([1, 5], logit_bias={next(iter(model.tokenizer.eog_ids)): 1e9})
    assert (result.text, result.finish_reason, len(result.tokens)) == ("", "stop", 1)


def test_stop_strings_and_streaming() -> None:
    model = expertree.Model(CONFORMANCE / "qwen3.gguf")
    prompt = [10, 20, 30]
    plain = model.generate(prompt, max_tokens=40, ignore_eos=True)
    stop = plain.text[5:8]
    seen: list[str] = []
    cut = model.generate(prompt, max_tokens=40, ignore_eos=True, stop=stop, stream=seen.append)
    assert cut.text == plain.text[: plain.text.index(stop)] == "".join(seen)
    assert cut.finish_reason == "stop"
    assert plain.finish_reason == "length"
    with pytest.raises(expertree.InvalidRequestError, match="stream is 'out'; expected a function"):
        model.generate(prompt, max_tokens=2, stream="out")  # type: ignore[arg-type]
    with pytest.raises(expertree.InvalidRequestError, match="sampling is 5; expected a SamplingParams"):
        model.session().set_sampling(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"top_p": 2.0}, {"top_k": "x"}, {"seed": -1}])
def test_a_refused_sampler_leaves_sampler_and_seed(wrong: dict[str, Any], load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    session, other = (model.session(temperature=1.0, seed=7) for _ in range(2))
    with pytest.raises(expertree.InvalidRequestError):
        session.set_sampling(expertree.sampling.SamplingParams(**{"seed": 8, **wrong}))
    assert session.seed == session.stats["seed"] == 7
    for one in (session, other):
        one.prefill([1, 2, 3])
    assert [session.step().tokens for _ in range(8)] == [other.step().tokens for _ in range(8)]  # type: ignore[union-attr]


def test_logits_do_not_depend_on_the_context_length(load_tiny: Loader) -> None:
    model = load_tiny(QWEN)
    tokens = [3, 1, 4, 1, 5]
    small, large = model.session(n_ctx=5), model.session(n_ctx=3000)
    assert (small.evaluate(tokens) == large.evaluate(tokens)).all()
    assert np.isfinite(model.logits(tokens)).all()
