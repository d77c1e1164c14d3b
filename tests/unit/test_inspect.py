"""`expertree inspect`: what a file holds and whether it fits, on small files and on hostile ones."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import expertree
import gguf_bytes as g
import pytest
from expertree import errors, inspect_model
from expertree.inspect_model import WORKING_BYTES, ModelDescription, describe, render
from expertree.machine_memory import MachineMemory, read_machine_memory
from expertree.quantity_text import bytes_text, count_text, safe_text
from rich.console import Console
from tiny_model import RECURRENT_ARCHITECTURES

WIDTH, N_EXPERTS, N_VOCAB, FFN = 64, 8, 10, 32
Q8_0_ROW = WIDTH // 32 * 34  # bytes of a row of WIDTH
Q8_0_EXPERT = FFN * Q8_0_ROW
PLENTY = MachineMemory(2**40, 2**40, None, None)


def laid_out(rows: list[tuple[str, tuple[int, ...], int]]) -> tuple[list[bytes], bytes]:
    """Directory and zero data of F32 and Q8_0 tensors."""
    tensors, offset = [], 0
    for name, ne, kind in rows:
        n = 1
        for size in ne:
            n *= size
        tensors.append(g.tensor(name, ne, kind, offset))
        offset += -(-(n * 4 if kind == g.GGML_F32 else n // 32 * 34) // 32) * 32
    return tensors, bytes(offset)


def moe_rows() -> list[tuple[str, tuple[int, ...], int]]:
    rows = [("token_embd.weight", (WIDTH, N_VOCAB), g.GGML_F32), ("output.weight", (WIDTH, N_VOCAB), g.GGML_F32)]
    for layer in range(2):
        blk = f"blk.{layer}."
        rows += [
            (blk + "attn_q.weight", (WIDTH, 64), g.GGML_F32),
            (blk + "attn_k.weight", (WIDTH, 16), g.GGML_F32),
            (blk + "attn_v.weight", (WIDTH, 16), g.GGML_F32),
            (blk + "ffn_gate_inp.weight", (WIDTH, N_EXPERTS), g.GGML_F32),
            (blk + "ffn_gate_exps.weight", (WIDTH, FFN, N_EXPERTS), g.GGML_Q8_0),
            (blk + "ffn_up_exps.weight", (WIDTH, FFN, N_EXPERTS), g.GGML_Q8_0),
            (blk + "ffn_down_exps.weight", (FFN, WIDTH, N_EXPERTS), g.GGML_F32),
        ]
    return rows


def moe_keys() -> dict[str, bytes]:
    tokens = [f"<{i}>" for i in range(N_VOCAB - 1)] + [b"\xe6\xad"]
    return {
        "general.architecture": g.key("general.architecture", g.STRING, "qwen3moe"),
        "general.name": g.key("general.name", g.STRING, "Tiny"),
        "block_count": g.key("qwen3moe.block_count", g.U32, 2),
        "embedding_length": g.key("qwen3moe.embedding_length", g.U32, WIDTH),
        "context_length": g.key("qwen3moe.context_length", g.U32, 32768),
        "head_count": g.key("qwen3moe.attention.head_count", g.U32, 4),
        "head_count_kv": g.key("qwen3moe.attention.head_count_kv", g.ARRAY, g.array(g.I32, [1, 1])),
        "expert_count": g.key("qwen3moe.expert_count", g.U32, N_EXPERTS),
        "expert_used_count": g.key("qwen3moe.expert_used_count", g.U32, 2),
        "model": g.key("tokenizer.ggml.model", g.STRING, "gpt2"),
        "pre": g.key("tokenizer.ggml.pre", g.STRING, "qwen2"),
        "tokens": g.key("tokenizer.ggml.tokens", g.ARRAY, g.array(g.STRING, tokens)),
        "eos": g.key("tokenizer.ggml.eos_token_id", g.U32, 3),
        "pad": g.key("tokenizer.ggml.padding_token_id", g.U32, N_VOCAB - 1),
        "template": g.key("tokenizer.chat_template", g.STRING, "{{ messages }}"),
    }


def moe_file(path: Path, rows=None, **changes: bytes | None) -> Path:
    """The tiny model; a key is replaced by `changes`, or left out where that is None."""
    keys = {name: entry for name, entry in (moe_keys() | changes).items() if entry is not None}
    path.write_bytes(g.gguf(list(keys.values()), *laid_out(moe_rows() if rows is None else rows)))
    return path


def shown(description: ModelDescription, width: int = 100) -> str:
    out = io.StringIO()
    render(description, Console(file=out, width=width, no_color=True))
    return out.getvalue()


EXPERTS_BYTES = 2 * N_EXPERTS * (2 * Q8_0_EXPERT + 4 * WIDTH * FFN)


def test_a_moe_model(tmp_path):
    d = describe(moe_file(tmp_path / "m.gguf"), n_ctx=1000, memory=PLENTY)
    assert (d.architecture, d.name, d.n_layers, d.width) == ("qwen3moe", "Tiny", 2, WIDTH)
    assert (d.n_heads, d.n_kv_heads, d.n_ctx_train) == (4, 1, 32768)
    expert_parameters = 3 * WIDTH * FFN
    other = 2 * WIDTH * N_VOCAB + 2 * WIDTH * (64 + 16 + 16 + N_EXPERTS)
    assert d.n_parameters == other + 2 * N_EXPERTS * expert_parameters
    assert d.n_active_parameters == other - WIDTH * N_VOCAB + 2 * 2 * expert_parameters
    assert d.experts is not None
    assert (d.experts.n_experts, d.experts.n_used, d.experts.n_shared, d.experts.n_layers) == (N_EXPERTS, 2, None, 2)
    assert {(p.name, p.format, p.bytes_per_expert, p.n_layers) for p in d.experts.projections} == {
        ("gate", "Q8_0", Q8_0_EXPERT, 2),
        ("up", "Q8_0", Q8_0_EXPERT, 2),
        ("down", "F32", 4 * WIDTH * FFN, 2),
    }
    assert d.experts.total_bytes == EXPERTS_BYTES
    assert d.experts.bytes_per_expert == EXPERTS_BYTES // 2 // N_EXPERTS
    assert d.need.expert_bytes == EXPERTS_BYTES
    assert d.need.min_expert_bytes == 2 * d.experts.bytes_per_expert
    assert d.need.other_weight_bytes == 4 * other
    assert d.need.kv_cache_bytes == 1000 * 2 * (16 + 16) * 4
    assert {use.format: use.n_tensors for use in d.formats} == {"F32": 12, "Q8_0": 4}
    assert sum(use.size_bytes for use in d.formats) == EXPERTS_BYTES + 4 * other
    assert sum(use.n_elements for use in d.formats) == d.n_parameters
    assert d.verdict.fits == "ram"
    assert d.problems == []


def test_the_tokenizer(tmp_path):
    tokenizer = describe(moe_file(tmp_path / "m.gguf"), memory=PLENTY).tokenizer
    assert (tokenizer.model, tokenizer.pre, tokenizer.n_vocab) == ("gpt2", "qwen2", N_VOCAB)
    assert tokenizer.has_chat_template
    assert [(t.role, t.id, t.text) for t in tokenizer.special_tokens] == [
        ("eos", 3, "<3>"),
        ("padding", N_VOCAB - 1, "\\xe6\\xad"),
    ]


def test_it_is_ready_for_json(tmp_path):
    d = describe(moe_file(tmp_path / "m.gguf"), memory=PLENTY)
    assert json.loads(json.dumps(dataclasses.asdict(d)))["experts"]["n_experts"] == N_EXPERTS


def test_the_report_says_what_matters(tmp_path):
    text = shown(describe(moe_file(tmp_path / "m.gguf"), memory=PLENTY))
    for words in (
        "qwen3moe",
        "2 of 8",
        "gate in Q8_0",
        "F32",
        "pre-tokenizer: qwen2",
        "eos",
        "chat template",
        "KV cache of 4,096 tokens",
        "none: ",
        "Where things go",
        "It fits in RAM",
    ):
        assert words in text


def with_template(path: Path, source: str) -> Path:
    return moe_file(path, template=g.key("tokenizer.chat_template", g.STRING, source))


def test_a_conversation_goes_through_the_template(tmp_path):
    source = (
        "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}\n{% endfor %}"
        "{% if tools %}[{{ tools[0].function.name }}]{% endif %}<assistant>{{ '<think>' }}\n"
    )
    d = describe(with_template(tmp_path / "m.gguf", source), memory=PLENTY)
    sample = d.tokenizer.chat_sample
    assert sample is not None and sample.text is not None and sample.text_with_tool is not None
    assert sample.text.startswith("<system>Answer briefly.<3>\n<user>What is 2 + 3?<3>")
    assert sample.text.endswith("<assistant><think>")
    assert sample.text_with_tool == sample.text.replace("<assistant><", "[multiply]<assistant><")
    assert sample.has_system and sample.opens_reasoning
    text = shown(d)
    assert "A conversation as the model reads it" in text and "The same with a tool" in text
    assert "<user>And twice that?<3>" in text and "inside a reasoning section" in text
    assert d.problems == []


def test_a_template_without_system_messages_or_tools(tmp_path):
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{{ m.content }};{% endfor %}"
    )
    sample = describe(with_template(tmp_path / "m.gguf", source), memory=PLENTY).tokenizer.chat_sample
    assert sample is not None
    assert (sample.text, sample.text_with_tool, sample.has_system) == ("What is 2 + 3?;5;And twice that?;", None, False)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ messages|frobnicate }}", "frobnicate"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "too much"),
    ],
)
def test_a_faulty_template_is_a_problem(source, problem, tmp_path):
    d = describe(with_template(tmp_path / "m.gguf", source), memory=PLENTY)
    assert d.tokenizer.has_chat_template
    assert d.tokenizer.chat_sample is not None and d.tokenizer.chat_sample.text is None
    assert len(d.problems) == 1 and problem in d.problems[0]
    assert d.verdict.fits == "ram"


def test_what_a_template_writes_reaches_the_terminal_escaped_and_cut(tmp_path):
    d = describe(
        with_template(tmp_path / "m.gguf", "\x1b[2J{% for i in range(99) %}{{ '\\n' ~ i }}{% endfor %}"), memory=PLENTY
    )
    text = shown(d)
    assert "\\x1b[2J" in text and "\x1b" not in text
    assert "(60 more lines)" in text


def test_old_files_with_one_tensor_per_expert(tmp_path):
    rows = [row for row in moe_rows() if "_exps" not in row[0]]
    for layer in range(2):
        for e in range(N_EXPERTS):
            rows += [(f"blk.{layer}.ffn_{p}.{e}.weight", (WIDTH, FFN), g.GGML_Q8_0) for p in ("gate", "up", "down")]
    d = describe(moe_file(tmp_path / "m.gguf", rows), memory=PLENTY)
    assert d.experts is not None
    assert d.experts.n_experts == N_EXPERTS
    assert d.experts.total_bytes == 2 * N_EXPERTS * 3 * Q8_0_EXPERT
    assert d.experts.bytes_per_expert == 3 * Q8_0_EXPERT
    assert [(p.name, p.bytes_per_expert, p.n_layers) for p in d.experts.projections] == [
        (p, Q8_0_EXPERT, 2) for p in ("gate", "up", "down")
    ]


def test_a_dense_model(tmp_path):
    rows = [row for row in moe_rows() if "_exps" not in row[0] and "inp" not in row[0]]
    changes = dict.fromkeys(("expert_count", "expert_used_count"))
    d = describe(moe_file(tmp_path / "m.gguf", rows, **changes), memory=PLENTY)
    assert d.experts is None
    assert d.n_active_parameters is None
    assert d.need.expert_bytes == 0
    assert "Experts" not in shown(d)


def test_latent_attention_keeps_one_row(tmp_path):
    rows = [row for row in moe_rows() if "attn" not in row[0]]
    rows += [(f"blk.{layer}.attn_kv_a_mqa.weight", (WIDTH, 40), g.GGML_F32) for layer in range(2)]
    assert describe(moe_file(tmp_path / "m.gguf", rows), n_ctx=10, memory=PLENTY).need.kv_cache_bytes == 10 * 2 * 40 * 4


def test_kv_cache_from_the_keys_when_q_k_v_are_one_tensor(tmp_path):
    rows = [row for row in moe_rows() if "attn" not in row[0]]
    d = describe(moe_file(tmp_path / "m.gguf", rows), n_ctx=10, memory=PLENTY)
    assert d.need.kv_cache_bytes == 10 * 2 * (16 + 16) * 4
    d = describe(moe_file(tmp_path / "m.gguf", rows, head_count=None), n_ctx=10, memory=PLENTY)
    assert d.need.kv_cache_bytes is None
    assert "KV cache of 10 tokens" in shown(d)


def test_a_split_set(tmp_path):
    for no in range(2):
        keys = g.split_keys(no, 2, 2) + (list(moe_keys().values()) if no == 0 else [])
        tensors, data = laid_out([(f"t{no}", (WIDTH, 4), g.GGML_F32)])
        (tmp_path / g.split_name("m", no, 2)).write_bytes(g.gguf(keys, tensors, data))
    d = describe(tmp_path / g.split_name("m", 0, 2), memory=PLENTY)
    assert [Path(part.path).name for part in d.parts] == [g.split_name("m", no, 2) for no in range(2)]
    assert d.file_bytes == sum(part.size_bytes for part in d.parts)
    assert "m-00002-of-00002.gguf" in shown(d)


# Does it fit


def verdict(tmp_path: Path, spare_bytes: int, monkeypatch, *, paging: bool, n_ctx: int = 4096, **memory):
    """With memory for everything but the experts, and `spare_bytes` more."""
    monkeypatch.setattr(inspect_model, "HAS_EXPERT_PAGING", paging)
    path = moe_file(tmp_path / "m.gguf")
    need = describe(path, n_ctx=n_ctx, memory=PLENTY).need
    fixed = need.other_weight_bytes + (need.kv_cache_bytes or 0) + WORKING_BYTES
    available = fixed + spare_bytes
    machine = MachineMemory(2**40, available, memory.get("limit"), memory.get("source"))
    return describe(path, n_ctx=n_ctx, memory=machine).verdict


@pytest.mark.parametrize("paging", [False, True])
def test_it_fits_to_the_byte(tmp_path, monkeypatch, paging):
    assert verdict(tmp_path, EXPERTS_BYTES, monkeypatch, paging=paging).fits == "ram"
    assert verdict(tmp_path, EXPERTS_BYTES - 1, monkeypatch, paging=paging).fits == ("paged" if paging else "no")


def test_paging_needs_one_layers_experts(tmp_path, monkeypatch):
    least = EXPERTS_BYTES // 2 // N_EXPERTS * 2
    paged = verdict(tmp_path, least, monkeypatch, paging=True)
    assert paged.fits == "paged"
    assert "12 %" in paged.text
    assert paged.remedy is not None
    refused = verdict(tmp_path, least - 1, monkeypatch, paging=True, n_ctx=1)
    assert refused.fits == "no"
    assert refused.remedy is not None
    assert "smaller quantisation" in refused.remedy


def test_a_long_context_is_named_as_the_reason(tmp_path, monkeypatch):
    per_token = 2 * 32 * 4
    refused = verdict(tmp_path, EXPERTS_BYTES - 1000 * per_token, monkeypatch, paging=False, n_ctx=100000)
    assert refused.remedy == f"Use a shorter context: --ctx {99000 // 256 * 256}."


def test_a_control_groups_limit_is_named(tmp_path, monkeypatch):
    refused = verdict(tmp_path, 0, monkeypatch, paging=False, n_ctx=1, limit=2**28, source="/sys/fs/cgroup/memory.max")
    assert refused.remedy is not None
    assert "/sys/fs/cgroup/memory.max" in refused.remedy


def test_unknown_memory(tmp_path):
    d = describe(moe_file(tmp_path / "m.gguf"), memory=MachineMemory(None, None, None, None))
    assert d.verdict.fits == "unknown"
    assert "? available" in shown(d)


def test_formats_that_are_not_run(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(g.gguf([], [g.tensor("t", (256,), 15)], bytes(320)))  # Q8_K
    d = describe(path, memory=PLENTY)
    assert d.verdict.fits == "no"
    assert "Q8_K" in d.verdict.text
    assert "not run by this build" in shown(d)


def test_a_file_without_weights(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(g.gguf())
    d = describe(path, memory=PLENTY)
    assert d.verdict.fits == "no"
    assert "no weights" in shown(d)


def test_a_damaged_file_raises(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"<html>")
    with pytest.raises(errors.ModelFormatError, match="HTML"):
        describe(tmp_path / "m.gguf")


# Hostile files


@pytest.mark.parametrize(
    "text",
    ["\x1b]0;owned\x07\x1b[2J", "a\nb\rc", "[bold red]x[/bold red]", "[/]", "\u202eabc\u2066", "\x9b31m", "x" * 10**6],
)
def test_text_of_the_file_cannot_steer_the_terminal(tmp_path, text):
    tokens = g.array(g.STRING, [text] * N_VOCAB)
    path = moe_file(
        tmp_path / "m.gguf",
        **{
            "general.name": g.key("general.name", g.STRING, text),
            "general.architecture": g.key("general.architecture", g.STRING, text),
            "model": g.key("tokenizer.ggml.model", g.STRING, text),
            "pre": g.key("tokenizer.ggml.pre", g.STRING, text.encode() + b"\xff\x1b"),
            "tokens": g.key("tokenizer.ggml.tokens", g.ARRAY, tokens),
        },
    )
    d = describe(path, memory=PLENTY)
    report = shown(d, width=200)
    assert all(line.isprintable() for line in report.split("\n"))
    assert len(report) < 20000
    if text.startswith("["):
        assert text in report
    json.dumps(dataclasses.asdict(d))


ODD_VALUES = [
    (g.STRING, "2"),
    (g.F32, float("nan")),
    (g.BOOL, 1),
    (g.U64, 2**64 - 1),
    (g.I64, -(2**63)),
    (g.U32, 0),
    (g.ARRAY, g.array(g.I64, [])),
    (g.ARRAY, g.array(g.I64, [-(2**63), 2**63 - 1])),
    (g.ARRAY, g.array(g.F64, [float("inf")])),
    (g.ARRAY, g.array(g.STRING, ["a"])),
]


@pytest.mark.parametrize("name", [name for name in moe_keys() if name != "general.architecture"])
@pytest.mark.parametrize("odd", range(len(ODD_VALUES)))
def test_keys_of_odd_types_and_values(tmp_path, name, odd):
    kind, value = ODD_VALUES[odd]
    true_name = {"block_count": "qwen3moe.block_count"}.get(name)
    if true_name is None:
        raw = moe_keys()[name]
        true_name = raw[8 : 8 + int.from_bytes(raw[:8], "little")].decode()
    d = describe(moe_file(tmp_path / "m.gguf", **{name: g.key(true_name, kind, value)}), memory=PLENTY)
    json.dumps(dataclasses.asdict(d), allow_nan=False)
    shown(d)
    if name == "expert_used_count" and not (kind == g.ARRAY and odd in (6, 8, 9)):
        assert d.problems


def test_odd_expert_tensors(tmp_path):
    rows = [
        *moe_rows(),
        ("blk.7.ffn_up_exps.weight", (8,), g.GGML_F32),
        ("blk.8.ffn_up_exps.bias", (4, 3), g.GGML_F32),
        ("blk.9.ffn_up.999999.weight", (4, 3), g.GGML_F32),
        ("blk.9999999999.ffn_up_exps.weight", (4, 3), g.GGML_F32),
    ]
    d = describe(moe_file(tmp_path / "m.gguf", rows), memory=PLENTY)
    shown(d)
    assert any("1,000,000 experts" in problem for problem in d.problems)


# Memory of the machine


def fake_machine(root: Path, *, cgroup: str, mountinfo: str, files: dict[str, str]) -> Path:
    everything = {
        "proc/meminfo": "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    8000000 kB\n",
        "proc/self/cgroup": cgroup,
        "proc/self/mountinfo": mountinfo,
        **files,
    }
    for name, content in everything.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


V2_MOUNT = "30 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def test_memory_without_limits(tmp_path):
    memory = read_machine_memory(fake_machine(tmp_path, cgroup="0::/\n", mountinfo=V2_MOUNT, files={}))
    assert memory == MachineMemory(16000000 * 1024, 8000000 * 1024, None, None)


def test_memory_under_a_version_2_parents_limit(tmp_path):
    group = "sys/fs/cgroup/user.slice/app"
    files = {
        f"{group}/memory.max": "max\n",
        f"{group}/memory.current": "500\n",
        "sys/fs/cgroup/user.slice/memory.max": "4000000000\n",
        "sys/fs/cgroup/user.slice/memory.current": "1000000000\n",
        "sys/fs/cgroup/user.slice/memory.stat": "anon 5\ninactive_file 300000000\n",
    }
    memory = read_machine_memory(fake_machine(tmp_path, cgroup="0::/user.slice/app\n", mountinfo=V2_MOUNT, files=files))
    assert memory.available_bytes == 3300000000
    assert memory.limit_bytes == 4000000000
    assert memory.limit_source is not None
    assert memory.limit_source.endswith("user.slice/memory.max")


def test_memory_under_a_version_1_limit(tmp_path):
    group = "sys/fs/cgroup/memory/docker/abc"
    files = {
        f"{group}/memory.limit_in_bytes": "2000000000\n",
        f"{group}/memory.usage_in_bytes": "1500000000\n",
        f"{group}/memory.stat": "total_inactive_file 100000000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
    }
    cgroup = "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n"
    memory = read_machine_memory(fake_machine(tmp_path, cgroup=cgroup, mountinfo=V1_MOUNT, files=files))
    assert (memory.available_bytes, memory.limit_bytes) == (600000000, 2000000000)


def test_memory_in_a_container_that_sees_its_own_group_as_root(tmp_path):
    files = {"sys/fs/cgroup/memory.max": "1000\n", "sys/fs/cgroup/memory.current": "400\n"}
    mountinfo = V2_MOUNT.replace(" / /sys", " /docker/abc /sys")
    for cgroup in ("0::/docker/abc\n", "0::/\n", "0::/../../x\n"):
        root = tmp_path / str(len(cgroup))
        assert read_machine_memory(
            fake_machine(root, cgroup=cgroup, mountinfo=mountinfo, files=files)
        ) == MachineMemory(16000000 * 1024, 600, 1000, str(root / "sys/fs/cgroup/memory.max"))


def test_memory_of_a_system_without_proc(tmp_path):
    assert read_machine_memory(tmp_path) == MachineMemory(None, None, None, None)


def test_memory_of_this_machine():
    memory = read_machine_memory()
    if memory.total_bytes is not None:
        assert memory.available_bytes is not None
        assert 0 <= memory.available_bytes <= memory.total_bytes


# Text


def test_quantities():
    assert [bytes_text(n) for n in (0, 1023, 1024, 1536, 5 * 2**30, 150 * 2**40)] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "1.5 KiB",
        "5.0 GiB",
        "150 TiB",
    ]
    assert [count_text(n) for n in (0, 999999, 1000000, 30500000000)] == ["0", "999,999", "1.0 million", "30.5 billion"]


def test_safe_text():
    assert safe_text("plain κ") == "plain κ"
    assert safe_text("a\x1b[0m\n") == "a\\x1b[0m\\n"
    assert safe_text("\u202e\x85\ud800") == "\\u202e\\x85\\ud800"
    assert safe_text("y" * 200, 10) == "yyyyyyy..."
    assert len(safe_text("\x1b" * 200, 50)) == 50


def test_an_architecture_that_is_not_run(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(g.gguf([g.key("general.architecture", 8, "mamba9")], [g.tensor("t", (32,), 0)], bytes(128)))
    d = describe(path, memory=PLENTY)
    assert d.verdict.fits == "no"
    assert "mamba9" in d.verdict.text
    assert d.verdict.remedy is not None and "qwen3moe" in d.verdict.remedy


@pytest.mark.parametrize("arch", RECURRENT_ARCHITECTURES)
def test_memory_of_recurrent_models_is_what_a_session_takes(arch, tiny, load_tiny):
    need = describe(tiny(arch=arch), n_ctx=100, memory=PLENTY).need
    assert need.recurrent_bytes > 0 and need.kv_cache_bytes is not None
    taken = load_tiny({"arch": arch}).memory(n_ctx=100)["kv_bytes"]
    assert 0 <= taken - need.recurrent_bytes - need.kv_cache_bytes < 4096


@pytest.mark.parametrize("types", [("f16", "f16"), ("q8_0", "q8_0"), ("f16", "q8_0")])
@pytest.mark.parametrize("arch", ["minimax-m2", "deepseek2", "qwen35moe"])
def test_memory_of_a_rounded_cache_is_what_a_session_takes(arch, types, tiny):
    """Of Q8_0 up to the part of a head's last block that is not used; minimax-m2's heads of 32 use all."""
    path = tiny(arch=arch)
    need = describe(path, n_ctx=100, memory=PLENTY, cache_types=types).need
    plain = describe(path, n_ctx=100, memory=PLENTY).need
    assert need.kv_cache_bytes is not None and need.kv_cache_bytes < 0.6 * plain.kv_cache_bytes
    model = expertree.Model(path, cache_type=types)
    assert model.cache_types == types
    taken = model.memory(n_ctx=100)["kv_bytes"] - need.recurrent_bytes
    unused = 0.5 * need.kv_cache_bytes if "q8_0" in types and arch != "minimax-m2" else 0
    assert -1 <= taken - need.kv_cache_bytes < 4096 + unused
    assert "keys f16, values q8_0" in shown(describe(path, memory=PLENTY, cache_types=("f16", "q8_0")))
