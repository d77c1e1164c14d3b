"""Planted bugs of kernels, streams and graphs: each is noticed in the modes that should notice it, and the same code
without its bug raises nothing in any."""

from __future__ import annotations

import pytest
from emulated_library import run_program

# Mode: variant of the program, settings (cuda/emulation/control.h), and how many seeds are tried.
MODES: dict[str, tuple[str, dict[str, object], int]] = {
    "forward": ("", {}, 1),
    "reverse": ("", {"order": "reverse"}, 1),
    "random": ("", {"order": "random"}, 4),
    "guard": ("", {"guard": 1}, 1),
    "lazy": ("", {"streams": "lazy"}, 1),
    "shuffle": ("", {"streams": "shuffle"}, 8),
    "asan": ("_asan", {}, 1),
    "tsan": ("_tsan", {"streams": "lazy"}, 1),
    "ucontext": ("_ucontext", {"streams": "lazy"}, 1),  # how threads switch where the CPU is no x86-64
}
ALWAYS = "forward reverse random guard lazy shuffle asan tsan"
NOTICED = {
    "missing_barrier": ALWAYS + " ucontext",
    "uninitialised_shared": ALWAYS,
    "shared_out_of_bounds": "asan",
    "global_out_of_bounds": "guard asan tsan",
    "divergent_barrier": ALWAYS,
    "divergent_shuffle": ALWAYS + " ucontext",
    "missing_copy_wait": ALWAYS,
    "buffer_reused_too_early": ALWAYS,
    "misaligned_load": "asan",
    "missing_syncwarp": ALWAYS,
    "race_between_blocks": "tsan",
    "lost_update": "tsan",
    "partial_warp": ALWAYS,
    "no_wait_for_copied": "lazy shuffle tsan",
    "no_wait_for_slot_free": "shuffle tsan",
    "no_wait_for_staging_free": "lazy tsan",
    "no_wait_for_result": "lazy shuffle tsan",
    "graph_fork_too_early": "shuffle tsan",
    "too_much_shared_memory": ALWAYS,
    "pageable_copy": ALWAYS,
    "host_touches_device_memory": "guard",
    "copy_past_the_end": ALWAYS,
}
PROGRAM = "expertree_cuda_bugs"


def is_noticed(what: str, mode: str) -> str:
    """What was said, by the program or a sanitizer, with the first seed that noticed something; "" for nothing."""
    variant, settings, n_seeds = MODES[mode]
    for seed in range(1, n_seeds + 1):
        done = run_program(PROGRAM + variant, what, seed=seed, **settings)
        if done.returncode:
            return f"status {done.returncode}: {done.stdout}{done.stderr}"
    return ""


def test_the_table_names_every_bug() -> None:
    assert set(run_program(PROGRAM, "list").stdout.split()) == set(NOTICED)


@pytest.mark.parametrize(("bug", "mode"), [(bug, mode) for bug, modes in NOTICED.items() for mode in modes.split()])
def test_a_bug_is_noticed(bug: str, mode: str) -> None:
    assert is_noticed(bug, mode)


@pytest.mark.parametrize("mode", MODES)
def test_without_bugs_nothing_is_raised(mode: str) -> None:
    assert is_noticed("fixed", mode) == ""
