"""The board of an engine with the plugin. ``make dashboards`` writes it as JSON."""

import json
from pathlib import Path
from typing import Any

from grafana import Panel, Row, document, rate, selected, total
from hybrid_blocks import metrics
from hybrid_blocks.metrics import OFFLOAD_COUNTERS, OFFLOAD_GAUGES, SHADOW_COUNTERS, SHADOW_GAUGES

FILE = Path(__file__).parent / "hybrid_blocks.json"

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
PREEMPTIONS = "vllm:num_preemptions_total"
FOUND = "vllm:prefix_cache_hits_total"
ASKED = "vllm:prefix_cache_queries_total"
OF_VLLM = (RUNNING, WAITING, PREEMPTIONS, FOUND, ASKED)
"""vLLM's own metrics that the board shows next to the plugin's."""

_HIT_RATE = f"{rate(FOUND)} / ({rate(ASKED)} > 0)"
_SLABS, _BLOCKS = metrics.SLABS.name, metrics.BLOCKS.name
_LABELS = ", ".join(("instance", "model_name", "engine", *metrics.INFO.labels))


def _offload(title: str, description: str, *names: str, unit: str = "short") -> Panel:
    """Show gauges as they are and counters as rates; the legend is the name in words."""
    queries = {
        name.replace("_", " "): rate(OFFLOAD_COUNTERS[name].name)
        if name in OFFLOAD_COUNTERS
        else total(OFFLOAD_GAUGES[name].name)
        for name in names
    }
    return Panel(title, description, queries, unit)


OVERVIEW = Row(
    "Overview",
    [
        Panel(
            "Level",
            "The level that each engine runs at, and why no higher one.",
            {"": f"max by ({_LABELS}) ({selected(metrics.INFO.name)})"},
            kind="table",
            width=24,
            height=4,
        ),
        Panel(
            "Requests",
            "Running requests, and waiting ones.",
            {"running": total(RUNNING), "waiting": total(WAITING)},
        ),
        Panel(
            "Prompt tokens found",
            "Share of the prompt tokens that the cache of the device held.",
            {"found": _HIT_RATE},
            "percentunit",
        ),
        Panel("Preemptions", "Preempted requests a second.", {"preemptions": rate(PREEMPTIONS)}),
        Panel(
            "Left out of the record",
            "Finished requests a second that HYBRID_BLOCKS_RECORD did not write.",
            {"dropped": rate(metrics.RECORD_DROPPED.name)},
        ),
    ],
)
MEMORY = Row(
    "Memory",
    [
        Panel(
            "Slabs by owner",
            "Slabs of each pool, and free ones; level natural.",
            {"{{owner}}": total(_SLABS, "owner")},
            stacked=True,
        ),
        Panel(
            "Blocks by state",
            "Live blocks belong to requests, cached ones can be found, free ones hold nothing.",
            {"{{pool}} {{state}}": total(_BLOCKS, "pool, state")},
            stacked=True,
        ),
        Panel(
            "Reserved memory",
            "Bytes of slabs in which a block has an owner, by part; level natural.",
            {"{{part}}": total(metrics.RESERVED.name, "part")},
            "bytes",
            stacked=True,
        ),
        Panel(
            "Slabs that change hands",
            "Slabs a second that a pool took from another.",
            {"steals": rate(metrics.SLAB_STEALS.name)},
        ),
        Panel(
            "Held for other engines",
            "Slabs of prompts that a decoding engine has still to read. Refused: prompts a second "
            "that found no room to wait.",
            {"slabs": total(metrics.HELD_SLABS.name), "refused": rate(metrics.HELD_REFUSED.name)},
        ),
        Panel(
            "Reads that do not end",
            "Slabs kept from others, as a read that was given up may still write them. Given up: "
            "requests a second that went on without what they read.",
            {
                "slabs": total(metrics.STALLED_SLABS.name),
                "given up": rate(metrics.STALLED_READS.name),
            },
        ),
    ],
)
HITS = Row(
    "Hits, level natural",
    [
        Panel(
            "Hits by their end",
            "Admissions a second. no_checkpoint: attention was there, but no state was.",
            {"{{ended_by}}": rate(metrics.HITS.name, "ended_by")},
            stacked=True,
        ),
        Panel(
            "Complete hits",
            "Share of admissions whose hit is as long as it can be.",
            {
                "complete": f"{rate(metrics.HITS.name, ended_by='complete')}"
                f" / ({rate(metrics.HITS.name)} > 0)"
            },
            "percentunit",
        ),
        Panel(
            "Hits cut",
            "Hits a second whose blocks were too scattered to resume from.",
            {"cut": rate(metrics.HITS_SHORTENED.name)},
        ),
    ],
)
STATES = Row(
    "Checkpoints, level natural",
    [
        Panel(
            "Checkpoints written",
            "States kept a second, by place.",
            {"{{place}}": rate(metrics.CHECKPOINTS_WRITTEN.name, "place")},
            stacked=True,
        ),
        Panel(
            "Checkpoints dropped",
            "States not kept, a second. Many of evicted or no_room: the memory is too small.",
            {"{{reason}}": rate(metrics.CHECKPOINTS_DROPPED.name, "reason")},
            stacked=True,
        ),
        Panel(
            "Checkpoints used",
            "States copied a second for requests that resume from them.",
            {"forks": rate(metrics.FORKS.name)},
        ),
    ],
)
OFFLOAD = Row(
    "Offload",
    [
        _offload(
            "Host memory",
            "Bytes that can be found, and those that states and their attention take.",
            *("host_held_bytes", "host_live_bytes"),
            unit="bytes",
        ),
        _offload(
            "Chunks moved",
            "Chunks a second between the device and host memory, and evicted ones.",
            *("stored_chunks", "loaded_chunks", "evicted_chunks"),
        ),
        _offload("Look-ups", "Look-ups of requests a second.", "lookups"),
        _offload("Disk", "Bytes of segment files.", "disk_bytes", unit="bytes"),
        _offload(
            "Chunks below host memory",
            "Chunks on disk, chunks known to be objects, and chunks that wait for their upload.",
            *("disk_chunks", "object_chunks", "object_uploads"),
        ),
        _offload(
            "Read from below",
            "Bytes a second from disk and objects to host memory: all, and the rates of each.",
            *("promoted_bytes", "disk_read_bytes_per_second", "object_read_bytes_per_second"),
            unit="Bps",
        ),
        _offload(
            "Latency of reads",
            "Seconds that reads took beside their bytes.",
            *("disk_read_latency_seconds", "object_read_latency_seconds"),
            unit="s",
        ),
        _offload(
            "Refusals",
            "Stores and reads a second without room; 1 while the disk or the objects are not used.",
            *("stores_refused", "promotions_refused", "disk_refused", "object_refused"),
        ),
        _offload(
            "Read or compute",
            "Tokens a second that were sooner computed than read, and the rate of computing.",
            *("passed_by_tokens", "prompt_tokens_per_second"),
        ),
        _offload("Points to resume from", "Lengths in host memory to resume from.", "host_units"),
    ],
    folded=True,
)


def _shadow(name: str) -> str:
    """Return a counter's rate, by its label."""
    figure = SHADOW_COUNTERS[name]
    return rate(figure.name, *figure.labels)


_OF_PROMPTS = f"on () group_left () ({_shadow('prompt_tokens')} > 0)"
SHADOW = Row(
    "Shadow",
    [
        Panel(
            "Found in the shadow",
            "Share of prompt tokens that the engine found, and that each replay would find.",
            {"{{replay}}": f"{_shadow('found_tokens')} / {_OF_PROMPTS}"},
            "percentunit",
        ),
        Panel(
            "Trust",
            "Share of prompt tokens by which the replay of the engine's level differs from it.",
            {"difference": f"{_shadow('differing_tokens')} / ({_shadow('prompt_tokens')} > 0)"},
            "percentunit",
        ),
        Panel(
            "First token",
            "Mean time to the first token.",
            {"{{replay}}": f"{_shadow('first_token_seconds')} / ({_shadow('first_tokens')} > 0)"},
            "s",
        ),
        Panel(
            "At once",
            "The most requests that ran at once in a minute.",
            {"{{replay}}": total(SHADOW_GAUGES["running"].name, "replay")},
        ),
        Panel("Preempted", "Preemptions a second.", {"{{replay}}": _shadow("preemptions")}),
        Panel(
            "Requests of the record",
            "Requests a second, those left out, and the seconds not replayed yet.",
            {
                "requests": _shadow("requests"),
                "{{reason}}": _shadow("left_out"),
                "behind": f"max({selected(SHADOW_GAUGES['behind_seconds'].name)})",
            },
        ),
    ],
    folded=True,
)


def board() -> dict[str, Any]:
    """Return the whole board."""
    return document(
        uid="hybrid-blocks",
        title="vLLM / Hybrid blocks",
        description="Slabs, hits, checkpoints and offload of engines with hybrid_blocks.",
        of=metrics.INFO.name,
        rows=(OVERVIEW, MEMORY, HITS, STATES, OFFLOAD, SHADOW),
    )


if __name__ == "__main__":
    FILE.write_text(json.dumps(board(), indent=2) + "\n")
