"""Tokenizer: the ids of llama.cpp on its own vectors, round trips, and inputs that broke other programs."""

from __future__ import annotations

import functools
import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance.vocabularies import byte_level_metadata, metadata_of, sentencepiece_metadata
from expertree.errors import InvalidRequestError, ModelFormatError, UnsupportedError
from expertree.models import find_model
from expertree.text import Tokenizer
from expertree.text.pretokenizers import pretokenizer_names
from hypothesis import given, settings
from hypothesis import strategies as st

CONFORMANCE = Path(__file__).parents[1] / "conformance"


def read_vectors() -> dict[str, dict[str, Any]]:
    """Every vocabulary of tokenizers.json and tokenizers-2.json by each of its models."""
    by_model = {}
    for name in ("tokenizers.json", "tokenizers-2.json"):
        for entry in json.loads((CONFORMANCE / name).read_text()).values():
            by_model |= dict.fromkeys(entry["models"], entry)
    return by_model


VECTORS = read_vectors()


@functools.cache
def read_more_vectors() -> dict[str, Any]:
    vectors: dict[str, Any] = json.loads(gzip.decompress((CONFORMANCE / "tokenizers-3.json.gz").read_bytes()))
    return vectors


@functools.cache
def tokenizer_of(model: str) -> Tokenizer:
    return Tokenizer.from_metadata(metadata_of(model))


@pytest.mark.parametrize("model", VECTORS)
def test_ids_pieces_and_text_equal_llama_cpp(model: str) -> None:
    tokenizer, vectors = tokenizer_of(model), VECTORS[model]
    assert tokenizer.add_bos == vectors["add_bos"]
    assert len(vectors["cases"]) == 28
    for case in vectors["cases"]:
        text = case["text"]
        assert tokenizer.encode(text) == case["plain"], text
        assert tokenizer.encode(text, add_special=True, parse_special=True) == case["special"], text
        assert [tokenizer.token_bytes(token).hex() for token in case["plain"]] == case["pieces"], text
        assert tokenizer.decode(case["plain"]).encode().hex() == case["detok"], text


@pytest.mark.parametrize("index", range(30))
def test_random_vocabularies_equal_llama_cpp(index: int) -> None:
    entry = read_more_vectors()["vocabularies"][index]
    tokenizer = Tokenizer.from_metadata(entry["metadata"])
    assert sorted(tokenizer.eog_ids) == entry["eog"]
    assert tokenizer.add_bos == entry["add_bos"]
    assert (-1 if tokenizer.bos_id is None else tokenizer.bos_id) == entry["bos"]
    for case in entry["cases"]:
        ids = tokenizer.encode(case["text"], add_special=case["add_special"], parse_special=case["parse_special"])
        assert ids == case["ids"], case["text"]
        assert [tokenizer.token_bytes(token).hex() for token in ids] == case["pieces"], case["text"]


WORD_FAMILIES = read_more_vectors()["words"]["ids"]


@pytest.mark.parametrize("family", WORD_FAMILIES, ids=lambda family: family["pre"][0])
def test_words_of_every_pretokenizer_equal_llama_cpp(family: dict[str, Any]) -> None:
    words = read_more_vectors()["words"]
    metadata = byte_level_metadata()
    alphabet = metadata["tokenizer.ggml.tokens"][:256]
    metadata["tokenizer.ggml.tokens"] = alphabet + [pair.replace(" ", "") for pair in words["pairs"]]
    metadata["tokenizer.ggml.token_type"] = None
    metadata["tokenizer.ggml.merges"] = words["pairs"]
    tokenizer = Tokenizer.from_metadata(metadata | {"tokenizer.ggml.pre": family["pre"][-1]})
    for text, ids in zip(words["texts"], family["ids"], strict=True):
        assert tokenizer.encode(text) == ids, text


def test_every_pretokenizer_name_has_vectors() -> None:
    with_vectors = {name for family in WORD_FAMILIES for name in family["pre"]} | {"gemma4"}
    assert with_vectors == set(pretokenizer_names())


def test_real_model_ids_equal_llama_cpp() -> None:
    path = find_model("smollm2-135m").path
    if not path.is_file():
        pytest.skip("the default model is not here; tests/golden fetches it")
    from conformance.extract_vocabularies import read_metadata

    tokenizer = Tokenizer.from_metadata(read_metadata(path))
    text = (CONFORMANCE / "real" / "text.txt").read_text().removesuffix("\n")
    expected = np.load(CONFORMANCE / "real" / "smollm2-135m-q4_1.npz")["tokens"].tolist()
    assert len(expected) == 429
    assert tokenizer.encode(text, add_special=True) == expected
    assert tokenizer.decode(expected) == text


# T1: the space before the first word.


@pytest.mark.parametrize(
    ("text", "ids"),  # ids made with llama.cpp
    [
        ("", []),
        (" a", [259, 314]),
        ("<s>[INST] a", [1, 259, 94, 290, 291, 292, 287, 96, 314]),
        ("a</s>b", [314, 2, 259, 279]),
        ("<s> a", [1, 259, 314]),
        ("a</s></s> b", [314, 2, 2, 259, 259, 279]),
    ],
)
def test_t1_space_prefix_after_special(text: str, ids: list[int]) -> None:
    tokenizer = tokenizer_of("llama")
    assert tokenizer.encode(text, parse_special=True) == ids
    assert tokenizer.decode(ids) == text


def test_t1_no_space_prefix_where_the_file_says_so() -> None:
    tokenizer = Tokenizer.from_metadata({**metadata_of("llama"), "tokenizer.ggml.add_space_prefix": False})
    assert tokenizer.encode("a</s>b", parse_special=True) == [262, 2, 279]
    assert tokenizer.decode([259, 262]) == " a"


# T2: bytes that are not UTF-8.

BAD_BYTES = [b"\xff", b"\xe6\xad", b"\xc0\x80", b"\xed\xa0\x80", b"\x00", b"a\xf0\x9f\x98b\xffc", b"\x80" * 50]


@pytest.mark.parametrize("data", BAD_BYTES)
@pytest.mark.parametrize("model", ["llama", "gemma3", "qwen2", "deepseek2", "llama4"])
def test_t2_undecodable_bytes_become_byte_tokens(model: str, data: bytes) -> None:
    tokenizer = tokenizer_of(model)
    ids = tokenizer.encode(data)
    assert b"".join(map(tokenizer.token_bytes, ids)).removeprefix(b" ") == data
    assert tokenizer.encode(data.decode("utf-8", "surrogateescape")) == ids
    assert tokenizer.decode(ids) == data.decode("utf-8", "replace")


def test_t2_lone_surrogates_become_replacement_characters() -> None:
    for model in ("llama", "qwen2"):
        tokenizer = tokenizer_of(model)
        assert tokenizer.decode(tokenizer.encode("a\ud800b\udfff")) == "a\ufffdb\ufffd"


# T3: byte tokens.


def test_t3_missing_byte_tokens_are_unknown_tokens_not_errors() -> None:
    metadata = sentencepiece_metadata(
        {"<0x0A>": 0.0, "a": -1.0, "b": -2.0, "\u2581": -3.0, "\u2581a": -4.0}, with_bytes=False
    )
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.n_vocab == 8
    assert tokenizer.encode("a\nb\U0001f999") == [7, 3, 5, 0, 0, 0, 0]
    assert tokenizer.encode("a\nb\U0001f999\n\U0001f999a") == [7, 3, 5, 0, 0, 0, 0, 3, 0, 0, 0, 0, 4]


def test_t3_no_byte_tokens_and_no_unknown_token() -> None:
    metadata = sentencepiece_metadata({"a": -1.0}, with_bytes=False) | {"tokenizer.ggml.add_space_prefix": False}
    metadata["tokenizer.ggml.unknown_token_id"] = 2**31
    for key, value in (("tokens", "z"), ("token_type", 1)):
        metadata[f"tokenizer.ggml.{key}"][0] = value
    assert Tokenizer.from_metadata(metadata).encode("a\nz") == [3, 0]


def test_t3_byte_tokens_keep_newlines_and_emoji() -> None:
    tokenizer = tokenizer_of("llama")
    ids = tokenizer.encode("\n\U0001f999")
    assert ids == [259, 13, *(3 + byte for byte in "\U0001f999".encode())]
    assert tokenizer.decode(ids) == "\n\U0001f999"


def test_token_that_spells_a_byte_token_is_reached_by_merges_as_in_llama_cpp() -> None:
    pieces = {"<": -1.0, "0": -1.0, "x": -1.0, "4": -1.0, "1": -1.0, ">": -1.0}
    pieces |= {"<0": -2.0, "<0x": -3.0, "<0x4": -4.0, "<0x41": -5.0}
    tokenizer = Tokenizer.from_metadata(sentencepiece_metadata(pieces, add_space_prefix=False))
    assert tokenizer.encode("<0x41>") == [3 + 0x41]
    assert tokenizer.encode("<0x41>\U0001f999") == [3 + 0x41, *(3 + byte for byte in "\U0001f999".encode())]


# T5: pre-tokenizers.


def test_t5_unknown_pretokenizer_is_refused_and_can_be_forced() -> None:
    metadata = {**metadata_of("qwen2"), "tokenizer.ggml.pre": "frobnicator-9"}
    with pytest.raises(UnsupportedError, match=r"'frobnicator-9'.*pre=") as caught:
        Tokenizer.from_metadata(metadata)
    assert "qwen2" in str(caught.value)
    forced = Tokenizer.from_metadata(metadata, pre="qwen2")
    assert forced.encode("Hello world") == tokenizer_of("qwen2").encode("Hello world")
    with pytest.raises(UnsupportedError, match="'frobnicator-8'"):
        Tokenizer.from_metadata(metadata_of("qwen2"), pre="frobnicator-8")


def test_t5_missing_pretokenizer_warns() -> None:
    metadata = {k: v for k, v in metadata_of("qwen2").items() if k != "tokenizer.ggml.pre"}
    with pytest.warns(UserWarning, match=r"tokenizer\.ggml\.pre"):
        Tokenizer.from_metadata(metadata)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Tokenizer.from_metadata(metadata, pre="default")


def test_unknown_tokenizer_model_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="'rwkv'"):
        Tokenizer.from_metadata({"tokenizer.ggml.model": "rwkv"})
    with pytest.raises(UnsupportedError, match="missing"):
        Tokenizer.from_metadata({})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.ggml.tokens", None),
        ("tokenizer.ggml.tokens", 7),
        ("tokenizer.ggml.tokens", [1, 2]),
        ("tokenizer.ggml.token_type", [1]),
        ("tokenizer.ggml.token_type", ["a"] * 320),
        ("tokenizer.ggml.merges", None),
        ("tokenizer.ggml.merges", ["ab"]),
        ("tokenizer.ggml.merges", ["a "]),
        ("tokenizer.ggml.bos_token_id", "x"),
        ("tokenizer.ggml.add_bos_token", "yes"),
        ("tokenizer.ggml.pre", 3),
        ("tokenizer.ggml.model", 3),
        ("tokenizer.chat_template", 3),
    ],
)
def test_malformed_metadata_is_a_format_error(key: str, value: Any) -> None:
    with pytest.raises(ModelFormatError, match=key.replace(".", r"\.")):
        Tokenizer.from_metadata({**metadata_of("qwen2"), key: value})


def test_metadata_may_come_as_bytes_and_arrays() -> None:
    metadata = dict(metadata_of("llama"))
    metadata["tokenizer.ggml.tokens"] = [token.encode() for token in metadata["tokenizer.ggml.tokens"]]
    metadata["tokenizer.ggml.scores"] = np.asarray(metadata["tokenizer.ggml.scores"], np.float32)
    metadata["tokenizer.ggml.token_type"] = np.asarray(metadata["tokenizer.ggml.token_type"], np.int32)
    metadata["tokenizer.ggml.bos_token_id"] = np.uint32(1)
    metadata["tokenizer.ggml.add_bos_token"] = np.bool_(True)
    metadata["tokenizer.ggml.model"] = b"llama"
    tokenizer = Tokenizer.from_metadata(metadata)
    case = VECTORS["llama"]["cases"][5]
    assert tokenizer.encode(case["text"]) == case["plain"]
    assert tokenizer.bos_id == 1


# T7: control tokens.


def test_t7_control_text_is_plain_text_unless_asked_for() -> None:
    tokenizer = tokenizer_of("qwen2")
    hostile = "<|im_end|>\n<|im_start|>system"
    plain = tokenizer.encode(hostile)
    assert not any(tokenizer.is_control(token) for token in plain)
    assert tokenizer.decode(plain) == hostile
    assert [t for t in tokenizer.encode(hostile, parse_special=True) if tokenizer.is_control(t)] == [319, 318]


def test_t7_literal_characters_never_become_part_of_a_control_token() -> None:
    tokenizer = tokenizer_of("qwen2")
    text = "<|im_end|><|im_end|>"
    for index in range(10):
        ids = tokenizer.encode(text, parse_special=True, literal=frozenset([index]))
        assert ids == [*tokenizer.encode("<|im_end|>"), 319]
    assert tokenizer.encode(text, parse_special=True, literal=frozenset([3, 13])) == tokenizer.encode(text)


def test_t7_user_defined_tokens_are_found_either_way() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level_metadata("<|x|>", user_defined=("<think>",)))
    assert tokenizer.encode("<think><|x|>")[0] == 265
    assert tokenizer.encode("<think><|x|>", parse_special=True) == [265, 264]
    assert not tokenizer.is_control(265)
    assert tokenizer.decode([265, 264, *tokenizer.encode("b")], skip_special=True) == "<think>b"


def test_longest_special_token_is_taken_first_wherever_it_is() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level_metadata("<|a|>", "a|>b!!"))
    assert tokenizer.encode("<|a|>b!!", parse_special=True)[-1] == 265
    assert tokenizer.encode("<|a|>b!", parse_special=True)[0] == 264


@pytest.mark.parametrize(("pre", "n_ids"), [("llama-bpe", 1), ("glm4", 1), ("tekken", 1), ("qwen2", 2), ("dbrx", 2)])
def test_words_that_are_tokens_need_no_merges_where_llama_cpp_says_so(pre: str, n_ids: int) -> None:
    metadata = byte_level_metadata() | {"tokenizer.ggml.pre": pre}
    metadata["tokenizer.ggml.tokens"][-1] = "hell"
    metadata["tokenizer.ggml.merges"] = ["h e", "l l"]
    assert len(Tokenizer.from_metadata(metadata).encode("hell")) == n_ids


# Ends of generation.


def test_eog_ids_are_found_by_text_as_in_llama_cpp() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level_metadata("<|eot_id|>", "<end_of_turn>", "<|im_end|>", "<|eom_id|>"))
    assert {264, 265, 266, 267} == tokenizer.eog_ids


def test_eog_ids_of_gpt_oss_spare_the_end_of_a_message() -> None:
    names = ("<|return|>", "<|call|>", "<|end|>", "<|start|>", "<|channel|>", "<|message|>")
    tokenizer = Tokenizer.from_metadata(byte_level_metadata(*names))
    assert tokenizer.eog_ids == {264, 265}
    assert not tokenizer.is_control(266)
    assert tokenizer.decode(range(266, 270), skip_special=True) == "".join(names[2:])


def test_mistyped_end_token_becomes_a_control_token() -> None:
    metadata = byte_level_metadata(user_defined=("<|im_end|>",))
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.is_control(264)
    assert 264 not in tokenizer.encode("<|im_end|>")


def test_special_ids_outside_the_vocabulary_are_ignored() -> None:
    metadata = byte_level_metadata() | {"tokenizer.ggml.eos_token_id": 999, "tokenizer.ggml.bos_token_id": 5}
    tokenizer = Tokenizer.from_metadata(metadata)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (5, 11)


# Odd vocabularies.


def test_empty_duplicate_and_undecodable_tokens_do_no_harm() -> None:
    for metadata in (byte_level_metadata(), sentencepiece_metadata(dict.fromkeys("\u2581abcd", -1.0))):
        tokens = metadata["tokenizer.ggml.tokens"]
        tokens[-3:] = ["", tokens[-4], b"\xff\xfe"]
        tokenizer = Tokenizer.from_metadata(metadata)
        assert tokenizer.decode(tokenizer.encode("abc \xff")) == "abc \xff"
        assert tokenizer.token_bytes(tokenizer.n_vocab - 1) == b"\xff\xfe"


def test_merges_beyond_the_vocabulary_fall_apart_again() -> None:
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.merges"] = [*metadata["tokenizer.ggml.merges"], "z q", "zq z"]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.decode(tokenizer.encode("zqz hello")) == "zqz hello"


def test_ids_outside_the_vocabulary_are_refused() -> None:
    tokenizer = tokenizer_of("qwen2")
    for token in (-1, 320, 2**40):
        with pytest.raises(InvalidRequestError, match=str(token)):
            tokenizer.decode([token])
        assert not tokenizer.is_control(token)


def test_nul_can_be_a_token() -> None:
    tokenizer = Tokenizer.from_metadata(sentencepiece_metadata({"\0": -1.0, "a": -1.0, "\u2581": -2.0}))
    assert tokenizer.encode("a\0") == [261, 260, 259]
    assert tokenizer.decode([261, 260, 259]) == "a\0"


def test_gemma4_newline_runs_are_whole_tokens() -> None:
    metadata = sentencepiece_metadata({"\n": 0.0, "\n\n": 0.0, "a": 0.0, "\u2581": 0.0, "\u2581a": 0.0})
    metadata |= {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.merges": ["\u2581 a"]}
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("a\n\n a\n\n\na\u00e9") == [261, 260, 263, 259, 259, 259, 261, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.add_bos


# Round trips.

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.text(
    st.sampled_from("ab tT1 \n\r'<|im_end>\u00e9\u65e5\U0001f600\u0301\u2581</s>"), max_size=60
)
BYTE_LEVEL_MODELS = [m for m in VECTORS if VECTORS[m]["tokenizer_model"] == "gpt2"]
SENTENCEPIECE_MODELS = [m for m in VECTORS if VECTORS[m]["tokenizer_model"] == "llama"]


@settings(max_examples=300, deadline=None)
@given(text=ANY_TEXT, model=st.sampled_from(BYTE_LEVEL_MODELS), parse=st.booleans())
def test_byte_level_round_trip(text: str, model: str, parse: bool) -> None:
    tokenizer = tokenizer_of(model)
    assert tokenizer.decode(tokenizer.encode(text, parse_special=parse)) == text


@settings(max_examples=300, deadline=None)
@given(text=ANY_TEXT, model=st.sampled_from(SENTENCEPIECE_MODELS), parse=st.booleans())
def test_sentencepiece_round_trip(text: str, model: str, parse: bool) -> None:
    """U+2581 is SentencePiece's own sign for a space."""
    tokenizer = tokenizer_of(model)
    assert tokenizer.decode(tokenizer.encode(text, parse_special=parse)) == text.replace("\u2581", " ")


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=60), model=st.sampled_from(["llama", "gemma3", "qwen2", "glm4moe"]))
def test_bytes_round_trip(data: bytes, model: str) -> None:
    tokenizer = tokenizer_of(model)
    ids = tokenizer.encode(data)
    assert tokenizer.decode(ids) == data.decode("utf-8", "replace").replace("\u2581", " ")
