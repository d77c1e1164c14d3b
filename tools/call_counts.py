"""What decoding a token asks of the CUDA runtime, counted by the emulated device."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
os.environ["EXPERTREE_DEVICE"] = "emulated"

from expertree import Model, _core  # noqa: E402
from tiny_model import TinyModel  # noqa: E402

LIBRARY = Path(_core.__file__).parent / "libexpertree_cuda_emulated.so"
_FEW, _MORE = 2, 4
# Steps before those that are counted, and these. Graphs are made of calls that come again. A layer whose experts are
# all on the device runs in two calls first and, when it is known what they take, as a part of one with its neighbours.
_LAYER_BY_LAYER, _WHOLE = (5, 8), (24, 16)


class Micros(Protocol):
    """Microseconds of each."""

    launch_us: float
    graph_us: float
    node_us: float
    copy_us: float
    wait_us: float


@dataclass(frozen=True)
class CallCount:
    """launches: kernels outside graphs. nodes: kernels of graphs. copies: of both."""

    launches: float
    graphs: float
    nodes: float
    copies: float
    waits: float

    def micros(self, each: Micros) -> float:
        return (
            self.launches * each.launch_us
            + self.graphs * each.graph_us
            + self.nodes * each.node_us
            + self.copies * each.copy_us
            + self.waits * each.wait_us
        )


@dataclass(frozen=True)
class Calls:
    """Of a token: what each layer makes, and the rest of the step."""

    layer: CallCount
    step: CallCount


def count_calls(architecture: str, whole: bool) -> Calls:
    """From tiny models of the architecture that differ in their number of layers, all on the device.

    whole: layers run as such, where the architecture allows it.
    """
    if not LIBRARY.exists():
        raise SystemExit("built without EXPERTREE_CUDA_EMULATED; `make test` builds with it")
    arch = "mixtral" if architecture == "llama" else architecture
    few, more = (_of_a_token(arch, n_layers, *(_WHOLE if whole else _LAYER_BY_LAYER)) for n_layers in (_FEW, _MORE))
    layer = CallCount(*((b - a) / (_MORE - _FEW) for a, b in zip(few, more, strict=True)))
    rest = CallCount(*(a - _FEW * b for a, b in zip(few, vars(layer).values(), strict=True)))
    return Calls(layer, rest)


def _of_a_token(arch: str, n_layers: int, n_before: int, n_counted: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        path = TinyModel(arch=arch, format="Q8_0", n_layers=n_layers).write(Path(folder) / "tiny.gguf")
        model = Model(path, vram="all")
        session = model.session(temperature=0.0)
        session.prefill([1, 2, 3])
        model.load_experts()
        for _ in range(n_before):
            session.step()
        before = _counts()
        for _ in range(n_counted):
            session.step()
        after = _counts()
    return [(b - a) / n_counted for a, b in zip(before, after, strict=True)]


def _counts() -> list[int]:
    function = ctypes.CDLL(str(LIBRARY)).expertree_emu_n_calls
    function.restype = ctypes.c_ulonglong
    sums = (
        ("cudaLaunchKernel",),
        ("cudaGraphLaunch",),
        ("graph:kernel",),
        ("cudaMemcpyAsync", "graph:copy"),
        ("cudaEventSynchronize", "cudaStreamSynchronize"),
    )
    return [sum(int(function(name.encode())) for name in names) for names in sums]
