"""A lane without a further element is left as it is (canonical.h, C1), even when it holds -0."""

import numpy as np
import pytest
from expertree._core import _testing

TINY = np.float32(2.0**-100)  # TINY * -TINY underflows: fma gives -0


@pytest.mark.parametrize("isa", _testing.isa_names())
@pytest.mark.parametrize("type_name", ["F32", "BF16"])
def test_missing_elements_add_nothing(isa, type_name):
    for k in (16, 17, 23, 25, 31, 33, 41):
        for columns in (1, 2, 3, 4, 9):
            w = np.full((5, k), TINY).view(np.uint32)
            raw = (w >> 16).astype(np.uint16).view(np.uint8) if type_name == "BF16" else w.view(np.uint8)
            y = _testing.matmul(isa, type_name, raw, np.full((columns, k), -TINY))
            assert (y.view(np.uint32) == 0x80000000).all(), f"{isa} {type_name} k {k}, {columns} columns"
