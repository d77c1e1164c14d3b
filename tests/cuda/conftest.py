from __future__ import annotations

from collections.abc import Iterator

import pytest
from emulated_library import emulate, is_emulated, leaks


@pytest.fixture(params=["forward", "reverse", "random"])
def order(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test with each order of threads and blocks; on a real device once."""
    if not is_emulated():
        if request.param != "forward":
            pytest.skip("the order of threads is the emulation's to choose")
        yield "device"
        return
    streams = {"forward": "eager", "reverse": "lazy", "random": "shuffle"}[request.param]
    emulate(order=request.param, streams=streams, seed=7)
    yield request.param
    assert leaks() == ""
