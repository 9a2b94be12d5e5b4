"""Which chunks in host memory a request could resume from."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from hybrid_blocks.offload.groups import Group, Groups, group_number
from hybrid_blocks.replay.tiers.below import Finished


def live_bytes(
    groups: Groups, requests: Sequence[Finished], is_here: Callable[[bytes], bool]
) -> int:
    """Bytes, without padding, of chunks by which host memory alone restores a prefix of a request.

    A state counts if all attention before it is here, and attention if a state behind it is.
    """
    live: set[bytes] = set()
    for request in requests:
        live |= _live(groups, request, is_here)
    sizes = {group.number: groups.chunk_bytes(group) for group in groups.all}
    return sum(sizes[group_number(key)] for key in live)


def _live(groups: Groups, request: Finished, is_here: Callable[[bytes], bool]) -> set[bytes]:
    here: dict[int, dict[int, bytes]] = defaultdict(dict)
    for key, tokens in zip(request.keys, request.tokens, strict=True):
        if is_here(key):
            here[group_number(key)][tokens] = key
    live: set[bytes] = set()
    for length in sorted({tokens for held in here.values() for tokens in held}):
        needed = [_needed(group, here[group.number], length) for group in groups.all]
        if all(keys is not None for keys in needed):
            live.update(key for keys in needed if keys is not None for key in keys)
    return live


def _needed(group: Group, here: dict[int, bytes], length: int) -> list[bytes] | None:
    """The group's chunks that a request of ``length`` tokens reads; None if one is not here."""
    if length % group.tokens:
        return None
    first = 0 if group.window is None else max(0, length - group.window * group.tokens)
    ends = range(first + group.tokens, length + 1, group.tokens)
    keys = [here[end] for end in ends if end in here]
    return keys if len(keys) == len(ends) else None
