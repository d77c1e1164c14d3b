"""Pre-tokenizers: how text is cut into words before byte-pair merges, by GGUF name.

A pre-tokenizer is a list of regular expressions applied one after the other; each cuts every piece left by the one
before into its matches and the stretches between them. The names are the values of `tokenizer.ggml.pre`. The
behaviour is llama.cpp's, which is the one that files are made for; where it differs from the model's original
tokenizer.json (letters outside ASCII have no case, U+3000 is white space and no punctuation), llama.cpp is followed.
The syntax is Oniguruma's, which the `tokenizers` package uses.
"""

from __future__ import annotations

from dataclasses import dataclass

from expertree.errors import UnsupportedError

__all__ = ["Pretokenizer", "find_pretokenizer", "pretokenizer_names"]


@dataclass(frozen=True)
class Pretokenizer:
    """One family of pre-tokenizers.

    Attributes:
        patterns: regular expressions, applied in order.
        ignore_merges: a word that is a token is that token, whatever the merges say.
        add_bos: default for `tokenizer.ggml.add_bos_token`.
        default_bos: whether a missing `bos_token_id` falls back to the model's default id.
        raw_utf8: merges run on the text itself with spaces as U+2581 and `<0xNN>` tokens for unknown bytes, as in
            SentencePiece; otherwise on GPT-2's byte alphabet.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    default_bos: bool = True
    raw_utf8: bool = False


_CONTRACTION = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}"
)
_BAILING = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)

# K-EXAONE: letters one space apart are one word, so that its tokens may be several words long.
_LETTER = r"\p{L}\p{M}*"
_EXAONE_MOE = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:{_LETTER}(?: {_LETTER})*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)

# Words by case: capitals first, then the rest. Only ASCII letters have a case here.
_UPPER, _LOWER = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_CASED_TAIL = rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
_GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+(?:{_CONTRACTION})?|{_LEAD}{_UPPER}+{_LOWER}*(?:{_CONTRACTION})?"
    rf"|\p{{N}}{{1,3}}{_CASED_TAIL}"
)
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}{_CASED_TAIL}"

_HAN = r"\u4E00-\u9FFF\u3400-\u4DBF\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}\uF900-\uFAFF\x{2F800}-\x{2FA1F}"
_KIMI = (
    rf"[{_HAN}]+|{_LEAD}[\p{{L}}&&[^{_HAN}]]+(?:{_CONTRACTION})?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"
)

# DeepSeek: letters of the cased scripts, as listed in its tokenizer.json.
_DEEPSEEK_LETTERS = (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 "
    "3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A "
    "1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 "
    "1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 "
    "212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D "
    "A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F "
    "104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)


def _char_class(ranges: str) -> str:
    """`"41-5A B5"` -> `"[\\x{41}-\\x{5A}\\x{B5}]"`."""
    spans = (span.split("-") for span in ranges.split())
    return "[" + "".join("-".join(rf"\x{{{code}}}" for code in span) for span in spans) + "]"


_DEEPSEEK_CJK = r"[[\u0800-\u9FA5\uAC00-\uD7FF]&&\S]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?{_char_class(_DEEPSEEK_LETTERS)}+",
    r"\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3001-\u3002]+",
    r"\s+\z",
    _DEEPSEEK_CJK,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    r"[\u4E00-\u9FA5\u3040-\u30FF]+",
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + rf"|{_SPACE}",
)
_DEFAULT = (r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
_DIGITS_THEN_GPT2 = (r"\p{N}", _GPT2)

_FAMILIES: tuple[tuple[tuple[str, ...], Pretokenizer], ...] = (
    (("default",), Pretokenizer(_DEFAULT)),
    (
        ("gpt-2", "phi-2", "olmo", "mpt", "jais", "trillion", "granite-docling", "exaone4", "gigachat", "mellum"),
        Pretokenizer((_GPT2,)),
    ),
    (
        ("refact", "smollm", "starcoder", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
        Pretokenizer(_DIGITS_THEN_GPT2),
    ),
    (
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        Pretokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    (("dbrx", "smaug-bpe"), Pretokenizer((_LLAMA3,))),
    (("glm4", "glm5"), Pretokenizer((_LLAMA3,), ignore_merges=True, default_bos=False)),
    (("chatglm-bpe",), Pretokenizer((_LLAMA3,), default_bos=False)),
    (
        ("qwen2", "deepseek-r1-qwen", "megrez", "kormo", "stablelm2", "hunyuan", "solar-open", "grok-2"),
        Pretokenizer((_QWEN2,)),
    ),
    (("qwen35",), Pretokenizer((_QWEN35,))),
    (("bailingmoe", "bailingmoe2", "llada-moe"), Pretokenizer((_BAILING,))),
    (("exaone-moe",), Pretokenizer((_EXAONE_MOE,))),
    (("gpt-4o", "llama4", "kanana2", "minimax-m2"), Pretokenizer((_GPT4O,))),
    (("tekken",), Pretokenizer((_TEKKEN,), ignore_merges=True, add_bos=True)),
    (("kimi-k2",), Pretokenizer((_KIMI,))),
    (("deepseek-llm",), Pretokenizer(_DEEPSEEK_LLM)),
    (("deepseek-coder",), Pretokenizer(_DEEPSEEK_CODER)),
    (("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), Pretokenizer(_DEEPSEEK_V3)),
    (("gemma4",), Pretokenizer((r"[^\n]+|\n+",), add_bos=True, default_bos=False, raw_utf8=True)),
)
_BY_NAME = {name: family for names, family in _FAMILIES for name in names}


def pretokenizer_names() -> list[str]:
    """Every known name, sorted."""
    return sorted(_BY_NAME)


def find_pretokenizer(name: str) -> Pretokenizer:
    """The pre-tokenizer called `name` in `tokenizer.ggml.pre`.

    Raises:
        UnsupportedError: the name is not in the table.
    """
    family = _BY_NAME.get(name)
    if family is None:
        raise UnsupportedError(
            f"tokenizer.ggml.pre: unknown pre-tokenizer {name!r}; words cut another way than the model was trained on "
            f"make its answers quietly worse. To force one, pass pre=NAME (--pre NAME on the command line), one of: "
            f"{', '.join(pretokenizer_names())}"
        )
    return family
