"""Requests of a trace, as the manager and the sampler see them, and those that run."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hybrid_blocks.tools.replay.counters import Meter
from hybrid_blocks.tools.replay.manager import ReplayManager
from hybrid_blocks.tools.trace import Trace

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


@dataclass(slots=True)
class Pending:
    """A request that waits with a state: known to the manager, or preempted.

    Attributes:
        handle: the manager's name for it.
        known: tokens whose ids are known.
        computed: tokens that were computed before a preemption, 0 before the first admission.
        admitted: whether it has run before.
    """

    handle: int
    known: int
    computed: int = 0
    admitted: bool = False


class Requests:
    """Introduces requests to the manager when they are first looked at, and holds their outputs.

    Token ids are made at that moment, so that a long queue takes no memory.

    Attributes:
        outputs: the tokens to sample, of all requests one after another.
        output_start: where each request's tokens begin.
    """

    def __init__(self, trace: Trace, manager: ReplayManager, meter: Meter) -> None:
        self._trace = trace
        self._manager = manager
        self._meter = meter
        self._pending: dict[int, Pending] = {}
        ends = np.cumsum(trace.output_tokens, dtype=np.int64)
        self.outputs = np.empty(ends[-1] if len(ends) else 0, dtype=np.int32)
        self.output_start = (ends - trace.output_tokens).tolist()
        self.prompt = trace.prompt_tokens.tolist()
        self.final = trace.total_tokens.tolist()

    def register(self, request: int) -> Pending:
        """Return a waiting request's state, after adding it to the manager if it is new."""
        pending = self._pending.get(request)
        if pending is None:
            tokens = self._trace.token_ids(request)
            prompt = self.prompt[request]
            start = self.output_start[request]
            self.outputs[start : start + len(tokens) - prompt] = tokens[prompt:]
            name = self._trace.request_id(request)
            handle = self._meter.call(self._manager.add_request, name, tokens[:prompt])
            pending = self._pending[request] = Pending(handle, prompt)
        return pending

    def carry(self, before: "Requests", old: int, new: int) -> None:
        """Take over a request that has another number there."""
        start, end = (
            self.output_start[new],
            self.output_start[new] + self.final[new] - self.prompt[new],
        )
        first = before.output_start[old]
        self.outputs[start:end] = before.outputs[first : first + end - start]
        if (pending := before._pending.get(old)) is not None:
            self._pending[new] = pending

    def start(self, request: int) -> None:
        """Forget the waiting state of a request that now runs."""
        del self._pending[request]

    def preempt(self, request: int, handle: int, known: int, computed: int) -> None:
        """Keep the state of a request that has to run again."""
        self._pending[request] = Pending(handle, known, computed, admitted=True)
