"""Chatting with a model that answers in gpt-oss's channels: what is text, what is reasoning, and a second turn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import expertree
import pytest
from chat_model import TEMPLATE, write_chat_model
from expertree.cli.conversation import Conversation
from expertree.speculation import Step

CONTROL = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>")
CHANNELS = (  # as gpt-oss's own template, it refuses an answer with channels in it
    "{% for m in messages %}{% if '<|channel|>' in m.content %}{{ raise_exception('channels in content') }}{% endif %}"
    "<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
ANALYSIS = "<|channel|>analysis<|message|>the thing<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>then this<|return|>"
CALL = '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
USER = {"role": "user", "content": "hello"}

Script = Callable[[str], None]


class Recorder:
    """Takes an answer as it comes."""

    def __init__(self) -> None:
        self.reasoned, self.said = "", ""

    def reasoning(self, text: str) -> None:
        self.reasoned += text

    def content(self, text: str) -> None:
        self.said += text


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> expertree.Model:
    path = write_chat_model(tmp_path_factory.mktemp("channels") / "m.gguf", template=CHANNELS, control=CONTROL)
    return expertree.Model(path, n_ctx=500)


@pytest.fixture
def script(model: expertree.Model, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Has sessions sample the tokens of a text, whatever the model thinks of them."""
    tokens: list[int] = []

    def step(session: expertree.Session, max_tokens: int | None = None, end_tokens: tuple[int, ...] = ()) -> Step:
        session.prefill([tokens[0]])
        return Step([tokens.pop(0)])

    def write(text: str) -> None:
        tokens[:] = model.tokenizer.encode(text, parse_special=True)

    monkeypatch.setattr(expertree.Session, "step", step)
    return write


def test_channels_are_told_apart(model: expertree.Model, script: Script) -> None:
    pieces: list[str] = []
    script(ANALYSIS + FINAL)
    answer = model.chat([USER], stream=pieces.append)
    assert (answer.reasoning, answer.text, answer.finish_reason) == ("the thing", "then this", "stop")
    assert len(pieces) > 1 and "".join(pieces) == answer.text
    script(FINAL)
    again = model.chat([USER, {"role": "assistant", "content": answer.text}, USER])
    assert (again.reasoning, again.text) == (None, "then this")


def test_a_call_ends_the_answer(model: expertree.Model, script: Script) -> None:
    script(ANALYSIS + CALL + FINAL)
    answer = model.chat([USER])
    assert (answer.reasoning, answer.text) == ('the thing\nto=functions.f {"a": 1}', "")
    assert answer.finish_reason == "stop"


def test_an_answer_cut_off_inside_its_analysis(model: expertree.Model, script: Script) -> None:
    script(ANALYSIS + FINAL)
    answer = model.chat([USER], max_tokens=12)
    assert (answer.text, answer.finish_reason) == ("", "length")
    assert answer.reasoning is not None and "the thing".startswith(answer.reasoning)


def test_later_turns_of_a_conversation(model: expertree.Model, script: Script) -> None:
    conversation = Conversation(model, {"temperature": 0.0})
    for turn in range(3):
        recorder = Recorder()
        script(ANALYSIS + FINAL)
        answer = conversation.ask("hello", recorder)
        assert (answer.reasoning, answer.content, answer.finish_reason) == ("the thing", "then this", "stop")
        assert (recorder.reasoned, recorder.said) == ("the thing", "then this")
        assert conversation.n_turns == turn + 1


@pytest.mark.parametrize(
    ("template", "control"), [(TEMPLATE, CONTROL), (CHANNELS, CONTROL[2:]), (None, CONTROL), (CHANNELS, CONTROL)]
)
def test_who_speaks_in_channels(tmp_path: Path, template: str | None, control: tuple[str, ...]) -> None:
    """Both the template and the vocabulary must say so."""
    path = write_chat_model(tmp_path / "m.gguf", template=template, control=control)
    assert expertree.Model(path).tokenizer.speaks_channels == (template == CHANNELS and control == CONTROL)
