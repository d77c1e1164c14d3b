"""What the emulated runtime promises: memory, streams, events, errors, injected faults, graphs."""

from __future__ import annotations

import pytest
from emulated_library import run_program

PROGRAM = "expertree_cuda_checks"
# A check sets the streams' mode where it depends on it; else it holds in all of them.
CHECKS = {
    "memory_is_limited": "eager",
    "fresh_memory_is_poisoned": "eager lazy shuffle",
    "any_call_can_be_made_to_fail": "eager lazy shuffle",
    "failed_work_is_sticky": "eager lazy shuffle",
    "a_faulty_kernel_fails_its_stream": "eager lazy shuffle",
    "launches_have_limits": "eager",
    "lazy_streams_wait_to_be_waited_for": "lazy",
    "eager_streams_do_not_wait": "eager",
    "the_default_stream_waits_for_blocking_ones": "lazy",
    "calls_within_a_host_function_are_refused": "eager",
    "an_event_is_its_last_record": "lazy",
    "misuse_is_reported": "eager",
    "registered_memory_is_pinned": "eager lazy shuffle",
    "threads_share_the_device": "eager lazy shuffle",
    "capture_forbids_waiting": "eager",
    "capture_modes_say_whom_they_forbid": "eager",
    "capture_refuses_pageable_memory_and_the_default_stream": "eager",
    "forked_streams_are_joined": "eager",
    "captures_are_apart": "eager",
    "a_graph_runs_when_launched": "eager lazy shuffle",
    "launches_of_one_graph_follow_one_another": "eager lazy shuffle",
    "launches_count_their_nodes": "eager lazy shuffle",
    "a_capture_whose_end_fails_is_ended_again": "eager",
    "a_graph_is_not_launched_into_a_capture": "eager",
}
UNDER_SANITIZERS = (
    "any_call_can_be_made_to_fail",
    "a_faulty_kernel_fails_its_stream",
    "threads_share_the_device",
    "a_graph_runs_when_launched",
    "launches_of_one_graph_follow_one_another",
)


def test_the_table_names_every_check() -> None:
    assert set(run_program(PROGRAM, "list").stdout.split()) == set(CHECKS)


@pytest.mark.parametrize(
    ("check", "streams"), [(check, mode) for check, modes in CHECKS.items() for mode in modes.split()]
)
def test_runtime(check: str, streams: str) -> None:
    done = run_program(PROGRAM, check, streams=streams)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("check", UNDER_SANITIZERS)
@pytest.mark.parametrize("kind", ["asan", "tsan"])
def test_runtime_under_a_sanitizer(check: str, kind: str) -> None:
    done = run_program(f"{PROGRAM}_{kind}", check, streams="lazy")
    assert done.returncode == 0, done.stdout + done.stderr
