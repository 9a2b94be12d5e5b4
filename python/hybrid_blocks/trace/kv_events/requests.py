"""Guesses requests from KV events, which do not name them.

An engine says which blocks it stored behind which, step by step. A request's blocks follow each
other: those of its prompt many at a time, those of its answer one by one. It begins at the
beginning of a prompt, or behind blocks that it found.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hybrid_blocks.trace.builder import TraceBuilder
from hybrid_blocks.trace.kv_events.line import Line

_SECONDS_A_TOKEN: Final = 0.25
"""An engine that takes longer for a token is taken to have ended the request."""

_ANSWERING: Final = 2
"""Steps of one block each, after which a request computes no prompt any more."""

_WHOLE_ATTENTION: Final = (None, "full_attention", "mla_attention")


@dataclass(slots=True)
class _Request:
    """A request that may still store blocks.

    ``prompt_blocks`` count from the prompt's start. A request that ``waits`` has found blocks and
    stored none.
    """

    at: float
    end: int
    session: int | None
    adapter: int | None
    prompt_blocks: int
    last_at: float
    waits: bool
    answer_blocks: int = 0


class _Blocks:
    """All blocks of a file by number, each with the block before it."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self._before: list[int] = []
        self.depth: list[int] = []
        self.num_unknown = 0
        self.held: set[str] = set()

    def after(self, before: int, digests: Iterable[str]) -> int:
        """Return the last of ``digests``, whose first stands behind ``before`` (-1: nothing)."""
        for digest in digests:
            number = self.numbers.setdefault(digest, len(self._before))
            if number == len(self._before):
                self._before.append(before)
                self.depth.append(1 if before < 0 else self.depth[before] + 1)
            self.held.add(digest)
            before = number
        return before

    def find(self, digest: str) -> int:
        """Return a block's number; an unknown block begins a prompt."""
        if digest not in self.numbers:
            self.num_unknown += 1
        return self.after(-1, [digest])

    def up_to(self, number: int) -> list[int]:
        """Return the numbers from the beginning up to a block."""
        chain = []
        while number >= 0:
            chain.append(number)
            number = self._before[number]
        return chain[::-1]


def build(name: str, lines: Sequence[Line]) -> TraceBuilder:
    """Turn lines into requests in the order of their first blocks."""
    group, block_tokens = _attention(lines)
    blocks = _Blocks()
    requests = list(_requests(lines, group, block_tokens, blocks))
    builder = TraceBuilder(name, num_reserved=len(blocks.numbers) * block_tokens)
    sessions: dict[int, int] = {}
    requests.sort(key=lambda request: request.at)
    for request in requests:
        chain = blocks.up_to(request.end)
        prompt = request.prompt_blocks * block_tokens + 1
        output = max(request.answer_blocks * block_tokens, 1)
        spans = [(number * block_tokens, block_tokens) for number in chain]
        spans.append(builder.fresh(prompt + output - len(chain) * block_tokens))
        session = -1
        if request.session is not None:
            if request.session not in sessions:
                sessions[request.session] = builder.new_session()
            session = sessions[request.session]
        builder.add(
            spans,
            arrival=request.at - requests[0].at,
            prompt_tokens=prompt,
            output_tokens=output,
            session=session,
        )
    builder.notes += _notes(lines, len(requests), block_tokens, blocks)
    return builder


def _attention(lines: Sequence[Line]) -> tuple[int | None, int]:
    """Return the group and block size with most blocks, of layers that keep every block."""
    counts: Counter[tuple[int | None, int]] = Counter()
    with_gaps = set()
    for line in lines:
        if line.what == "stored":
            key = line.group, line.block_tokens
            counts[key] += line.num_blocks
            is_whole = line.tokens == line.num_blocks * line.block_tokens
            if not is_whole or line.layers not in _WHOLE_ATTENTION:
                with_gaps.add(key)
    known = [key for key in counts if key not in with_gaps] or list(counts)
    return max(known, key=lambda key: (counts[key], -(key[0] or 0)), default=(None, 1))


def _requests(
    lines: Sequence[Line], group: int | None, block_tokens: int, blocks: _Blocks
) -> Iterator[_Request]:
    longest_pause = block_tokens * _SECONDS_A_TOKEN
    running: dict[int, _Request] = {}
    for line in lines:
        if line.what == "cleared":
            blocks.held.clear()
        elif line.what == "removed" and line.group == group:
            blocks.held.difference_update(line.digests)
        if line.what != "stored" or (line.group, line.block_tokens) != (group, block_tokens):
            continue
        before = -1 if line.parent is None else blocks.find(line.parent)
        digests = line.digests
        is_found = blocks.held.issuperset(digests)
        end = blocks.after(before, digests)
        request = running.pop(before, None)
        if request is not None and not _goes_on(request, line, longest_pause):
            yield request
            request = None
        other = running.get(end)
        if request is not None:
            _extend(request, line, end)
        elif (
            is_found and other is not None and other.waits and _goes_on(other, line, longest_pause)
        ):
            other.last_at = line.at  # an engine reports what it found at each look-up
            continue
        else:
            request = _Request(
                at=line.at,
                end=end,
                session=line.session,
                adapter=line.adapter,
                prompt_blocks=blocks.depth[end],
                last_at=line.at,
                waits=is_found,
            )
        if other is not None:
            yield other
        running[end] = request
    yield from running.values()


def _goes_on(request: _Request, line: Line, longest_pause: float) -> bool:
    """Whether a line is of the request whose last block its blocks follow."""
    return (
        line.at - request.last_at <= longest_pause
        and (line.session, line.adapter) == (request.session, request.adapter)
        and (line.num_blocks == 1 or request.answer_blocks < _ANSWERING)
    )


def _extend(request: _Request, line: Line, end: int) -> None:
    is_first = request.waits
    request.end, request.last_at, request.waits = end, line.at, False
    if line.num_blocks == 1 and not is_first:
        request.answer_blocks += 1
        return
    # A single block before was the end of a chunk of the prompt.
    request.prompt_blocks += request.answer_blocks + line.num_blocks
    request.answer_blocks = 0


def _notes(
    lines: Sequence[Line], num_requests: int, block_tokens: int, blocks: _Blocks
) -> Iterator[str]:
    yield (
        f"{num_requests:,} requests are guessed from KV events of blocks of {block_tokens} tokens: "
        "lengths are whole blocks, and a request that stored none is missing"
    )
    if blocks.num_unknown:
        yield (
            f"{blocks.num_unknown:,} blocks follow others that were stored before the recording "
            "began; the prompts of these requests were longer"
        )
    if lost := sum(line.messages for line in lines):
        yield f"{lost:,} messages of the engine are missing from the file"
