"""Streaming: whole characters only, stop strings cut exactly."""

from __future__ import annotations

from itertools import pairwise

import pytest
from conformance.vocabularies import metadata_of
from expertree.errors import InvalidRequestError
from expertree.text import StopMatcher, StreamDecoder, Tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

SPM = Tokenizer.from_metadata(metadata_of("llama"))
BYTE_LEVEL = Tokenizer.from_metadata(metadata_of("qwen2"))
EMOJI = "\U0001f600"


def byte_tokens(data: bytes) -> list[int]:
    return [3 + byte for byte in data]


def test_t9_character_is_held_until_it_is_complete() -> None:
    decoder = StreamDecoder(SPM)
    assert [decoder.feed([token]) for token in byte_tokens(EMOJI.encode())] == ["", "", "", EMOJI]
    assert decoder.flush() == ""


@pytest.mark.parametrize("n_bytes", [1, 2, 3])
def test_t9_unfinished_character_becomes_one_replacement_character(n_bytes: int) -> None:
    decoder = StreamDecoder(SPM)
    assert decoder.feed(byte_tokens(b"a" + EMOJI.encode()[:n_bytes])) == "a"
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""


def test_t9_broken_character_does_not_swallow_what_follows() -> None:
    decoder = StreamDecoder(SPM)
    assert decoder.feed(byte_tokens(b"\xf0\x9f")) == ""
    assert decoder.feed(byte_tokens(b"ab")) == "\ufffdab"


def test_h6_nothing_generated_is_no_text() -> None:
    decoder, matcher = StreamDecoder(BYTE_LEVEL, skip_special=True), StopMatcher(["x"])
    assert BYTE_LEVEL.eos_id is not None
    assert matcher.feed(decoder.feed([BYTE_LEVEL.eos_id])) + decoder.flush() + matcher.flush() == ""
    assert matcher.stopped is None


def test_generation_that_goes_on_keeps_its_first_space() -> None:
    space_a = SPM.encode("a")[0]
    assert SPM.token_bytes(space_a) == b" a"
    assert StreamDecoder(SPM).feed([space_a]) == "a"
    assert StreamDecoder(SPM, after=[262]).feed([space_a]) == " a"
    assert StreamDecoder(SPM, after=[262, 1]).feed([space_a]) == "a"


def test_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(InvalidRequestError):
        StreamDecoder(SPM).feed([SPM.n_vocab])


@settings(max_examples=300, deadline=None)
@given(data=st.data(), tokenizer=st.sampled_from([SPM, BYTE_LEVEL]), skip_special=st.booleans())
def test_any_split_gives_the_text_of_all(data: st.DataObject, tokenizer: Tokenizer, skip_special: bool) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.n_vocab - 1), max_size=30))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    decoder = StreamDecoder(tokenizer, skip_special=skip_special)
    pieces = [decoder.feed(ids[start:end]) for start, end in pairwise([0, *cuts, len(ids)])]
    assert "".join(pieces) + decoder.flush() == tokenizer.decode(ids, skip_special=skip_special)
    n_prompt = cuts[0] if cuts else 0
    whole = tokenizer.decode(ids[:n_prompt]) + StreamDecoder(tokenizer, after=ids[:n_prompt]).feed(ids[n_prompt:])
    # A prompt that ends inside a character leaves two halves of it.
    halves = "\ufffd" in tokenizer.decode(ids) or "\ufffd" in tokenizer.decode(ids[:n_prompt])
    assert halves or whole == tokenizer.decode(ids)


# Stop strings.


def run_matcher(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    out = [matcher.feed(piece) for piece in pieces]
    return [*out, matcher.flush()], matcher.stopped


@pytest.mark.parametrize(
    ("stops", "pieces", "out", "stopped"),
    [
        (["STOP"], ["a ST", "OP b"], ["a ", "", ""], "STOP"),
        (["STOP"], ["a S", "T", "O", "P"], ["a ", "", "", "", ""], "STOP"),
        (["STOP"], ["a ST", "EP"], ["a ", "STEP", ""], None),
        (["STOP"], ["a ST"], ["a ", "ST"], None),
        (["aab"], ["aaa", "ab"], ["a", "a", ""], "aab"),
        (["\n\n", "\nUser"], ["x\n", "User: y"], ["x", "", ""], "\nUser"),
        (["abcd", "bc"], ["xabcd"], ["xa", ""], "bc"),
        (["ab", "xab"], ["xab"], ["", ""], "xab"),
        ([], ["a", "b"], ["a", "b", ""], None),
        (["END"], ["END", "more"], ["", "", ""], "END"),
    ],
)
def test_stop_strings(stops: list[str], pieces: list[str], out: list[str], stopped: str | None) -> None:
    assert run_matcher(stops, pieces) == (out, stopped)


def test_stop_string_across_tokens() -> None:
    decoder, matcher = StreamDecoder(BYTE_LEVEL), StopMatcher(["lo w"])
    ids = BYTE_LEVEL.encode("Hello world")
    text = "".join(matcher.feed(decoder.feed([token])) for token in ids)
    assert len(ids) > 3
    assert (text, matcher.stopped) == ("Hel", "lo w")


@pytest.mark.parametrize("stops", [[""], ["a", ""], "abc", [1]])
def test_empty_and_malformed_stops_are_refused(stops: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match="stop"):
        StopMatcher(stops)


@settings(max_examples=500, deadline=None)
@given(
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4),
    pieces=st.lists(st.text("ab\n", max_size=5), max_size=10),
)
def test_stops_do_not_depend_on_how_text_is_cut(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    out, stopped = run_matcher(stops, pieces)
    found = [(end, start) for end in range(len(text) + 1) for start in range(end) if text[start:end] in stops]
    expected = text[: min(found)[1]] if found else text
    assert "".join(out) == expected
    assert (stopped is not None) == bool(found)
    assert run_matcher(stops, [text])[1] == stopped
