"""The thread pool: every task once, all of them before the job returns, whatever the number of threads and tasks."""

from __future__ import annotations

import pytest
from expertree._core import _testing


@pytest.mark.parametrize("n_threads", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("n_tasks", [0, 1, 2, 3, 33, 1000])
def test_every_task_runs_once(n_threads: int, n_tasks: int) -> None:
    assert _testing.pool_faults(n_threads, n_tasks, 300) == 0


def test_many_tasks_on_more_threads_than_cores() -> None:
    """Long enough for the system to interrupt a thread between any two instructions of the hand-out."""
    assert _testing.pool_faults(4, 1_000_000, 20) == 0


@pytest.mark.parametrize("n_threads", [1, 2, 4])
@pytest.mark.parametrize("first", [0, 50, 99])
def test_an_error_comes_out_and_the_pool_lives_on(n_threads: int, first: int) -> None:
    thrown, n_run, n_next = _testing.pool_after_error(n_threads, 100, first)
    assert thrown and n_next == 100
    assert n_run == (first + 1 if n_threads == 1 else 100)


def test_an_error_in_the_last_of_many_jobs_is_only_its_own() -> None:
    for _ in range(50):
        thrown, _, n_next = _testing.pool_after_error(3, 10, 9)
        assert (thrown, n_next) == (1, 10)
