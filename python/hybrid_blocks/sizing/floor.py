"""Times that no engine with a clock is below, whatever its memory and its other requests."""

import numpy as np
import numpy.typing as npt

from hybrid_blocks.replay import StepTime
from hybrid_blocks.sizing.slo import Target
from hybrid_blocks.trace import SharedPrefixes, Trace

Floats = npt.NDArray[np.float64]


class Floor:
    """Requests that run alone, and find all that any other request has in common with them."""

    def __init__(
        self,
        trace: Trace,
        prefixes: SharedPrefixes,
        block_size: int,
        step_time: StepTime,
        max_num_batched_tokens: int,
    ) -> None:
        found = np.maximum(prefixes.seen, prefixes.seen_again) * block_size
        prompt = trace.prompt_tokens.astype(np.float64)
        computed = np.maximum(prompt - found, 1)
        steps = np.ceil(computed / max_num_batched_tokens)
        self._first = (
            steps * (step_time.fixed + step_time.per_sequence)
            + step_time.per_context_token * prompt
            + step_time.per_prefill_token * (computed - steps)
        )
        self._token = (
            step_time.fixed + step_time.per_sequence + step_time.per_context_token * prompt
        )
        self._rest = trace.output_tokens.astype(np.float64) - 1

    def of(self, kind: str) -> Floats:
        """Return the least seconds of each request, as `Latencies.of` has them."""
        seconds: Floats
        match kind:
            case "ttft":
                seconds = self._first
            case "e2e":
                seconds = self._first + self._rest * self._token
            case _:
                seconds = self._token[self._rest > 0]
        return seconds

    def missed(self, targets: tuple[Target, ...]) -> Target | None:
        """Return a target that even these times miss."""
        for target in targets:
            seconds = self.of(target.kind)
            late = int((seconds >= target.seconds).sum())
            if len(seconds) and target.is_lost(late, len(seconds)):
                return target
        return None
