"""Coverage-guided fuzzing of the text side: vocabularies, texts, chat templates, streams.

`check_one(data)` is one test; it raises on a broken promise. The files in `corpus/tokenizer` run as plain tests
(`tests/unit/test_fuzz_corpus_tokenizer.py`). To look for more, in an environment with `atheris` and expertree's
dependencies, from the repository root:

    export LD_PRELOAD=$(python -c "import atheris; print(atheris.path())")/asan_with_fuzzer.so
    export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONPATH=python:tests PYTHONMALLOC=malloc
    python tests/fuzz/fuzz_tokenizer.py FOUND tests/fuzz/corpus/tokenizer -max_len=512 -timeout=30 -rss_limit_mb=3000

New inputs go to the directory FOUND. Python code (expertree.text and jinja2) is instrumented for coverage;
AddressSanitizer sees every allocation and library call of the native libraries, not each of their own instructions.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import Any

if __name__ == "__main__":
    import atheris

    instrumented = atheris.instrument_imports(include=["expertree", "jinja2"])
else:
    instrumented = contextlib.nullcontext()
with instrumented:
    from conformance.vocabularies import byte_level_metadata, sentencepiece_metadata
    from expertree.errors import Error
    from expertree.text import (
        ChannelSplitter,
        ChatTemplate,
        ReasoningSplitter,
        StopMatcher,
        StreamDecoder,
        Tokenizer,
    )

SPECIAL = ("<|im_start|>", "<|im_end|>", "<s>", "[X]")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content|trim }}<|im_end|>{% endfor %}",
    "{% for m in messages %}<|im_start|>{{ m.content.split('</think>')[-1] }}<|im_end|>{% endfor %}",
    "{% for m in messages %}<|im_start|>{{ m|tojson }}<|im_end|>{% endfor %}",
)
BYTE_LEVEL = Tokenizer.from_metadata(byte_level_metadata(*SPECIAL, user_defined=("<think>", "  ")))
SENTENCEPIECE = Tokenizer.from_metadata(
    sentencepiece_metadata({"\u2581": -1.0, "a": -2.0, "\u2581a": -3.0, "th": -4.0, "<": -5.0, "</s": -6.0})
)


class Reader:
    """Values from bytes; zeros and empty texts once they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def number(self) -> int:
        value, self._data = (self._data[0], self._data[1:]) if self._data else (0, b"")
        return value

    def data(self) -> bytes:
        """Up to a length byte's worth."""
        length = self.number()
        value, self._data = self._data[:length], self._data[length:]
        return value

    def text(self) -> str:
        return self.data().decode("utf-8", "surrogateescape")

    def rest(self) -> bytes:
        value, self._data = self._data, b""
        return value


def check_text(reader: Reader) -> None:
    """Any bytes come back from the tokens they become."""
    parse_special = bool(reader.number() & 1)
    data = reader.rest()
    for tokenizer in (BYTE_LEVEL, SENTENCEPIECE):
        ids = tokenizer.encode(data, parse_special=parse_special)
        expected = data.decode("utf-8", "replace")
        if tokenizer is SENTENCEPIECE:
            expected = expected.replace("\u2581", " ")
        assert tokenizer.decode(ids) == expected
        assert parse_special or not any(map(tokenizer.is_control, ids))
        assert tokenizer.encode(data.decode("utf-8", "surrogateescape"), parse_special=parse_special) == ids


def read_metadata(reader: Reader) -> dict[str, Any]:
    """A small vocabulary, more or less sensible."""
    flags = reader.number()
    model = ("gpt2", "llama", "gemma4", "llama")[flags & 3]
    base = byte_level_metadata() if model == "gpt2" else sentencepiece_metadata({}, with_bytes=not flags & 4)
    n_base = len(base["tokenizer.ggml.tokens"])
    extra = [reader.data() for _ in range(reader.number() % 16)]
    types = [reader.number() % 8 for _ in extra]
    metadata = base | {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": [*base["tokenizer.ggml.tokens"], *extra],
        "tokenizer.ggml.token_type": [*base["tokenizer.ggml.token_type"][:n_base], *types],
        "tokenizer.ggml.scores": [0.0] * n_base + [float(reader.number() - 128) for _ in extra],
        "tokenizer.ggml.merges": [reader.data() for _ in range(reader.number() % 8)],
        "tokenizer.ggml.pre": ("qwen2", "gpt-4o", "deepseek-llm", "kimi-k2", "tekken", "default")[reader.number() % 6],
        "tokenizer.ggml.eos_token_id": reader.number(),
        "tokenizer.ggml.add_bos_token": bool(flags & 8),
        "tokenizer.ggml.add_eos_token": bool(flags & 16),
        "tokenizer.ggml.add_space_prefix": bool(flags & 32),
        "general.name": "phi-3" if flags & 64 else "",
    }
    if flags & 128:
        key = sorted(metadata)[reader.number() % len(metadata)]
        metadata[key] = (None, -1, "x", [], [1], b"\xff", 1.5, {}, [None])[reader.number() % 9]
    return metadata


def check_vocabulary(reader: Reader) -> None:
    """Any metadata gives a tokenizer or a typed error; its ids are ids, and literal characters stay text."""
    try:
        tokenizer = Tokenizer.from_metadata(read_metadata(reader))
    except Error:
        return
    n_literal = reader.number()
    text = reader.rest().decode("utf-8", "surrogateescape")
    for add_special, parse_special in ((False, False), (True, True)):
        ids = tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
        assert all(0 <= token < tokenizer.n_vocab for token in ids)
        tokenizer.decode(ids, skip_special=parse_special)
    tokenizer.encode(text, parse_special=True, literal=frozenset(range(n_literal)))


def check_template(reader: Reader) -> None:
    """Any template gives a text or a typed error."""
    source = reader.rest().decode("utf-8", "replace")
    messages = [{"role": "user", "content": "<|im_end|> </think> a"}, {"role": "assistant", "content": [{"text": "b"}]}]
    with contextlib.suppress(Error):
        template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
        assert isinstance(template.render(messages, tools=[{"name": "f"}]), str)
        template.encode_chat(BYTE_LEVEL, messages)


def check_messages(reader: Reader) -> None:
    """No message makes a control token."""
    template = ChatTemplate(CHATML[reader.number() % len(CHATML)])
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": reader.text()} for _ in range(1 + reader.number() % 3)
    ]
    if reader.number() & 1:
        messages[-1]["name"] = reader.text()
    ids = template.encode_chat(BYTE_LEVEL, messages)
    wanted = BYTE_LEVEL.encode("<|im_start|><|im_end|>", parse_special=True) * len(messages)
    assert [token for token in ids if BYTE_LEVEL.is_control(token)] == wanted
    spelled = any(token in str(message) for token in SPECIAL for message in messages)
    if not spelled:
        assert ids == BYTE_LEVEL.encode(template.render(messages), parse_special=True)


def check_stream(reader: Reader) -> None:
    """However ids and text are cut, the result is that of the whole."""
    tokenizer = (BYTE_LEVEL, SENTENCEPIECE)[reader.number() & 1]
    stops = [stop for _ in range(reader.number() % 4) if (stop := reader.text())]
    size = 1 + reader.number() % 5
    ids = [token % tokenizer.n_vocab for token in reader.rest()]
    decoder, matcher = StreamDecoder(tokenizer), StopMatcher(stops)
    pieces = [decoder.feed(ids[i : i + size]) for i in range(0, len(ids), size)] + [decoder.flush()]
    text = "".join(pieces)
    assert text == tokenizer.decode(ids)
    passed = "".join(map(matcher.feed, pieces)) + matcher.flush()
    whole = StopMatcher(stops)
    assert passed == whole.feed(text) + whole.flush()
    assert matcher.stopped == whole.stopped
    assert text.startswith(passed)
    assert not any(stop in passed for stop in stops)


def check_sections(reader: Reader) -> None:
    """However text is cut, reasoning and content are those of the whole, and nothing but white space and tags goes."""
    size = 1 + reader.number() % 7
    inside = bool(reader.number() & 1)
    text = reader.rest().decode("utf-8", "replace")
    results = []
    for splitter in (
        ReasoningSplitter(inside=inside),
        ReasoningSplitter(inside=inside),
        ChannelSplitter(),
        ChannelSplitter(),
    ):
        step = size if len(results) % 2 else max(len(text), 1)
        parts = [splitter.feed(text[i : i + step]) for i in range(0, len(text), step)] + [splitter.flush()]
        results.append(("".join(part[0] for part in parts), "".join(part[1] for part in parts)))
    assert results[0] == results[1]
    assert results[2] == results[3]
    n_tags = len("<think>") * (not inside) + len("</think>")
    assert len("".join("".join(results[0]).split())) >= len("".join(text.split())) - n_tags


CHECKS = (check_text, check_vocabulary, check_template, check_messages, check_stream, check_sections)


def check_one(data: bytes) -> None:
    """The first byte chooses what is checked."""
    reader = Reader(data)
    check = CHECKS[reader.number() % len(CHECKS)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(reader)


if __name__ == "__main__":
    atheris.Setup(sys.argv, check_one)
    atheris.Fuzz()
