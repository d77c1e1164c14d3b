"""Writes DIR/prompts.json: token ids of the openings that self-written conversations start from, of whole questions,
and of the held-out prompts that drafting is measured on.

    python tools/default_model/prompts.py --work DIR --base FILE --held-out FOLDER

FOLDER holds JSON lines files {name}.jsonl with "turns" (lists of user messages); none of them is trained on.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
from pathlib import Path

import expertree
import numpy as np
from base_model import END_OF_TEXT, TURN_END
from chat_text import ANSWER, SYSTEM, USER, first_turns, prompt_text
from expertree.text.tokenizer import Tokenizer

STARTS = """What|How|Why|Who|When|Where|Which|Can you|Could you|Please|Explain|Describe|List|Give me|Tell me|
Write|Write a short story|Write a poem|Write an email|Write a letter|Write a Python function|
Write a function|Write a program|Write code|def |class |import |Complete the|Complete the code|
Fix this code|Implement|Summarize|Summarize the following|Article:|Text:|Passage:|Read the following|
Translate|Rewrite|Classify|Compare|Create|Generate|Compose|Imagine|Suppose|If|A train|A store|
A farmer|Tom has|Mary bought|There are|Each|Calculate|Solve|Find|What is the sum|How many|How much|
Is it|Do you|Does|Are|Should|I want|I need|I am|My|The|In|Act as|You are|Name|Identify|Suggest|
Recommend|Design|Plan|Provide|Help me|Discuss|Analyze|Define|Draft|Pretend"""
_HELD_OUT = {"chat": ("mt_bench", "alpaca"), "code": ("humaneval",), "mathematics": ("gsm8k",)}
_LONGEST = 260


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    arguments = parser.parse_args()
    tokenizer = expertree.Model(arguments.base).tokenizer

    def ids(text: str) -> list[int]:
        return [int(t) for t in tokenizer.encode(text, add_special=False, parse_special=True)]

    opening = ids(SYSTEM + USER)
    starts = [s.strip("\n") for s in STARTS.split("|")]
    questions = _word_problems(arguments.work) + [ids(prompt_text(q)) for q in _functions(arguments.work, tokenizer)]
    held_out = {}
    for category, files in _HELD_OUT.items():
        whole = [ids(prompt_text(question)) for question in first_turns(arguments.held_out, files)]
        held_out[category] = [w for w in whole if len(w) <= _LONGEST]
    result = {
        "starts": [opening] * (len(starts) // 4) + [opening + ids(s) for s in starts],
        "questions": [q for q in questions if len(q) <= 160],
        "answer_start": ids(ANSWER),
        "held_out": held_out,
    }
    (arguments.work / "prompts.json").write_text(json.dumps(result))
    print({k: len(v) for k, v in result.items()}, {k: len(v) for k, v in held_out.items()})


def _word_problems(work: Path) -> list[list[int]]:
    """The question halves of the training conversations on mathematics."""
    flat = np.load(work / "corpus" / "train-mathematics.npy")
    documents = [d[d != END_OF_TEXT] for d in np.split(flat, np.flatnonzero(flat == END_OF_TEXT)) if 40 < len(d) < 400]
    found = []
    for document in documents:
        ends = np.flatnonzero(document == TURN_END)
        if len(ends) == 3 and document[0] == 1:  # system, user, assistant
            found.append([int(t) for t in document[: ends[1] + 5]])
    random.Random(1).shuffle(found)
    return found[:6000]


def _functions(work: Path, tokenizer: Tokenizer) -> list[str]:
    """Requests to complete Python functions of the training text, given as signature and docstring."""
    flat = np.load(work / "corpus" / "train-code.npy")
    found: list[str] = []
    for document in np.split(flat, np.flatnonzero(flat == END_OF_TEXT)):
        if len(found) >= 3000:
            break
        source = tokenizer.decode([int(t) for t in document if t != END_OF_TEXT])
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)) and 30 < len(text) < 300:
                head = f'def {node.name}({ast.unparse(node.args)}):\n    """{text}"""\n'
                found.append(f"Complete the following Python function.\n\n{head}")
    random.Random(2).shuffle(found)
    return found


if __name__ == "__main__":
    main()
