"""Writes cpp/tensor/iq_grids.cpp: the code books of GGUF's IQ1, IQ2 and IQ3 formats.

    python tools/make_iq_grids.py > cpp/tensor/iq_grids.cpp

The tables are facts of the file format. They are read from the `gguf` package (gguf.quants, MIT licence), where each
class of an IQ format carries its grid. An entry's elements are written as their places among the grid's values, packed
into 16 bits, and the low and the high bytes of a table stand apart, which is how vector instructions look them up.
"""

from __future__ import annotations

import gguf.quants
import numpy as np
import numpy.typing as npt

# name in C++, class in gguf.quants, bits per element
GRIDS = (
    ("kGridIQ2_XXS", gguf.quants.IQ2_XXS, 2),
    ("kGridIQ2_XS", gguf.quants.IQ2_XS, 2),
    ("kGridIQ2_S", gguf.quants.IQ2_S, 2),
    ("kGridIQ3_XXS", gguf.quants.IQ3_XXS, 4),
    ("kGridIQ3_S", gguf.quants.IQ3_S, 4),
    ("kGridIQ1", gguf.quants.IQ1_S, 2),
)
# Tables whose high bytes are also written by steps (cpp/tensor/iq_grids.h), and how they are called then.
STEPS = {"kGridIQ2_S": "kStepsIQ2_S"}
PER_LINE = 23


def bytes_text(values: npt.NDArray[np.uint8]) -> str:
    """Lines of numbers, indented."""
    lines = [values[i : i + PER_LINE] for i in range(0, len(values), PER_LINE)]
    return "\n".join("     " + ", ".join(map(str, line)) + "," for line in lines)


def steps(name: str, low: npt.NDArray[np.uint8], high: npt.NDArray[np.uint8]) -> str:
    """The high bytes by steps. Codes are even in their ones, so that the low byte tells a 1 from a 2."""
    odd = np.array([bin(byte & 0x55).count("1") % 2 for byte in low], np.uint8)
    values, place = np.unique(np.minimum(high, high ^ 3 * (high % 4 == 2)), return_inverse=True)
    quads = place.reshape(-1, 4)
    later = quads - quads[:, :1]
    if np.any(np.diff(place) < 0) or later.max() > 1 or len(values) > 64:
        raise ValueError(f"{name}: the high bytes do not rise by single steps")
    by_place = np.zeros(64, np.uint8)
    by_place[place] = high ^ 3 * odd
    if np.any(by_place[place] ^ 3 * odd != high):
        raise ValueError(f"{name}: the number of ones is not even")
    entries = (4 * quads[:, 0] + later.sum(axis=1)).astype(np.uint8)
    return (
        f"alignas(64) const GridSteps {name} = {{\n    {{\n{bytes_text(entries)}\n    }}, {{\n{bytes_text(by_place)}\n"
        "    },\n};\n"
    )


def table(name: str, grid_class: type, bits: int) -> str:
    """One array: uint8 [2][entries], low bytes first."""
    grid_class.init_grid()  # type: ignore[attr-defined]
    values = list(grid_class.grid_map)  # type: ignore[attr-defined]
    grid = np.asarray(grid_class.grid).reshape(grid_class.grid_shape)  # type: ignore[attr-defined]
    codes = np.vectorize(values.index)(grid.astype(int)).astype(np.uint32)
    packed = (codes << (bits * np.arange(codes.shape[1]))).sum(axis=1)
    low, high = (packed & 255).astype(np.uint8), (packed >> 8).astype(np.uint8)
    text = (
        f"alignas(64) const uint8_t {name}[2][{len(packed)}] = {{\n    {{\n{bytes_text(low)}\n    }}, {{\n"
        f"{bytes_text(high)}\n    }},\n}};\n"
    )
    return text + "\n" + steps(STEPS[name], low, high) if name in STEPS else text


def main() -> None:
    print("// Written by tools/make_iq_grids.py from the `gguf` package (MIT licence). Do not edit.")
    print("// clang-format off")
    print('#include "cpp/tensor/iq_grids.h"\n\nnamespace expertree {\n')
    for grid in GRIDS:
        print(table(*grid))
    signs = np.frombuffer(gguf.quants.IQ2_XXS.ksigns, np.uint8)
    print(f"alignas(64) const uint8_t kEvenSigns[128] = {{\n{bytes_text(signs)}\n}};\n")
    print("}  // namespace expertree")


if __name__ == "__main__":
    main()
