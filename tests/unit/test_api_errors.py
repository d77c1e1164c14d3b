"""What Python is given wrongly comes back as `InvalidRequestError`, with the name of what was wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import expertree
import pytest
from chat_model import write_chat_model

HUGE = 10**30
CHAT = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("api") / "chat.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> expertree.Model:
    return expertree.Model(path, n_ctx=200)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"path": None}, "path is None"),
        ({"path": 5}, "path is 5"),
        ({"path": b"model.gguf"}, "path is b'model"),
        ({"threads": HUGE}, "threads is 1000"),
        ({"threads": 1.5}, "threads is 1.5"),
        ({"threads": -1}, "threads is -1"),
        ({"n_ctx": HUGE}, "n_ctx .* is 1000"),
        ({"n_ctx": 0}, "n_ctx .* is 0"),
        ({"n_ctx": "x"}, "n_ctx .* is 'x'"),
        ({"isa": 5}, "isa=5"),
        ({"policy": None}, "policy=None"),
        ({"policy": "x"}, "known: auto, lru, lfu-decay, layer-lfu, pinned$"),
        ({"record": None}, "record is None"),
        ({"record": 5}, "record is 5"),
        ({"reserve": -1}, "reserve=-1"),
        ({"progress": 5}, "progress=5"),
        ({"ram": None}, "ram is None"),
        ({"ram": "5XB"}, "ram is '5XB'"),
        ({"vram": 1.5}, "vram is 1.5"),
        ({"cache_type": None}, "cache_type is None"),
        ({"cache_type": 5}, "cache_type is 5"),
        ({"cache_type": ("f32",)}, "cache_type is"),
        ({"cache_type": ({}, "f32")}, "cache_type is"),
    ],
)
def test_loading(path: Path, options: dict[str, Any], expected: str) -> None:
    given = {"path": path, **options}
    with pytest.raises(expertree.InvalidRequestError, match=expected):
        expertree.Model(given.pop("path"), **given)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda m: m.generate("hi", max_tokens=HUGE), "max_tokens is 1000"),
        (lambda m: m.generate("hi", max_tokens="x"), "max_tokens is 'x'"),
        (lambda m: m.generate("hi", draft="ngram", draft_nodes="x"), "^draft_nodes is 'x'"),
        (lambda m: m.chat(CHAT, template_args=5), "template_args is 5"),
        (lambda m: m.chat(CHAT, template_args={"tools": []}), "template_args has 'tools'"),
        (lambda m: m.chat(CHAT, template_args={"messages": CHAT}), "template_args has 'messages'"),
        (lambda m: m.chat(CHAT, template_args={"tokenizer": 1}), "template_args has 'tokenizer'"),
        (lambda m: m.chat(CHAT, template_args={"self": 1}), "template_args has 'self'"),
        (lambda m: m.chat(CHAT, template_args={1: 2}), "template_args has 1"),
        (lambda m: m.session(n_ctx=HUGE), "n_ctx .* is 1000"),
        (lambda m: m.memory(2**62), "n_ctx .* is 4611"),
        (lambda m: m.profile(max_events="x"), "max_events is 'x'"),
        (lambda m: m.profile(max_events=-1), "max_events is -1"),
        (lambda m: m.session().truncate("x"), "'x' tokens"),
        (lambda m: m.session().truncate(HUGE), "1000.* tokens"),
        (lambda m: m.session().step(max_tokens="x"), "max_tokens='x'"),
        (lambda m: m.session().step(end_tokens=5), "end_tokens=5"),
        (lambda m: m.tokenizer.encode(5), "text is 5"),
        (lambda m: m.tokenizer.encode(None), "text is None"),
        (lambda m: m.tokenizer.decode(5), "ids is 5"),
        (lambda m: m.tokenizer.decode(["x"]), "ids is"),
        (lambda m: expertree.Engine(5), "model is 5"),
        (lambda m: expertree.Engine(m).step(5), "sessions is 5"),
        (lambda m: expertree.Engine(m).generate(None), "prompts is None"),
        (lambda m: expertree.Engine(m).generate("hello"), r"prompts is 'hello'.*\[prompt\]"),
        (lambda m: expertree.Engine(m).generate(b"hello"), "prompts is b'hello'"),
        (lambda m: expertree.Engine(m).generate(["hi"], max_tokens=HUGE), "max_tokens is 1000"),
    ],
)
def test_calls(model: expertree.Model, call: Callable[[expertree.Model], object], expected: str) -> None:
    with pytest.raises(expertree.InvalidRequestError, match=expected):
        call(model)


def test_a_context_that_leaves_no_room_for_experts(tmp_path: Path) -> None:
    """With ram="auto" the remedy is a smaller context, and not more memory for experts."""
    path = write_chat_model(tmp_path / "moe.gguf", arch="qwen3moe")
    with pytest.raises(
        expertree.OutOfMemoryError, match=r"context of 134217728 tokens takes .* smaller context \(--ctx\)"
    ):
        expertree.Model(path, n_ctx=2**27)


def test_what_needs_text_is_refused_without_a_tokenizer(tmp_path: Path) -> None:
    path = write_chat_model(tmp_path / "m.gguf", **{"tokenizer.ggml.model": "no_vocab"})
    model = expertree.Model(path)
    assert len(model.generate([1, 2, 3], max_tokens=4, stop=[]).tokens) == 4
    for settings in ({"stop": "x"}, {"stream": print}):
        with pytest.raises(expertree.InvalidRequestError, match=r"stop and stream need text.*leave them out"):
            model.generate([1, 2, 3], max_tokens=4, **settings)
    with pytest.raises(expertree.InvalidRequestError, match="stop and stream need text"):
        expertree.Engine(model).generate([[1, 2, 3]], max_tokens=4, stop="x")
