"""Writes the hand-made seeds of the GGUF fuzzer: python tests/fuzz/make_gguf_seeds.py"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import gguf_bytes as g

CORPUS = Path(__file__).parent / "corpus" / "gguf"
SEPARATOR = b"|NEXT-PART|"


def seeds() -> dict[str, bytes]:
    scalars = [g.key(g.TYPE_NAMES[kind], kind, 1) for kind in range(13) if kind not in (g.STRING, g.ARRAY)] + [
        g.key("general.name", g.STRING, "tiny"),
        g.key("bad.text", g.STRING, b"\xff\xe6\xad\x00"),
    ]
    arrays = [
        g.key("a." + g.TYPE_NAMES[kind], g.ARRAY, g.array(kind, [0, 1, 1]))
        for kind in range(13)
        if kind not in (g.STRING, g.ARRAY)
    ] + [g.key("tokens", g.ARRAY, g.array(g.STRING, ["a", "", b"\xf0\x9f\x99\x82"]))]
    alignment = [g.key("general.alignment", g.U32, 64)]
    tensors = [
        g.tensor("token_embd.weight", (32, 3), g.GGML_F32, 0),
        g.tensor("blk.0.ffn_up_exps.weight", (32, 2, 2), g.GGML_Q8_0, 384),
    ]
    data = bytes(384 + 4 * 34 + 24)
    parts = [
        g.gguf(
            g.split_keys(no, 3, 3) + (scalars[-2:] if no == 0 else []),
            [g.tensor(f"t{no}", (8,))],
            bytes(range(32)),
        )
        for no in range(3)
    ]
    return {
        "empty_model": g.gguf(),
        "scalars": g.gguf(scalars),
        "arrays": g.gguf(arrays),
        "tensors": g.gguf([], tensors, data),
        "aligned_v2": g.gguf(alignment, tensors, data, version=2, alignment=64),
        "split": SEPARATOR.join(parts),
        "joined": b"".join(parts),
        "big_endian": b"GGUF" + (3).to_bytes(4, "big") + bytes(16),
        "safetensors": (40).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[1],"data"}}',
        "lfs_pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "html": b"\n<!DOCTYPE html><html></html>",
    }


if __name__ == "__main__":
    CORPUS.mkdir(parents=True, exist_ok=True)
    for name, content in seeds().items():
        (CORPUS / f"seed_{name}").write_bytes(content)
