"""Make vocabularies.json.gz: the tokenizer metadata of conformance models whose GGUF files are not in the repository.

    python tests/conformance/extract_vocabularies.py DIRECTORY

reads DIRECTORY/NAME.gguf for every model named in tokenizers.json and tokenizers-2.json that has no NAME.gguf here and
writes {NAME: {GGUF key: value}} with the keys `tokenizer.*` and `general.name`. The output is the same bytes each time.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from gguf import GGUFReader

HERE = Path(__file__).parent


def read_metadata(path: Path) -> dict[str, Any]:
    """The tokenizer's part of a GGUF file's metadata, as plain Python values."""
    fields = GGUFReader(path).fields
    return {k: field.contents() for k, field in fields.items() if k.startswith("tokenizer.") or k == "general.name"}


def main() -> None:
    source = Path(sys.argv[1])
    models: list[str] = []
    for name in ("tokenizers.json", "tokenizers-2.json"):
        for entry in json.loads((HERE / name).read_text()).values():
            models += entry["models"]
    missing = sorted(model for model in models if not (HERE / f"{model}.gguf").exists())
    vocabularies = {model: read_metadata(source / f"{model}.gguf") for model in missing}
    data = json.dumps(vocabularies, ensure_ascii=False, separators=(",", ":")).encode()
    (HERE / "vocabularies.json.gz").write_bytes(gzip.compress(data, mtime=0))


if __name__ == "__main__":
    main()
