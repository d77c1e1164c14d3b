#!/usr/bin/env python3
"""Mutates CUDA kernels, one place at a time, and checks that their tests fail on the emulated device.

    python tools/mutate_kernels.py [--list] [--only TEXT ...] [--keep FOLDER] [--jobs N]

The mutations are those of tests/cuda/mutations.py and, for each barrier, warp barrier and wait for asynchronous copies
in cuda/kernels, that it is missing. Each is compiled into the tests' library of a copy of the tree; the tests named
for the file run plain (in all orders of threads), then under AddressSanitizer, then under ThreadSanitizer, until they
fail. Prints a line per mutation, and ends with status 1 if one was not noticed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/cuda"))

from mutations import TABLE, TESTS, UNNOTICED, Mutation  # noqa: E402

COPIED = ("CMakeLists.txt", "pyproject.toml", "cpp", "cuda", "tests/cuda")
WAITS = re.compile(
    r"^\s*(?:if \([^;]*\) )?(__syncthreads\(\)|__syncwarp\(\)|gpu_cp_async_wait<[^>]*>\(\));", re.MULTILINE
)
SECONDS = 900
PYTEST_FAILED_ITSELF = (2, 3, 4, 5)  # interrupted, an error of its own, wrong arguments, no tests: nothing was noticed


def dropped_waits() -> Iterator[Mutation]:
    for file in sorted((ROOT / "cuda/kernels").glob("*.cu*")):
        text = file.read_text()
        for match in WAITS.finditer(text):
            before = text[: match.start()].rstrip().splitlines()[-1].strip()
            if f"{file.name}:{before}" in UNNOTICED:
                continue
            line = text.count("\n", 0, match.start(1)) + 1
            # The text around it makes the place unique.
            start = text.rfind("\n", 0, max(match.start() - 200, 0)) + 1
            old = text[start : match.end()]
            new = old[: match.start(1) - start] + old[match.end(1) - start :]
            yield Mutation(f"no {match[1]} at line {line}", file.name, old, new)


def tests_of(mutation: Mutation) -> list[str]:
    """Arguments of pytest."""
    select = ["-k", mutation.select] if mutation.select else []
    if mutation.tests:
        return [mutation.tests, *select]
    names = next(tests for start, tests in TESTS.items() if mutation.file.startswith(start))
    return [*(f"tests/cuda/{name}" for name in names.split()), *select]


class Workshop:
    def __init__(self, folder: Path, jobs: int) -> None:
        self.folder, self.jobs = folder, jobs
        modules = [f"tests/{file.name}" for file in (ROOT / "tests").glob("*.py")]
        for name in (*COPIED, *modules):
            source, target = ROOT / name, folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            else:
                shutil.copy2(source, target)
        options = ["-DEXPERTREE_PYTHON=OFF", "-DEXPERTREE_CUDA=OFF", "-DEXPERTREE_CUDA_EMULATED=ON"]
        self.run(["cmake", "-S", str(folder), "-B", str(folder / "build"), "-G", "Ninja", *options])

    def run(self, command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return done  # type: ignore[no-any-return]

    def build(self, variant: str) -> Path:
        target = "expertree_cuda_tests" + variant
        self.run(["cmake", "--build", str(self.folder / "build"), "-j", str(self.jobs), "--target", target])
        return self.folder / f"build/cuda/lib{target}.so"

    def plant(self, mutation: Mutation) -> None:
        file = self.folder / "cuda/kernels" / mutation.file
        text = (ROOT / "cuda/kernels" / mutation.file).read_text()
        if text.count(mutation.old) != 1:
            raise RuntimeError(f"{mutation.file}: {text.count(mutation.old)} places read {mutation.old!r}")
        file.write_text(text.replace(mutation.old, mutation.new))

    def restore(self, mutation: Mutation) -> None:
        shutil.copyfile(ROOT / "cuda/kernels" / mutation.file, self.folder / "cuda/kernels" / mutation.file)

    def failed(self, tests: list[str], variant: str) -> str | None:
        """The first test that failed, or None; a variant that does not compile has failed, too."""
        try:
            library = self.build(variant)
        except RuntimeError:
            return "does not compile"
        environment = {**os.environ, "EXPERTREE_CUDA_TESTS": str(library), "OPENBLAS_NUM_THREADS": "1"}
        environment |= {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1:exitcode=66"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--capture=sys", *tests]
        if variant:
            libraries = [f"lib{variant[1:]}.so", "libstdc++.so"]
            found = [self.run(["g++", f"-print-file-name={name}"]).stdout.strip() for name in libraries]
            environment["LD_PRELOAD"] = " ".join(found)
        if variant == "_tsan":
            command = ["setarch", "-R", *command]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=self.folder, env=environment, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return "runs for ever"
        if done.returncode == 0:
            return None
        if done.returncode in PYTEST_FAILED_ITSELF:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        test = re.search(r"^FAILED \S*?(\w+\.py::\S+)", done.stdout, re.MULTILINE)
        said = re.search(r"(CUDA emulation: .*|SUMMARY: .*)", done.stdout + done.stderr)
        return test[1] if test else said[1] if said else f"status {done.returncode}"


def check(mutations: list[Mutation], workshop: Workshop) -> int:
    """Number of mutations that nothing noticed."""
    variants = {"": "plain", "_asan": "asan", "_tsan": "tsan"}
    for tests in sorted({tuple(tests_of(mutation)) for mutation in mutations}):
        if failed := workshop.failed(list(tests), ""):
            raise RuntimeError(f"the tests must pass before a mutation is planted: {failed}")
    missed = 0
    for mutation in mutations:
        workshop.plant(mutation)
        for variant, name in variants.items():
            if failed := workshop.failed(tests_of(mutation), variant):
                print(f"{mutation.file} | {mutation.name} | {name} | {failed}", flush=True)
                break
        else:
            missed += 1
            print(f"{mutation.file} | {mutation.name} | NOT NOTICED |", flush=True)
        workshop.restore(mutation)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print the mutations and end")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="TEXT", help="those with one of these in file or name"
    )
    parser.add_argument("--jobs", type=int, default=2, help="compilers at once")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work there and leave it for the next run")
    options = parser.parse_args()
    everything = [*dropped_waits(), *TABLE]
    mutations = [m for m in everything if any(text in m.file or text in m.name for text in options.only)]
    if options.list:
        for mutation in mutations:
            print(f"{mutation.file} | {mutation.name}")
        return 0
    with tempfile.TemporaryDirectory(prefix="expertree-mutations-") as temporary:
        missed = check(mutations, Workshop((options.keep or Path(temporary)).resolve(), options.jobs))
    print(f"{len(mutations) - missed} of {len(mutations)} mutations noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
