#!/usr/bin/env python3
"""Merges trained parts into their base, as expertree does on a user's machine; prints what the registry's row needs.

    python tools/build_moe.py PARTS [--base FILE] [-o OUT] [--model NAME]

PARTS is an experts.gguf (its form: python/expertree/models/merge.py). The base is that of the named model, fetched if
it is not in the cache; with --base FILE any other dense llama GGUF. Without -o the result is only hashed. The lines
printed go into the row of MODELS in python/expertree/models/registry.py.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import expertree
from expertree.models import ExpertBuild, find_model
from expertree.models.build import n_build_threads
from expertree.models.merge import write_merged
from expertree.models.staging import sha256
from rich.console import Console


def merged(parts, base, name, out):
    """What write_merged says of the file that it writes as `out`, a temporary one for None."""
    options = {"base_sha256": sha256(base), "name": name, "n_threads": n_build_threads()}
    if out is not None:
        return write_merged(base, parts, out, **options)
    with tempfile.TemporaryDirectory(prefix="expertree-") as folder:
        return write_merged(base, parts, Path(folder) / "merged.gguf", **options)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", type=Path)
    parser.add_argument("--base", type=Path, help="a dense llama GGUF; without it, the named model's")
    parser.add_argument("-o", "--out", type=Path, help="where to keep the result")
    parser.add_argument("--model", default="smollm2-8x135m", help="a built model of the registry")
    options = parser.parse_args(arguments)
    try:
        source = find_model(options.model).source
        if not isinstance(source, ExpertBuild):
            parser.error(f"{options.model} is not built from trained parts")
        base = options.base or find_model(source.base_name).fetch(Console(stderr=True))
        written = merged(options.parts, base, source.general_name, options.out)
    except (expertree.Error, OSError) as error:
        print(f"build_moe: error: {error}", file=sys.stderr)
        return 1
    print(f'parts_sha256="{sha256(options.parts)}",\nsha256="{written.sha256}",\nsize_bytes={written.size_bytes:_},')
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
