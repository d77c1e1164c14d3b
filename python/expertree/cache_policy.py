"""Which experts stay in memory, as a Python object says."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from expertree import _core
from expertree.errors import InvalidRequestError


class CachePolicy:
    """Says what keeping each expert in memory is worth; `Model(policy=)` takes one. A subclass gives `update`.

    It is asked before a prefill or a step, once, when the text has gone on since; not for each expert that has to go:
    the reading threads never wait for Python. What that takes is `Model.experts["policy_seconds"]`. One object serves
    one model, and threads one at a time; it may not run the model.
    """

    def update(self, uses: npt.NDArray[np.int64], n_rows: int) -> npt.NDArray[Any] | None:
        """What each expert is worth from now on.

        Args:
            uses: (MoE layers, experts), how many of the tokens run since the last call used the expert. Tokens that a
                step drafted in vain do not count; rows of `Session.evaluate` do. Of a prompt only the last token goes
                through the last layer.
            n_rows: how many tokens these were.

        Returns:
            Finite numbers (MoE layers, experts): the expert worth least goes when another one needs room, among equals
            the one not used for longest. At first all are worth the same. None: as before.
        """
        raise NotImplementedError


class PolicyCalls:
    """Asks a policy when the text has gone on, from whichever thread makes a step."""

    def __init__(self, policy: CachePolicy, pager: Any) -> None:
        self._policy = policy
        self._pager = pager
        self._shape = (int(pager.n_layers), int(pager.n_experts))
        self._n_rows = -1  # that the policy has been told of
        self._uses: npt.NDArray[np.int64] = np.zeros(self._shape, np.int64)
        self._lock = threading.RLock()
        self._asks = False
        self.seconds = 0.0

    def update(self) -> None:
        """Raises InvalidRequestError for an answer that makes no sense, and what the policy raises."""
        with self._lock:
            if self._asks:
                name = type(self._policy).__name__
                raise InvalidRequestError(f"policy {name} runs the model that asks it; update() may only compute")
            start = time.perf_counter()
            self._asks = True
            try:
                self._ask()
            finally:
                self._asks = False
                self.seconds += time.perf_counter() - start

    def _ask(self) -> None:
        n_rows, counted = self._pager.counted()
        if n_rows == self._n_rows:
            return
        uses = np.asarray(counted).astype(np.int64).reshape(self._shape)
        values = self._policy.update(uses - self._uses, n_rows - max(0, self._n_rows))
        if values is not None:
            self._pager.set_values(self._checked(values))
        self._n_rows, self._uses = n_rows, uses

    def _checked(self, values: Any) -> npt.NDArray[np.float32]:
        try:
            numbers = np.asarray(values)
        except (ValueError, TypeError):
            numbers = np.asarray(None)
        if numbers.shape != self._shape or numbers.dtype.kind not in "iuf" or not np.isfinite(numbers).all():
            raise InvalidRequestError(
                f"policy {type(self._policy).__name__} gave {numbers.dtype} of shape {numbers.shape}; expected finite "
                f"numbers of shape {self._shape}"
            )
        return np.ascontiguousarray(np.clip(numbers.astype(np.float64), -3e38, 3e38).ravel(), dtype=np.float32)


def policy_calls(policy: str | CachePolicy, core: _core.Model) -> PolicyCalls | None:
    """None for a policy that is a name, and for a model without experts."""
    return PolicyCalls(policy, core.experts) if isinstance(policy, CachePolicy) and core.experts is not None else None
