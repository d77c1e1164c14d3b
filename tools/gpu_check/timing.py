"""Times of work on the device, by its events; the tests' library does the calls."""

from __future__ import annotations

import ctypes
import statistics
import sys
from collections.abc import Callable
from ctypes import c_float, c_int64, c_void_p
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/cuda"))

from kernels import Device, call

WARM_UP, REPEATS = 2, 7


def seconds(on: Device, work: Callable[[], None], n_calls: int = 1) -> float:
    """Median of REPEATS of one call's time, `n_calls` to a measurement."""
    events = [c_void_p(), c_void_p()]
    for event in events:
        call("event", ctypes.byref(event))
    for _ in range(WARM_UP):
        work()
    times = []
    for _ in range(REPEATS):
        call("record", events[0], on.stream)
        for _ in range(n_calls):
            work()
        call("record", events[1], on.stream)
        on.wait()
        milliseconds = c_float()
        call("elapsed_ms", events[0], events[1], ctypes.byref(milliseconds))
        times.append(milliseconds.value / 1e3 / n_calls)
    for event in events:
        call("end_event", event)
    return statistics.median(times)


def device_facts() -> dict[str, str | int]:
    name, numbers = ctypes.create_string_buffer(256), (c_int64 * 6)()
    call("device_facts", name, numbers)
    keys = ("compute_capability", "multiprocessors", "memory_bytes", "l2_bytes", "runtime", "driver")
    return {"name": name.value.decode(), **dict(zip(keys, numbers, strict=True))}


def copy_speeds(on: Device, size_bytes: int) -> dict[str, float]:
    """Bytes per second: pinned memory to the device and back, and on the device (read and written bytes both)."""
    device, other, pinned = on.alloc(size_bytes), on.alloc(size_bytes), c_void_p()
    call("pinned", c_int64(size_bytes), ctypes.byref(pinned))
    ways = {"to_device": (device, pinned), "from_device": (pinned, device), "on_device": (other, device)}
    found = {}
    for name, (to, source) in ways.items():
        time = seconds(on, lambda to=to, source=source: on.run("copy", to, source, c_int64(size_bytes)))  # type: ignore[misc]
        found[name] = size_bytes * (2 if name == "on_device" else 1) / time
    call("end_pinned", pinned)
    return found
