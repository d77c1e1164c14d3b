"""Mutations of the kernels: each must fail the tests named for its file, in some mode (tools/mutate_kernels.py).

Every barrier and wait of cuda/kernels is dropped in turn by itself; the table adds what else goes wrong in kernels.
"""

from __future__ import annotations

from kernel_mutations import TABLE, Mutation

__all__ = ["TABLE", "TESTS", "UNNOTICED", "Mutation"]

# Which tests a file's mutations are run with: the first key that the file's name starts with.
TESTS = {
    "product_": "test_products.py test_experts.py",
    "attention": "test_attention.py",
    "group_slots": "test_experts.py",
    "gated_unit": "test_experts.py",
    "sum_experts": "test_experts.py",
    "top_k": "test_top_k.py",
    "": "test_rows.py",
}


# Barriers that can be dropped unnoticed, as file:text of the line before it, and why they stand.
UNNOTICED: dict[str, str] = {}
