"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import expertree
import pytest
from hypothesis import HealthCheck, settings
from recorded_model import ARCHITECTURES as RECORDED
from recorded_model import RecordedModel
from tiny_model import TinyModel

CONFORMANCE = Path(__file__).parent / "conformance"

# Timings vary on shared machines; a slow example is no failure. The same examples in every run, so that a result can be
# repeated; a longer search (EXPERTREE_EXAMPLES) draws new ones.
settings.register_profile(
    "default",
    deadline=None,
    derandomize="EXPERTREE_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("default")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """tiny(arch=..., format=..., ...) gives the path of such a model; each is written once per test run. Architectures
    that TinyModel does not write come from their recorded models."""
    folder = tmp_path_factory.mktemp("tiny")
    written: dict[str, Path] = {}

    def make(**fields: Any) -> Path:
        key = repr(sorted(fields.items(), key=lambda item: item[0]))
        if key not in written or "tensors" in fields:
            kind = RecordedModel if fields.get("arch") in RECORDED else TinyModel
            written[key] = kind(**fields).write(folder / f"{len(written)}.gguf")
        return written[key]

    return make


KEPT_MODELS = 32


@pytest.fixture(scope="session")
def load_tiny(tiny: Callable[..., Path]) -> Callable[..., expertree.Model]:
    """load_tiny(model_fields, **load_options); the last few models are kept, for each has files and threads open."""
    loaded: dict[str, expertree.Model] = {}

    def load(fields: dict[str, Any], **options: Any) -> expertree.Model:
        key = repr((sorted(fields.items()), sorted(options.items())))
        model = loaded.pop(key, None) or expertree.Model(tiny(**fields), **options)
        loaded[key] = model  # the latest one last
        if len(loaded) > KEPT_MODELS:
            del loaded[next(iter(loaded))]
        return model

    return load


def pytest_configure() -> None:
    """A shell's background job starts with Ctrl-C ignored, and programs that tests start would inherit that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
