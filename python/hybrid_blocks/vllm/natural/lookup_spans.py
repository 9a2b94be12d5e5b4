"""A span in the trace of a request: what its look-up found, and what ended it.

Attention may reach further than the hit: then a state or a window was missing.
"""

import os
from time import time_ns
from typing import Any, Final

from vllm.tracing import extract_trace_context, instrument_manual
from vllm.v1.request import Request

NAME: Final = "hybrid_blocks.lookup"

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
"""vLLM sets it for ``--otlp-traces-endpoint``, and the engine's process inherits it."""


def are_exported() -> bool:
    """Return whether the engine exports traces."""
    return bool(os.environ.get(ENDPOINT))


class LookupSpans:
    """Stands before a manager's ``allocate_slots``, which admits requests one by one."""

    def __init__(self, manager: Any) -> None:
        self._allocate, self._hit_limits = manager.allocate_slots, manager._hit_limits
        self._manager = manager

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        *more: Any,
        **options: Any,
    ) -> Any:
        """Allocate, and report the admission of a request that a client traces."""
        arguments = (request, num_new_tokens, num_new_computed_tokens, *more)
        if not request.trace_headers:
            return self._allocate(*arguments, **options)
        before = self._hit_limits()
        blocks = self._allocate(*arguments, **options)
        for (ended_by, count), (_, earlier) in zip(self._hit_limits(), before, strict=True):
            if count > earlier:
                self._report(request, num_new_computed_tokens, ended_by)
        return blocks

    def _report(self, request: Request, found: int, ended_by: str) -> None:
        attributes: dict[str, Any] = {
            "hybrid_blocks.found_tokens": found,
            "hybrid_blocks.hit_ended_by": ended_by,
        }
        reached = self._manager._attention_found(request.request_id)
        if reached is not None:
            attributes["hybrid_blocks.attention_tokens"] = reached
        if self._manager.has_states:
            # A hit of a model with states ends at a checkpoint; 0 is none.
            attributes["hybrid_blocks.checkpoint_tokens"] = found
        now = time_ns()
        instrument_manual(
            NAME,
            start_time=now,
            end_time=now,
            attributes=attributes,
            context=extract_trace_context(request.trace_headers),
        )
