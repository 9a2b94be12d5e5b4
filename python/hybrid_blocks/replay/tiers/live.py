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
    # By group: at which lengths the chunks that a request of that length reads are here.
    held = [_held(group, here[group.number]) for group in groups.all]
    lengths = set.intersection(*held)
    live: set[bytes] = set()
    for group in groups.all:
        chunks = here[group.number]
        if group.window is None:
            ends = range(group.tokens, max(lengths, default=0) + 1, group.tokens)
            live.update(chunks[end] for end in ends)
        else:
            live.update(
                chunks[end] for length in lengths for end in _window(group, group.window, length)
            )
    return live


def _held(group: Group, chunks: dict[int, bytes]) -> set[int]:
    """Lengths that the group's chunks restore: all chunks before, or those of a window."""
    lengths: set[int] = set()
    run = 0
    for end in range(group.tokens, max(chunks, default=0) + 1, group.tokens):
        run = run + 1 if end in chunks else 0
        if run >= min(end // group.tokens, group.window or end):
            lengths.add(end)
        elif group.window is None:
            break
    return lengths


def _window(group: Group, window: int, length: int) -> range:
    first = max(0, length - window * group.tokens)
    return range(first + group.tokens, length + 1, group.tokens)
