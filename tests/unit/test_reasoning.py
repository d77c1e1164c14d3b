"""Reasoning sections: where they begin and end, whatever the pieces."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from expertree.errors import InvalidRequestError
from expertree.text import ChannelSplitter, ChatTemplate, ReasoningSplitter, opens_reasoning
from hypothesis import given, settings
from hypothesis import strategies as st

PREFILLING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)


def split(splitter: ReasoningSplitter | ChannelSplitter, pieces: Sequence[str]) -> tuple[str, str]:
    parts = [splitter.feed(piece) for piece in pieces] + [splitter.flush()]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


def test_c3_prefilled_tag_state_comes_from_the_prompt() -> None:
    prompt = ChatTemplate(PREFILLING).render([{"role": "user", "content": "q"}])
    splitter = ReasoningSplitter(inside=opens_reasoning(prompt))
    pieces = ["internal", " reasoning</thi", "nk>answer"]
    assert split(splitter, pieces) == ("internal reasoning", "answer")
    assert splitter.closed


def test_c3_prompt_that_closes_the_section_leaves_none_open() -> None:
    prompt = ChatTemplate(PREFILLING).render([{"role": "user", "content": "q"}], enable_thinking=False)
    assert not opens_reasoning(prompt)
    assert split(ReasoningSplitter(inside=False), ["answer"]) == ("", "answer")


def test_c3_tag_in_a_message_opens_nothing() -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    prompt = ChatTemplate(template).render([{"role": "user", "content": "what is <think>"}])
    assert not opens_reasoning(prompt)


def test_c6_unclosed_section_is_all_reasoning() -> None:
    for pieces in (["<think>\nI wonder", " whe"], ["<think>I wonder whe"], ["<th", "ink>", "I wonder", " whe", "\n"]):
        splitter = ReasoningSplitter()
        assert split(splitter, pieces) == ("I wonder whe", "")
        assert not splitter.closed
    assert split(ReasoningSplitter(inside=True), ["I wonder whe", "</thi"]) == ("I wonder whe</thi", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nwhy\n</think>\n\nbecause\n", ("why", "because\n")),
        ("\n <think>why</think>because", ("why", "because")),
        ("<think>\n\n</think>\n\nbecause", ("", "because")),
        ("<think></think>", ("", "")),
        ("<think>a<b</c></think>d", ("a<b</c>", "d")),
        ("<think>a</think>b<think>c</think>d", ("a", "b<think>c</think>d")),
        ("plain <think>a</think>", ("", "plain <think>a</think>")),
        ("  plain\n", ("", "  plain\n")),
        ("<thin", ("", "<thin")),
        ("<thinking>a", ("", "<thinking>a")),
        ("", ("", "")),
        (" \n", ("", " \n")),
        ("<think>a  \n\n b</think>c", ("a  \n\n b", "c")),
    ],
)
def test_sections_do_not_depend_on_how_text_is_cut(text: str, expected: tuple[str, str]) -> None:
    assert split(ReasoningSplitter(), [text]) == expected
    assert split(ReasoningSplitter(), list(text)) == expected
    for cut in range(len(text)):
        assert split(ReasoningSplitter(), [text[:cut], text[cut:]]) == expected


def test_text_is_passed_on_as_soon_as_it_is_certain() -> None:
    splitter = ReasoningSplitter()
    assert splitter.feed("<think>\nabc") == ("abc", "")
    assert splitter.feed(" d\n") == (" d", "")
    assert splitter.feed("e</think>\n") == ("\ne", "")
    assert splitter.feed("\nf ") == ("", "f ")
    assert splitter.feed("g") == ("", "g")


def test_other_tags() -> None:
    splitter = ReasoningSplitter(tags=("[THINK]", "[/THINK]"))
    assert split(splitter, ["[THI", "NK]a[/THINK", "]b"]) == ("a", "b")
    assert opens_reasoning("x[THINK]", ("[THINK]", "[/THINK]"))
    with pytest.raises(InvalidRequestError):
        ReasoningSplitter(tags=("", "x"))


GPT_OSS = (
    "<|channel|>analysis<|message|>Let me <see> it.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
    '<|constrain|>json<|message|>{"a": 1}<|call|><|start|>assistant<|channel|>final<|message|>Done < 5<|return|>'
)


def test_gpt_oss_channels() -> None:
    expected = ('Let me <see> it.\nto=functions.f {"a": 1}', "Done < 5")
    assert split(ChannelSplitter(), [GPT_OSS]) == expected
    assert split(ChannelSplitter(), list(GPT_OSS)) == expected
    for cut in range(len(GPT_OSS)):
        assert split(ChannelSplitter(), [GPT_OSS[:cut], GPT_OSS[cut:]]) == expected
    assert split(ChannelSplitter(), ["<|channel|>analysis<|message|>cut off <|en"]) == ("cut off <|en", "")
    assert split(ChannelSplitter(), ["<|channel|>fin"]) == ("", "")


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("", " no markers", ("", " no markers")),
        ("", " to", ("", " to")),
        ("<|start|>assistant", " to=functions.f<|channel|>commentary json<|message|>{}", ("to=functions.f {}", "")),
        ("<|start|>assistant<|channel|>analysis<|message|>", "a<|end|>", ("a", "")),
        ("<|start|>assistant<|channel|>", "analysis<|message|>a<|end|>", ("a", "")),
        ("<|start|>assistant<|channel|>final<|message|>", "b", ("", "b")),
        ("<|start|>assistant<|message|>b", "c", ("", "c")),
        ("<|start|>user<|message|>a<|end|>", "b", ("", "b")),
        ("x<|start|>", "assistant<|channel|>commentary<|message|>a<|end|><|channel|>final<|message|>b", ("a", "b")),
    ],
)
def test_gpt_oss_channel_may_begin_in_the_prompt(prompt: str, text: str, expected: tuple[str, str]) -> None:
    for cut in range(len(text)):
        assert split(ChannelSplitter(prompt), [text[:cut], text[cut:]]) == expected


def test_channels_are_passed_on_as_soon_as_they_are_certain() -> None:
    splitter = ChannelSplitter("<|start|>assistant")
    assert splitter.feed("<|channel|>analysis<|message|>why") == ("why", "")
    assert splitter.feed(" <|en") == (" ", "")
    assert splitter.feed("d|><|start|>assistant<|channel|>final<|message|>so") == ("", "so")
    assert ChannelSplitter("<|start|>assistant").feed("plain") == ("", "plain")


@settings(max_examples=400, deadline=None)
@given(data=st.data(), inside=st.booleans())
def test_any_cut_gives_the_same_sections(data: st.DataObject, inside: bool) -> None:
    parts = st.sampled_from(["<think>", "</think>", "<", "</th", " ", "\n", "a", "b>", "<|channel|>", "<|message|>"])
    text = "".join(data.draw(st.lists(parts, max_size=12)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
    assert split(ReasoningSplitter(inside=inside), pieces) == split(ReasoningSplitter(inside=inside), [text])
    assert split(ChannelSplitter(), pieces) == split(ChannelSplitter(), [text])
