"""Lines of a log that say why an engine holds less, or did not start, and what to do."""

import re
from typing import Final

_TROUBLES: Final = (
    (
        r"max_num_seqs \((\d{1,12})\) exceeds available Mamba cache blocks \((\d{1,12})\)",
        "the engine did not start: --max-num-seqs {1} or less, or more memory",
    ),
    (
        r"To serve at least one request with the model\S{0,9} max seq len \((\d{1,12})\)",
        "the engine did not start: the cache does not hold one request of {0} tokens",
    ),
    (
        r"No available memory for the cache blocks",
        "the engine did not start: nothing is left for the cache; raise --gpu-memory-utilization",
    ),
    (
        r"CUDA out of memory",
        "a card ran out of memory beside the cache: lower --gpu-memory-utilization",
    ),
    (
        r"Hybrid KV cache manager is disabled|Turning off hybrid kv cache manager",
        "windows and states are kept as full attention: a KV connector that supports the hybrid "
        "manager avoids it",
    ),
    (
        r"page sizes cannot be unified; treating sliding-window",
        "sliding windows are kept whole, as full attention",
    ),
    (
        r"Mamba cache mode is set to 'none' when prefix caching is disabled",
        "no prompt is found again: prefix caching is off",
    ),
    (
        r"Add (\d{1,12}) padding layers, may waste at most (\d{1,12}(?:\.\d{1,12})?)%",
        "{0} empty layers take up to {1} % of the memory; level natural has none",
    ),
    (
        r"Setting attention block size to (\d{1,12}) tokens to ensure that attention page size is "
        r">= mamba",
        "prompts below {0} tokens are never found again; level natural has no such bound",
    ),
    (
        r"Preemptions: \d{1,12}",
        "requests were preempted: the memory is too small for what ran",
    ),
    (
        r"hybrid_blocks runs at level (\w{1,9}), not (\w{1,9}): (.{1,400}?)\. ",
        "level {0} instead of {1}: {2}",
    ),
    (
        r"hybrid_blocks: level manager, as level natural is refused: (.{1,400})",
        "level manager instead of natural: {0}",
    ),
    (
        r"CUDA graph memory profiling is disabled",
        "memory of CUDA graphs is not set aside: the engine may run out of memory",
    ),
)
_COMPILED: Final = tuple((re.compile(pattern), advice) for pattern, advice in _TROUBLES)


def trouble(line: str) -> tuple[str, str] | None:
    """Return the words of a line that matter, and what they mean; None for any other line."""
    for pattern, advice in _COMPILED:
        if match := pattern.search(line):
            words = match[0].partition(":")[0].strip() if "reempt" in match[0] else match[0].strip()
            return words, advice.format(*match.groups())
    return None
