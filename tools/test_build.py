#!/usr/bin/env python3
"""Runs tests against the Python module of a CMake build instead of the installed one.

    python tools/test_build.py BUILD_DIR [pytest arguments]

The package is put together in BUILD_DIR/overlay from links to python/expertree and to the built module; an editable
installation of expertree, which would come first, is switched off there.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SITECUSTOMIZE = """\
import sys

sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__module__.startswith("_editable_")]
"""


def make_overlay(build, root):
    """BUILD_DIR/overlay, the entry of PYTHONPATH under which `import expertree` finds this build."""
    modules = list(build.glob("_core.*.so"))
    if len(modules) != 1:
        raise FileNotFoundError(f"{build}: expected one _core.*.so, found {len(modules)}; build its target _core")
    overlay = build / "overlay"
    shutil.rmtree(overlay, ignore_errors=True)
    (overlay / "expertree").mkdir(parents=True)
    (overlay / "sitecustomize.py").write_text(SITECUSTOMIZE)
    devices = [path for path in build.glob("cuda/libexpertree_cuda*.so") if "tests" not in path.name]
    libraries = modules + devices
    for path in [*(root / "python/expertree").iterdir(), *libraries]:
        if path.name != "__pycache__" and (path.suffix != ".so" or path in libraries):
            (overlay / "expertree" / path.name).symlink_to(path.resolve())
    return overlay


def environment(overlay, **more):
    """The variables that a Python with this overlay runs under. Checks that it is the one that is imported."""
    variables = {**os.environ, "PYTHONPATH": str(overlay), "PYTHONDONTWRITEBYTECODE": "1", **more}
    command = [sys.executable, "-c", "import expertree._core as c; print(c.__file__)"]
    shown = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if Path(shown.stdout.strip()).parent != overlay / "expertree":
        raise ImportError(f"{overlay} is not what is imported: {shown.stdout}{shown.stderr}")
    return variables


def main(arguments):
    if not arguments:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    build = Path(arguments[0]).resolve()
    command = [sys.executable, "-m", "pytest", *arguments[1:]]
    return subprocess.run(command, cwd=ROOT, env=environment(make_overlay(build, ROOT)), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
