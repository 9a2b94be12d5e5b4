"""Figures of the offload manager."""

from typing import Final

from hybrid_blocks.metrics.figure import Figure

PREFIX: Final = "hybrid_blocks_offload_"
_COUNTERS: Final = {
    "lookups": "Look-ups of requests; each is one call for all groups and tiers.",
    "stored_chunks": "Chunks copied from the device to host memory.",
    "loaded_chunks": "Chunks copied from host memory to the device.",
    "evicted_chunks": "Chunks whose place in host memory was taken.",
    "stores_refused": "Stores that found no room in host memory beside what transfers use.",
    "promoted_bytes": "Bytes read from disk and objects to host memory.",
    "promotions_refused": "Reads from disk and objects that found no room in host memory at first.",
    "passed_by_tokens": "Tokens that disk and objects hold and that were sooner computed.",
}
_GAUGES: Final = {
    "host_live_bytes": "Bytes of host memory that states, and the attention they need, take.",
    "host_held_bytes": "Bytes of host memory whose chunks can be found.",
    "host_units": "Lengths in host memory from which a request can resume.",
    "disk_bytes": "Bytes of segment files, also those that go first.",
    "disk_chunks": "Chunks on disk.",
    "object_chunks": "Chunks that the store of objects is known to hold.",
    "object_uploads": "Chunks that wait for their upload to the store of objects.",
    "object_refused": "1 while the store of objects is not used, as it refused.",
    "disk_read_bytes_per_second": "Rate of the last reads from the disk, waiting too; 0 at first.",
    "disk_read_latency_seconds": "Time of the last reads from the disk, without their bytes' time.",
    "object_read_bytes_per_second": "Rate of the last reads of objects, waiting too; 0 at first.",
    "object_read_latency_seconds": "Time of the last reads of objects, without their bytes' time.",
    "prompt_tokens_per_second": "Rate at which prompts are computed; 0 while it is not known.",
}

COUNTERS: Final = {
    name: Figure(f"{PREFIX}{name}_total", "counter", text) for name, text in _COUNTERS.items()
}
"""By the name between prefix and ``_total``."""
GAUGES: Final = {name: Figure(PREFIX + name, "gauge", text) for name, text in _GAUGES.items()}
"""By the name after the prefix."""

OFFLOAD: Final = (*COUNTERS.values(), *GAUGES.values())
"""All of them."""
