"""The requests of a trace, as the manager and the sampler see them."""

from dataclasses import dataclass

import numpy as np

from hybrid_blocks.tools.replay.counters import Meter
from hybrid_blocks.tools.replay.manager import ReplayManager
from hybrid_blocks.tools.trace import Trace


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
        self.outputs = np.empty(ends[-1], dtype=np.int32)
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
            handle = self._meter.call(self._manager.add_request, str(request), tokens[:prompt])
            pending = self._pending[request] = Pending(handle, prompt)
        return pending

    def start(self, request: int) -> None:
        """Forget the waiting state of a request that now runs."""
        del self._pending[request]

    def preempt(self, request: int, handle: int, known: int, computed: int) -> None:
        """Keep the state of a request that has to run again."""
        self._pending[request] = Pending(handle, known, computed, admitted=True)
