"""Coding-agent conversations: one JSON object a line, prompts as 64-token block ids.

Source: github.com/callanjfox/kv-cache-tester. A prompt has its whole list of ids in ``hash_ids``,
or in ``new`` the ids behind those that it keeps of the prompt before. Several of the raw files may
be put together, one a line. The reference (``traces.md``) has the rules for what they leave open:
when turns arrive, which ids are shared, and what stands for the rest of a prompt.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated

import msgspec

from hybrid_blocks.tools.trace.builder import Span, TraceBuilder

TOKENS_PER_ID = 64
CONVERSATION_GAP = 60.0
MOST_NESTED = 32
"""Subagents within subagents."""

Length = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Id = Annotated[int, msgspec.Meta(ge=0, lt=2**31 // TOKENS_PER_ID)]
FirstLast = Annotated[list[Id], msgspec.Meta(min_length=2, max_length=2)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
IdRange = tuple[int, int]
"""First id and number of ids."""


class Turn(msgspec.Struct):
    """One request, or a subagent with a list of its own."""

    t: Seconds
    type: str
    input_tokens: Length = msgspec.field(name="in", default=0)
    output_tokens: Length = msgspec.field(name="out", default=0)
    keep: Length = 0
    new: list[Id | FirstLast] = []
    hash_ids: list[Id] | None = None
    think_time: Seconds | None = None
    api_time: Seconds | None = None
    requests: list["Turn"] = []
    tool_tokens: Length = 0
    system_tokens: Length = 0

    @property
    def is_subagent(self) -> bool:
        """Whether this stands for a list of further requests."""
        return self.type == "subagent"

    @property
    def new_ids(self) -> list[IdRange]:
        """The ids after those kept from the request before."""
        return [(n, 1) if isinstance(n, int) else (n[0], n[1] - n[0] + 1) for n in self.new]


class Conversation(msgspec.Struct):
    """One line of a file."""

    id: str
    requests: list[Turn]
    block_size: int = TOKENS_PER_ID
    tool_tokens: Length = 0
    system_tokens: Length = 0


_decoder = msgspec.json.Decoder(Conversation)


def parse(line: bytes) -> Conversation:
    """Read one line; a ``ValueError`` says what is wrong with it."""
    conversation = _decoder.decode(line)
    if conversation.block_size != TOKENS_PER_ID:
        raise ValueError(f"block_size is {conversation.block_size}; only {TOKENS_PER_ID} is known")
    _check(conversation.requests)
    return conversation


def build(name: str, records: Sequence[Conversation]) -> TraceBuilder:
    """Turn records into requests; an output counts at least one token."""
    builder = TraceBuilder(name)
    shared: dict[tuple[int, int], int] = {}
    for index, conversation in enumerate(records):
        num_ids = 1 + max(
            (first + n - 1 for first, n in _all_ids(conversation.requests)), default=-1
        )
        first_token, _ = builder.fresh(num_ids * TOKENS_PER_ID)
        lists = _Lists(builder, shared, first_token)
        lists.add(conversation, start=index * CONVERSATION_GAP, follows=-1)
    return builder


class _Lists:
    """Adds the request lists of one conversation: its own and its subagents'."""

    def __init__(
        self, builder: TraceBuilder, shared: dict[tuple[int, int], int], first_token: int
    ) -> None:
        self._builder = builder
        self._shared = shared
        self._first_token = first_token

    def add(self, owner: Conversation | Turn, start: float, follows: int) -> None:
        """Add a list that begins ``start`` seconds after ``follows`` ended."""
        turns = [turn for turn in owner.requests if not turn.is_subagent]
        prompts = _prompts(turns)
        prefix = self._prefix(owner, prompts)
        session = self._builder.new_session()
        previous: Turn | None = None
        index = 0
        for turn in owner.requests:
            delay = start + turn.t if previous is None else _pause(previous, turn)
            if turn.is_subagent:
                self.add(turn, delay, follows)
                continue
            output = max(turn.output_tokens, 1)
            ids = prompts[index]
            if index + 1 < len(turns) and turns[index + 1].keep >= _num_ids(ids):
                ids = ids + _after(prompts[index + 1], _num_ids(ids))
            unknown = turn.input_tokens + output - _num_ids(ids) * TOKENS_PER_ID
            follows = self._builder.add(
                [*self._spans(ids, prefix), self._builder.fresh(max(unknown, 0))],
                arrival=delay,
                prompt_tokens=turn.input_tokens,
                output_tokens=output,
                follows=follows,
                session=session,
            )
            previous = turn
            index += 1

    def _prefix(
        self, owner: Conversation | Turn, prompts: Sequence[list[IdRange]]
    ) -> tuple[IdRange, int]:
        """Return the ids of the list's shared prefix, and the first token that they stand for."""
        num_shared = (owner.tool_tokens + owner.system_tokens) // TOKENS_PER_ID
        if not num_shared or not prompts or not prompts[0]:
            return (0, 0), 0
        key = owner.tool_tokens, owner.system_tokens
        if key not in self._shared:
            self._shared[key], _ = self._builder.fresh(num_shared * TOKENS_PER_ID)
        first, count = prompts[0][0]
        return (first, min(count, num_shared)), self._shared[key]

    def _spans(self, ids: Sequence[IdRange], prefix: tuple[IdRange, int]) -> Iterator[Span]:
        (shared_first, num_shared), shared_token = prefix
        shared_end = shared_first + num_shared
        for first, count in ids:
            end = first + count
            cuts = sorted({first, end, *(c for c in (shared_first, shared_end) if first < c < end)})
            for low, high in pairwise(cuts):
                if shared_first <= low < shared_end:
                    token = shared_token + (low - shared_first) * TOKENS_PER_ID
                else:
                    token = self._first_token + low * TOKENS_PER_ID
                yield token, (high - low) * TOKENS_PER_ID


def _pause(previous: Turn, turn: Turn) -> float:
    if turn.think_time is not None:
        return turn.think_time
    return max(turn.t - previous.t - (previous.api_time or 0.0), 0.0)


def _prompts(turns: Sequence[Turn]) -> list[list[IdRange]]:
    """Undo the delta coding: the whole id list of each turn."""
    prompts: list[list[IdRange]] = []
    ids: list[IdRange] = []
    for turn in turns:
        ids = _before(ids, turn.keep)
        for first, count in turn.new_ids:
            if ids and sum(ids[-1]) == first:
                ids[-1] = ids[-1][0], ids[-1][1] + count
            else:
                ids.append((first, count))
        prompts.append(ids)
    return prompts


def _code(turns: Sequence[Turn]) -> None:
    """Say of whole lists of ids what each keeps of the list before."""
    held: list[int] = []
    for turn in turns:
        ids = turn.hash_ids
        if ids is None or turn.is_subagent:
            continue
        pairs = enumerate(zip(held, ids, strict=False))
        unlike = (at for at, (one, other) in pairs if one != other)
        turn.keep = next(unlike, min(len(held), len(ids)))
        turn.new, turn.hash_ids = [*ids[turn.keep :]], None
        held = ids


def _check(turns: Sequence[Turn], depth: int = 0) -> None:
    if depth > MOST_NESTED:
        raise ValueError(f"subagents are nested more than {MOST_NESTED} deep")
    _code(turns)
    held = 0
    for turn in turns:
        if turn.is_subagent:
            _check(turn.requests, depth + 1)
            continue
        where = f"the request at t={turn.t}"
        if turn.input_tokens < 1:
            raise ValueError(f"{where} has no prompt tokens")
        if any(count < 1 for _, count in turn.new_ids):
            raise ValueError(f"{where} has a range of ids that ends before it begins")
        if turn.keep > held:
            raise ValueError(f"{where} keeps {turn.keep} ids of a list of {held}")
        held = turn.keep + _num_ids(turn.new_ids)
        if held != turn.input_tokens // TOKENS_PER_ID:
            raise ValueError(
                f"{where} has {held} ids; its {turn.input_tokens} prompt tokens fill "
                f"{turn.input_tokens // TOKENS_PER_ID}"
            )


def _all_ids(turns: Sequence[Turn]) -> Iterator[IdRange]:
    for turn in turns:
        yield from turn.new_ids
        yield from _all_ids(turn.requests)


def _num_ids(ids: Sequence[IdRange]) -> int:
    return sum(count for _, count in ids)


def _before(ids: Sequence[IdRange], position: int) -> list[IdRange]:
    kept = []
    for first, count in ids:
        if position <= 0:
            break
        kept.append((first, min(count, position)))
        position -= count
    return kept


def _after(ids: Sequence[IdRange], position: int) -> list[IdRange]:
    rest = []
    for first, count in ids:
        skipped = min(position, count)
        position -= skipped
        if skipped < count:
            rest.append((first + skipped, count - skipped))
    return rest
