"""The tests' library: kernels, host code and tests' entry points, for an emulated device or a real one.

`EXPERTREE_CUDA_TESTS` names another one than the development build's (tools/run_emulated.sh: under a sanitizer;
tools/gpu_check.sh: built by nvcc). `EXPERTREE_EMU_*` set the emulation (cuda/emulation/control.h).
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def build_folder() -> Path | None:
    """Where the development build put what is made of cuda/, or None when it was built without."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    found = [path.parent for path in ROOT.glob(f"build/{tag}-*/cuda/libexpertree_cuda_tests.so")]
    return max(found, key=lambda path: path.stat().st_mtime) if found else None


@functools.cache
def library_path() -> Path:
    named = os.environ.get("EXPERTREE_CUDA_TESTS")
    if named:
        return Path(named)
    folder = build_folder()
    if folder is None:
        reason = "built without EXPERTREE_CUDA_EMULATED (make test builds with it)"
        if os.environ.get("EXPERTREE_REQUIRE_CUDA_TESTS"):
            pytest.fail(reason)
        pytest.skip(reason)
    return folder / "libexpertree_cuda_tests.so"


@functools.cache
def load() -> ctypes.CDLL:
    return ctypes.CDLL(str(library_path()))


def is_emulated() -> bool:
    return hasattr(load(), "expertree_emu_set")


def emulate(**settings: object) -> None:
    """Sets what cuda/emulation/control.h lists."""
    for key, value in settings.items():
        if load().expertree_emu_set(key.encode(), str(value).encode()):
            raise ValueError(f"the emulation does not understand {key}={value}")


def leaks() -> str:
    function = load().expertree_emu_leaks
    function.restype = ctypes.c_char_p
    return str(function().decode())


def _cached(folder: Path, name: str) -> str | None:
    """A variable of the build's CMakeCache.txt."""
    for line in (folder.parent / "CMakeCache.txt").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.partition("=")[2]
    return None


@functools.cache
def built(target: str) -> Path:
    """The program or library, brought up to date; skips where there is no development build or no sanitizer."""
    library_path()
    folder = build_folder()
    assert folder is not None, "EXPERTREE_CUDA_TESTS is set: what it names is tested, not the development build"
    kind = target.rpartition("_")[2]
    if kind in ("asan", "tsan"):
        compiler = _cached(folder, "CMAKE_CXX_COMPILER") or "g++"
        command = [compiler, f"-print-file-name=lib{kind}.so"]
        if not Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()).exists():
            pytest.skip(f"no lib{kind}.so: install gcc's sanitizer libraries")
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if cmake is None:
        pytest.skip("no cmake to build the sanitizers' variants with")
    command = [cmake, "--build", str(folder.parent), "--target", target]
    with (folder / "tests_build.lock").open("w") as lock:  # tests run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [path for path in (folder / target, folder / f"lib{target}.so") if path.exists()]
    return found[0]


def run_program(target: str, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """Runs a program of the tests under the settings of control.h; a sanitizer's report gives a status other than 0."""
    command = [str(built(target)), *arguments]
    if target.endswith("_tsan") and shutil.which("setarch"):  # GCC 12's ThreadSanitizer knows few memory layouts
        command = ["setarch", "-R", *command]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("EXPERTREE_EMU_")}
    environment |= {f"EXPERTREE_EMU_{key.upper()}": str(value) for key, value in settings.items()}
    environment |= {"TSAN_OPTIONS": "halt_on_error=1:exitcode=66", "ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
