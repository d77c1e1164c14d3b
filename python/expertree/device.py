"""The GPU that a model, or some of it, may be kept on."""

from __future__ import annotations

import os
from typing import Any

from expertree import _core
from expertree.errors import Error


def device_backend() -> str:
    """The library of the GPU: "cuda"; EXPERTREE_DEVICE=emulated takes the one that tests run on a CPU."""
    return os.environ.get("EXPERTREE_DEVICE", "cuda")


def find_device() -> tuple[dict[str, Any] | None, str]:
    """(name, backend, index, devices, total_bytes, free_bytes, formats that it runs; "") or (None, why there is none).
    Never raises."""
    try:
        device, why = _core.find_device(device_backend())
    except Error as error:
        return None, str(error)
    return device, str(why)


def several_devices_text(device: dict[str, Any]) -> str:
    return (
        f"{device['devices']} GPUs are here and one is used, the first: {device['name']}. CUDA_VISIBLE_DEVICES chooses "
        "another one"
    )
