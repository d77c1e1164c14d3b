#!/usr/bin/env python3
"""Checks the rules about where code may stand and what it may include. No output and exit status 0 when all is well.

    python tools/check_layers.py [ROOT]

Rules (CONTRIBUTING.md says why): folders of cpp/ form layers, and a folder includes lower layers and a few listed
folders of its own layer; nothing in cpp/ includes cuda/; includes are written from the repository root; spec/ sees
experts/ through residency.h and the cost model only; kernels of one instruction set include no kernel of another; GGUF
tensor names stand only in cpp/model/arch; headers stay under 200 lines, sources under 500, functions under 60 (kernels
excepted); no file is called util, common, misc or helpers.
"""

import re
import sys
from pathlib import Path

LAYERS = {
    "base": 0,
    "profile": 0,
    "tensor": 1,
    "io": 1,
    "kernels": 2,
    "backend": 3,
    "experts": 3,
    "model": 4,
    "sample": 4,
    "spec": 5,
    "engine": 6,
}
SAME_LAYER = {("profile", "base"), ("io", "tensor"), ("experts", "backend")}
SPEC_SEES_OF_EXPERTS = re.compile(r"cpp/experts/(residency|cost_model)\w*\.h")
ISA_FOLDERS = {"scalar", "avx2", "avx512", "neon"}
ROOTS = ("cpp", "cuda", "python", "tools", "tests")
SKIPPED_FOLDERS = {"__pycache__", "build"}
CODE = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh"}
MAX_HEADER_LINES = 200
MAX_SOURCE_LINES = 500
MAX_FUNCTION_LINES = 60
FORBIDDEN_WORDS = {"util", "utils", "common", "misc", "helper", "helpers"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]*)"')
TENSOR_NAME = re.compile(
    r'"[^"\n]*(\bblk\.|\b(token_embd|output_norm|output)\.weight\b|'
    r"\b(attn|ffn)_(norm|q|k|v|qkv|output|gate|up|down)(_inp|_exps|_shexp|_norm)?\.(weight|bias)\b)"
)
COMMENT_OR_LITERAL = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<d>[^\s()\\]{0,16})\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL
)
NOT_A_FUNCTION = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b[^()]*$|=\s*$|\b(return|do|else|try)\s*$")


def blanked(text, keep_strings):
    """The text with comments (and literals, unless keep_strings) as spaces; line breaks stay where they are."""

    def replace(match):
        token = match.group()
        if keep_strings and not token.startswith("/"):
            return token
        return re.sub(r"[^\n]", " ", token)

    # A quote between digits is a separator of C++14, not a character literal.
    text = re.sub(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F]{3})", " ", text)
    return COMMENT_OR_LITERAL.sub(replace, text)


def functions(text):
    """(first line, last line) of every function body's definition, lambdas and nested blocks not counted apart."""
    text = re.sub(r"^[ \t]*#[^\n]*(\\\n[^\n]*)*", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.MULTILINE)
    head_start = 0  # where the text before the next brace begins
    stack = []  # of open braces: the line a function starts at, or None for a namespace, type or initialiser
    inside = 0  # braces opened inside a function
    for match in re.finditer(r"[{};]", text):
        token, at = match.group(), match.start()
        if inside:
            inside += {"{": 1, "}": -1, ";": 0}[token]
            if inside == 0:
                yield stack.pop(), text.count("\n", 0, at) + 1
                head_start = at + 1
            continue
        if token == "{":
            head = text[head_start:at]
            if "(" in head and not NOT_A_FUNCTION.search(re.sub(r"\bnoexcept\b|\bconst\b", "", head.rstrip())):
                stack.append(text.count("\n", 0, head_start + len(head) - len(head.lstrip())) + 1)
                inside = 1
            else:
                stack.append(None)
        elif token == "}" and stack:
            stack.pop()
        head_start = at + 1


def include_fault(path, included, root):
    """What is wrong with `path` including `included`, both written from the root, or None."""
    top = included.split("/")[0]
    if top not in ROOTS or "/" not in included:
        return f'"{included}": write includes from the repository root'
    if not (root / included).is_file():
        return f'"{included}" does not exist'
    parts, target = path.parts, included.split("/")
    if parts[0] != "cpp":
        return None
    if top != "cpp":
        return f"cpp/ includes nothing of {top}/"
    if len(target) < 3 or target[1] not in LAYERS:
        return f'"{included}" is in no layer; the layers are ' + ", ".join(LAYERS)
    here, there = parts[1], target[1]
    if here == there:
        if here == "kernels" and parts[2] in ISA_FOLDERS and target[2] in ISA_FOLDERS and parts[2] != target[2]:
            return f"kernels of {parts[2]} include none of {target[2]}"
        return None
    if here == "spec" and there == "experts" and not SPEC_SEES_OF_EXPERTS.fullmatch(included):
        return f'"{included}": spec/ sees experts/ only through residency.h and the cost model'
    if LAYERS[there] > LAYERS[here]:
        return f"{here} (layer {LAYERS[here]}) includes {there} (layer {LAYERS[there]}), which is above it"
    if LAYERS[there] == LAYERS[here] and (here, there) not in SAME_LAYER:
        return f"{here} and {there} are of one layer and {here} may not include {there}"
    return None


def check_cpp(path, text, root):
    """Yields (line, message) for one C++ or CUDA file; path is relative to the root."""
    code = blanked(text, keep_strings=True)
    if path.parts[0] == "cpp" and (len(path.parts) < 3 or path.parts[1] not in LAYERS):
        yield 1, "not in a layer of cpp/; the layers are " + ", ".join(LAYERS)
        return
    in_arch = path.parts[:3] == ("cpp", "model", "arch")
    for number, line in enumerate(code.splitlines(), 1):
        include = INCLUDE.match(line)
        if include:
            fault = include_fault(path, include.group(1), root)
            if fault:
                yield number, fault
        elif path.parts[0] == "cpp" and not in_arch:
            name = TENSOR_NAME.search(line)
            if name:
                yield number, f"GGUF tensor names stand only in cpp/model/arch: {name.group()}"
    n_lines = len(text.splitlines())
    limit = MAX_HEADER_LINES if path.suffix in {".h", ".cuh"} else MAX_SOURCE_LINES
    if n_lines >= limit:
        yield n_lines, f"{n_lines} lines; a {'header' if limit == MAX_HEADER_LINES else 'source'} stays under {limit}"
    is_kernel = path.parts[:2] == ("cpp", "kernels") and len(path.parts) > 3
    if path.parts[0] == "cpp" and not is_kernel:
        for first, last in functions(blanked(text, keep_strings=False)):
            if last - first + 1 >= MAX_FUNCTION_LINES:
                yield first, f"a function of {last - first + 1} lines; functions stay under {MAX_FUNCTION_LINES}"


def check(root):
    """Yields "file:line: message" for every broken rule under root."""
    for top in ROOTS:
        for file in sorted((root / top).rglob("*")):
            path = file.relative_to(root)
            if SKIPPED_FOLDERS & set(path.parts) or file.suffix not in CODE or not file.is_file():
                continue
            found = FORBIDDEN_WORDS & set(file.stem.lower().split("_"))
            if found:
                yield f"{path}:1: a file name says what is in it; '{found.pop()}' does not"
            if file.suffix in {".h", ".cpp", ".cu", ".cuh"}:
                for line, message in check_cpp(path, file.read_text(encoding="utf-8"), root):
                    yield f"{path}:{line}: {message}"


def report(check, arguments):
    """Prints what `check` finds under the folder given, or under the repository's; the exit status."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    faults = list(check(root))
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(report(check, sys.argv[1:]))
