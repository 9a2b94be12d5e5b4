"""The running requests."""

from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Batch:
    """Running requests in the order of their admission, struct of arrays.

    Columns are read as views of the rows in use, shape ``[len(batch)]``:

    - ``request``: index in the trace.
    - ``handle``: the manager's name for it.
    - ``computed``: tokens whose keys and values are in the cache.
    - ``known``: tokens whose ids are known: the prompt and what was sampled.
    - ``final``: ``known`` at which the request is finished.
    - ``next_token``: where its next sampled token stands in the engine's list of outputs.
    """

    COLUMNS = ("request", "handle", "computed", "known", "final", "next_token")

    def __init__(self, capacity: int) -> None:
        self._rows = np.zeros((len(self.COLUMNS), capacity), dtype=np.int64)
        self._length = 0
        self._view()

    def __len__(self) -> int:
        return self._length

    def append(self, **row: int) -> None:
        """Add a request after all others."""
        self._rows[:, self._length] = [row[column] for column in self.COLUMNS]
        self._length += 1
        self._view()

    def pop(self) -> dict[str, int]:
        """Remove the request that was admitted last."""
        self._length -= 1
        row = self._rows[:, self._length].tolist()
        self._view()
        return dict(zip(self.COLUMNS, row, strict=True))

    def keep(self, mask: Mask) -> None:
        """Remove the requests where ``mask`` is false; the others keep their order."""
        kept = self._rows[:, : self._length][:, mask]
        self._length = kept.shape[1]
        self._rows[:, : self._length] = kept
        self._view()

    def _view(self) -> None:
        rows: Any = self._rows[:, : self._length]
        self.request, self.handle, self.computed, self.known, self.final, self.next_token = rows
