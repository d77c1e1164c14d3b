"""A tiny random model that can be talked to: a tokenizer of single bytes, control tokens and a chat template.

Its answers are noise; what surrounds them is what is tested.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from expertree.text.bpe import byte_alphabet
from tiny_model import TinyModel

TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|done|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
_CONTROL = ["<|text|>", "<|turn|>", "<|done|>"]
_NORMAL_TYPE, _CONTROL_TYPE = 1, 3


def write_chat_model(
    path: Path, template: str | None = TEMPLATE, arch: str = "llama", control: tuple[str, ...] = (), **keys: Any
) -> Path:
    """Writes the model, with more `control` tokens and with `keys` added to its metadata.

    The row of <|done|> in the output head is zero: it is never the likeliest token, so a greedy answer runs up to its
    limit, and a drawn one ends early by a rare chance only.
    """
    alphabet = byte_alphabet()
    pair = alphabet[ord("t")] + alphabet[ord("h")]
    tokens = [*alphabet, pair, *_CONTROL, *control]
    n_normal = len(alphabet) + 1
    tokenizer: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_NORMAL_TYPE] * n_normal + [_CONTROL_TYPE] * (len(tokens) - n_normal),
        "tokenizer.ggml.merges": [f"{alphabet[ord('t')]} {alphabet[ord('h')]}"],
        "tokenizer.ggml.bos_token_id": n_normal,
        "tokenizer.ggml.eos_token_id": n_normal + 2,
        "tokenizer.ggml.add_bos_token": False,
    }
    if template is not None:
        tokenizer["tokenizer.chat_template"] = template
    model = TinyModel(arch=arch, n_vocab=len(tokens), n_ctx=65536, keys={**tokenizer, **keys})
    head = model.float_tensors()["output.weight"]
    head[n_normal + 2] = 0
    model.tensors["output.weight"] = head
    return model.write(path)
