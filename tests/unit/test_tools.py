"""The checks of tools/: each is shown a fault and must name its place; the repository itself must pass."""

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"


def run(tool, *arguments, **options):
    command = [sys.executable] if tool.endswith(".py") else ["sh"]
    return subprocess.run(
        [*command, str(TOOLS / tool), *map(str, arguments)], capture_output=True, text=True, check=False, **options
    )


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


# ---- plant_faults.py


def test_faults_can_be_planted():
    """What each replaces is in the source, and the tests that must notice it are there."""
    done = run("plant_faults.py", "--list")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 100


# ---- soak.py


def test_a_soak_counts_memory_and_answers(tiny):
    model = tiny(arch="qwen3moe", format="Q8_0", n_experts=16)
    done = run("soak.py", model, "--ram", "60KiB", "--minutes", "0.05", "--context", "1024", "--json")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["turns"] > 0 and row["evictions"] > 0 and row["different_answers"] == 0
    assert 0 < row["resident_bytes"] <= row["peak_bytes"]


# ---- bench_batch.py


def test_bench_batch_counts_passes(tiny):
    model = tiny(arch="qwen3moe", format="Q8_0", n_experts=16)
    options = ["--batch", "1,3", "--rounds", "1", "--tokens", "6", "--setting", "none/-", "--setting", "ngram/all"]
    done = run("bench_batch.py", model, *options, "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["setting"], row["batch"]) for row in rows] == [
        ("none/-", 1), ("none/-", 3), ("ngram/all", 1), ("ngram/all", 3)
    ]  # fmt: skip
    plain = rows[0], rows[1]
    assert [row["rows_per_pass"] for row in plain] == [1, 3]
    assert plain[0]["experts_per_layer"] == plain[0]["experts_if_independent"] == 2
    assert 2 <= plain[1]["experts_per_layer"] <= 6
    assert all(row["tokens_per_second"] > 0 for row in rows)


# ---- lossless_product.py


def test_lossless_product_goes_on_where_it_was(tmp_path):
    journal = tmp_path / "done.txt"
    only = [f"--only={key}" for key in ("arch=qwen3moe", "drafter=scripted 1", "selector=random", "memory=paged")]
    only += ["--only=sampler=plain", "--only=temperature=0.7", "--only=predictor=last", "--only=cache=f16"]
    options = [*only, "--tokens", "40", "--journal", journal]
    ended = run("lossless_product.py", *options, "--hours", "0")
    assert ended.returncode == 3 and "3 cases, 0 done before" in ended.stdout, ended.stdout + ended.stderr
    done = run("lossless_product.py", *options)
    assert done.returncode == 0 and "3/3 passed, 0 failed" in done.stdout, done.stdout + done.stderr
    again = run("lossless_product.py", *options)
    assert again.returncode == 0 and "3 cases, 3 done before" in again.stdout


# ---- check_layers.py

CLEAN = {
    "cpp/base/error.h": "#pragma once\n",
    "cpp/profile/zones.h": '#include "cpp/base/error.h"\n',
    "cpp/tensor/dtype.h": "#pragma once\n",
    "cpp/io/gguf_reader.h": '#include "cpp/tensor/dtype.h"\n#include <vector>\n',
    "cpp/kernels/scalar/kernels.h": '#include "cpp/tensor/dtype.h"\n',
    "cpp/kernels/avx2/kernels.h": '#include "cpp/tensor/dtype.h"\n',
    "cpp/backend/device.h": "#pragma once\n",
    "cpp/experts/pager.h": '#include "cpp/backend/device.h"\n',
    "cpp/experts/residency.h": "#pragma once\n",
    "cpp/model/arch/olmoe.cpp": 'const char* kName = "blk.%d.attn_q.weight";\n',
    "cpp/model/model.h": "#pragma once\n",
    "cpp/sample/sampler.h": '#include "cpp/base/error.h"\n',
    "cpp/spec/tree.h": '#include "cpp/experts/residency.h"\n#include "cpp/sample/sampler.h"\n',
    "cpp/engine/engine.h": '#include "cpp/spec/tree.h"\n',
    "cuda/device.cu": '#include "cpp/backend/device.h"\n',
}

LONG_FUNCTION = "int f(int x) {\n" + "  x += 1;\n" * 59 + "  return x;\n}\n"

FAULTS = {
    # file, text, line, what the message says
    "upward": ("cpp/base/error.h", '#pragma once\n#include "cpp/engine/engine.h"\n', 2, "above"),
    "same layer": ("cpp/tensor/dtype.h", '#include "cpp/io/gguf_reader.h"\n', 1, "one layer"),
    "base to profile": ("cpp/base/error.h", '#include "cpp/profile/zones.h"\n', 1, "one layer"),
    "backend to experts": ("cpp/backend/device.h", '#include "cpp/experts/pager.h"\n', 1, "one layer"),
    "sample to model": ("cpp/sample/sampler.h", '\n\n#include "cpp/model/model.h"\n', 3, "one layer"),
    "model to sample": ("cpp/model/model.h", '#include "cpp/sample/sampler.h"\n', 1, "one layer"),
    "cuda": ("cpp/backend/device.cpp", '#include "cuda/device.cu"\n', 1, "nothing of cuda/"),
    "not from the root": ("cpp/base/error.cpp", '#include "error.h"\n', 1, "from the repository root"),
    "missing": ("cpp/base/error.cpp", '#include "cpp/base/gone.h"\n', 1, "does not exist"),
    "no such layer": ("cpp/extra/thing.h", "\n", 1, "not in a layer"),
    "spec past residency": ("cpp/spec/tree.h", '#include "cpp/experts/pager.h"\n', 1, "residency.h"),
    "isa to isa": ("cpp/kernels/avx2/a.cpp", '#include "cpp/kernels/scalar/kernels.h"\n', 1, "none of scalar"),
    "tensor name": ("cpp/model/model.cpp", 'int i;\nconst char* n = "blk." ;\n', 2, "GGUF tensor names"),
    "tensor name 2": ("cpp/io/names.cpp", 'const char* n = "output_norm.weight";\n', 1, "GGUF tensor names"),
    "long header": ("cpp/base/long.h", "int x;\n" * 200, 200, "200 lines"),
    "long source": ("cpp/base/long.cpp", "int x;\n" * 500, 500, "500 lines"),
    "long function": ("cpp/base/long.cpp", "namespace a {\n\n" + LONG_FUNCTION + "}\n", 3, "a function of 62 lines"),
    "util": ("cpp/base/string_util.h", "\n", 1, "util"),
    "helpers": ("tools/helpers.py", "\n", 1, "helpers"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_layers_fault(tmp_path, fault):
    path, text, line, message = FAULTS[fault]
    write(tmp_path, {**CLEAN, path: text})
    result = run("check_layers.py", tmp_path)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith(f"{path}:{line}: ") and message in result.stderr


def test_layers_clean(tmp_path):
    write(tmp_path, CLEAN)
    harmless = (
        '// #include "cpp/engine/engine.h" and "blk.0"\n/* "blk.1"\n#include "nowhere.h"\n*/\n'
        "class Many {\n" + "  int f(int x) { return x; }\n" * 80 + "};\n"
    )
    write(tmp_path, {"cpp/base/comments.h": harmless, "cpp/kernels/avx2/long.cpp": LONG_FUNCTION})
    result = run("check_layers.py", tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


def test_layers_of_this_repository():
    result = run("check_layers.py")
    assert (result.returncode, result.stderr) == (0, "")


# ---- check_symbols.py

needs_compiler = pytest.mark.skipif(
    not (shutil.which("c++") and shutil.which("nm")), reason="needs a C++ compiler and nm"
)


def build_objects(root, faults):
    """Object files as CMake lays them out; faults: {isa: source text}."""
    for isa in ("scalar", "avx2", "avx512", "neon"):
        text = faults.get(isa, f"namespace expertree {{\nnamespace {isa} {{ void f() {{}} }}\n")
        text += f"void* {isa}_kernels() {{ return nullptr; }}\n}}\n"
        folder = root / "CMakeFiles" / f"kernels_{isa}.dir" / "cpp" / "kernels" / isa
        folder.mkdir(parents=True)
        command = ["c++", "-std=c++20", "-O0", "-x", "c++", "-c", "-", "-o", str(folder / "a.cpp.o")]
        subprocess.run(command, input=text, text=True, check=True)


SYMBOL_FAULTS = {
    "inline": (
        "avx512",
        "inline int shared() { return 1; }\nnamespace expertree {\nint use() { return shared(); }\n",
        2,
    ),
    "template": (
        "avx2",
        "template <typename T> T twice(T x) { return x + x; }\n"
        "namespace expertree {\nnamespace avx2 { int f() { return twice(1); } }\n",
        1,
    ),
    "unique": (
        "avx2",
        "template <typename T> struct S { static int n; };\ntemplate <typename T> int S<T>::n = 0;\n"
        "namespace expertree {\nnamespace avx2 { int* f() { return &S<int>::n; } }\n",
        1,
    ),
    "outside": ("neon", "int global = 0;\nnamespace expertree {\n", 1),
    "other namespace": ("avx2", "namespace expertree {\nnamespace avx512 { void f() {} }\n", 1),
    "outside in scalar": ("scalar", "void f() {}\nnamespace expertree {\n", 1),
}


@needs_compiler
@pytest.mark.parametrize("fault", SYMBOL_FAULTS)
def test_symbols_fault(tmp_path, fault):
    isa, text, n_messages = SYMBOL_FAULTS[fault]
    build_objects(tmp_path, {isa: text})
    result = run("check_symbols.py", tmp_path)
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert len(lines) == n_messages and all(f"cpp/kernels/{isa}/a.cpp.o: " in line for line in lines), result.stderr


@needs_compiler
def test_symbols_clean(tmp_path):
    weak = "inline int f() { return 1; }\nnamespace expertree {\nnamespace scalar { int g() { return f(); } }\n"
    build_objects(tmp_path, {"scalar": weak})  # harmless there
    result = run("check_symbols.py", tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


def test_symbols_of_nothing(tmp_path):
    result = run("check_symbols.py", tmp_path)
    assert result.returncode == 1 and "no object files" in result.stderr
    assert run("check_symbols.py").returncode == 2


# ---- check_old_cpu.sh, with stand-ins for the program and for qemu


@pytest.fixture
def old_cpu(tmp_path):
    """Runs the script where kernel_selftest and qemu-x86_64 are small shell scripts (qemu None: not installed)."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for tool in ("sh", "cat", "cut", "grep", "mktemp", "paste", "rm"):
        (bin_dir / tool).symlink_to(shutil.which(tool))

    def script(path, body):
        path.write_text("#!/bin/sh\n" + body)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run_with(selftest, qemu, machine="x86_64"):
        script(bin_dir / "uname", f"echo {machine}\n")
        script(tmp_path / "kernel_selftest", selftest)
        if qemu is not None:
            script(bin_dir / "qemu-x86_64", qemu)
        return run("check_old_cpu.sh", tmp_path, env={"PATH": str(bin_dir)})

    return run_with


ALL_SAME = "echo scalar 1; echo avx2 1; echo avx512 1\n"


def test_old_cpu_agrees(old_cpu):
    result = old_cpu(ALL_SAME, 'echo scalar 1; [ "$2" = Nehalem ] || echo avx2 1\n')
    assert result.returncode == 0
    assert result.stdout == "this CPU: scalar avx2 avx512 1\nNehalem: scalar 1\nHaswell: scalar avx2 1\n"


@pytest.mark.parametrize(
    "selftest, qemu, message",
    [
        ("echo scalar 1; echo avx2 2; exit 1\n", "exit 0\n", "differ on this CPU"),
        (ALL_SAME, "echo scalar 2\n", "on Nehalem expected"),
        (ALL_SAME, "echo scalar 1; echo avx2 1\n", "on Nehalem expected"),
        (ALL_SAME, "echo scalar 1\n", "on Haswell expected"),
        (ALL_SAME, "exit 132\n", "illegal instruction on Nehalem"),
        (ALL_SAME, "exit 139\n", "exit status 139 on Nehalem"),
    ],
)
def test_old_cpu_fault(old_cpu, selftest, qemu, message):
    result = old_cpu(selftest, qemu)
    assert result.returncode == 1 and message in result.stderr


def test_old_cpu_skips(old_cpu, tmp_path):
    result = old_cpu(ALL_SAME, None)
    assert result.returncode == 0 and "SKIPPED" in result.stdout and "qemu-x86_64 is not installed" in result.stdout
    result = old_cpu(ALL_SAME, None, machine="aarch64")
    assert result.returncode == 0 and "this machine is aarch64" in result.stdout
    (tmp_path / "kernel_selftest").unlink()
    assert run("check_old_cpu.sh", tmp_path).returncode == 2


# ---- check_arm.sh, with stand-ins for the compiler, for what it makes, and for qemu


@pytest.fixture
def arm(tmp_path):
    """Runs the script where all that it calls are small shell scripts; one that is None is not installed."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for tool in ("sh", "cat", "dirname", "mktemp", "rm", "sed"):
        (bin_dir / tool).symlink_to(shutil.which(tool))

    def script(path, body):
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n" + body)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run_with(qemu, native=None, **others):
        programs = {"qemu-aarch64": qemu, "cmake": "", "python3": "", "aarch64-linux-gnu-g++": "", **others}
        for name, body in programs.items():
            if body is not None:
                script(bin_dir / name, body)
        if native is not None:
            for program in ("kernel_selftest", "model_hash"):
                script(tmp_path / "native" / program, native)
        return run("check_arm.sh", tmp_path / "arm", tmp_path / "native", env={"PATH": str(bin_dir)})

    return run_with


MODELS = "echo a.gguf 5; echo b.gguf 6\n"
# As qemu-aarch64 -cpu CPU PROGRAM ...
ARM_MODELS = 'case "$3" in */model_hash) ' + MODELS.replace("\n", "; exit 0;; esac\n")
ARM_SAME = ARM_MODELS + 'echo scalar 1; echo neon 1; [ "$2" = cortex-a53 ] || echo dotprod 1\n'
NATIVE_SAME = 'case "$0" in */model_hash) ' + MODELS.replace("\n", "; exit 0;; esac\n") + "echo scalar 1; echo avx2 1\n"


def test_arm_agrees(arm):
    result = arm(ARM_SAME, native=NATIVE_SAME)
    assert result.returncode == 0, result.stderr
    assert result.stdout == (
        "this machine: scalar 1\n"
        "cortex-a53: scalar neon 1, and the models\n"
        "neoverse-n1: scalar neon dotprod 1, and the models\n"
    )


def test_arm_agrees_without_a_native_build(arm):
    result = arm(ARM_SAME)
    assert result.returncode == 0 and "not compared" in result.stdout and "neoverse-n1: " in result.stdout


@pytest.mark.parametrize(
    "qemu, others, message",
    [
        ("echo scalar 1; echo neon 2; exit 1\n", {}, "exit status 1 on cortex-a53"),
        ("echo scalar 1; echo neon 2\n", {}, "on cortex-a53 expected"),
        (ARM_MODELS + "echo scalar 1; echo neon 1\n", {}, "on neoverse-n1 expected"),
        (ARM_SAME, {"native": NATIVE_SAME.replace("scalar 1", "scalar 2")}, "on cortex-a53 expected\nscalar 2"),
        (ARM_SAME, {"native": NATIVE_SAME.replace("gguf 6", "gguf 7")}, "on cortex-a53 expected\na.gguf 5"),
        (ARM_SAME.replace("gguf 6", "gguf $2"), {}, "on neoverse-n1 expected\na.gguf 5"),
        ("exit 132\n", {}, "illegal instruction on cortex-a53"),
        (ARM_SAME, {"cmake": "exit 1\n"}, "cannot configure"),
        (ARM_SAME, {"cmake": '[ "$1" != --build ]\n'}, "does not compile"),
        (ARM_SAME, {"python3": "exit 1\n"}, "export what they should not"),
    ],
)
def test_arm_fault(arm, qemu, others, message):
    result = arm(qemu, **others)
    assert result.returncode == 1 and message in result.stderr


@pytest.mark.parametrize("missing", ["qemu-aarch64", "aarch64-linux-gnu-g++", "cmake"])
def test_arm_skips(arm, missing):
    result = arm(**{"qemu": ARM_SAME, missing: None} if missing != "qemu-aarch64" else {"qemu": None})
    assert result.returncode == 0 and "SKIPPED" in result.stdout and missing in result.stdout
