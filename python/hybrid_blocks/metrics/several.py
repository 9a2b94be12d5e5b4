"""Figures of several KV connectors in one engine."""

from typing import Final

from hybrid_blocks.metrics.figure import Figure

PREFIX: Final = "hybrid_blocks_connector_"
_LABELS: Final = ("connector",)
_COUNTERS: Final = {
    "loads": "Loads that this connector was chosen for.",
    "loaded_tokens": "Tokens of these loads.",
    "failed_loads": "Loads of it that failed; their requests compute the tokens.",
    "passed_by": "Offers of it that were not taken, as the request resumes sooner otherwise.",
    "not_awaited": "Look-ups of it that were not waited for any longer.",
    "wrong_answers": "Answers that no request could load, such as more tokens than a prompt has.",
    "errors": "Errors that it raised instead of an answer.",
}
_GAUGES: Final = {
    "bytes_per_second": "Rate of its last loads, waiting too; 0 at first.",
    "latency_seconds": "Time of its last loads, without their bytes' time.",
}

COUNTERS: Final = {
    name: Figure(f"{PREFIX}{name}_total", "counter", text, _LABELS)
    for name, text in _COUNTERS.items()
}
"""By the name between prefix and ``_total``."""
GAUGES: Final = {
    name: Figure(PREFIX + name, "gauge", text, _LABELS) for name, text in _GAUGES.items()
}
"""By the name after the prefix."""

SEVERAL: Final = (*COUNTERS.values(), *GAUGES.values())
"""All of them."""
