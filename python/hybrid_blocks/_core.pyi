"""The compiled core: typed here by hand, checked against the binary by stubtest."""

from collections.abc import Callable, Iterable, Sequence
from typing import (
    Any,
    ClassVar,
    Self,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    final,
    overload,
    type_check_only,
)

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer, disjoint_base

__all__ = [
    "AllocatedBlocks",
    "Block",
    "BlockHasher",
    "BlockManager",
    "BlockStore",
    "Blocks",
    "Compaction",
    "DecodeBatch",
    "FlopModel",
    "GroupSpec",
    "HandedDigests",
    "HashChain",
    "Placement",
    "RequestHasher",
    "ScheduledDecodes",
    "TakenOutputs",
    "VllmManager",
    "build_info",
]

_Tokens: TypeAlias = Buffer | npt.NDArray[np.integer] | list[int] | tuple[int, ...]
_ExtraKeys: TypeAlias = list[Any] | tuple[object, ...]
_Handles: TypeAlias = npt.NDArray[np.int64]
_Counts: TypeAlias = npt.NDArray[np.int32]
_TableRuns: TypeAlias = tuple[_Counts, _Counts, _Counts, _Counts]

@type_check_only
class BuildInfo(TypedDict):
    """What the extension was built as."""

    version: str
    profile: str
    arch: str
    os: str
    cpu_features: list[str]

def build_info() -> BuildInfo:
    """Return version, profile (``debug`` or ``release``), target and CPU features."""

@final
class BlockHasher:
    """Hashes token ids block by block; immutable, to be shared between threads and sequences.

    ``algorithm`` is ``sha256``, ``sha256_cbor``, ``xxhash`` or ``xxhash_cbor``; ``block_size`` the
    tokens a block; ``none_hash`` the parent digest of a sequence's first block. ``fallback`` hashes
    the tuple ``(parent, tokens, extra_keys)`` where the extra keys are of types that only Python
    can serialize. With ``num_lookahead_tokens`` > 0 each digest also covers that many tokens after
    its block. :func:`hybrid_blocks.hashing.block_hasher` fills in the defaults.

    ``tokens`` are token ids, shape ``[num_tokens]``: a list or tuple of ``int``, or a buffer (numpy
    array, ``array.array``, memoryview) of native int32 or int64. Values of 64 bits are hashed as
    they are, negative ones too.

    ``extra_keys`` hold, for each block in order, whatever else its content depends on: ``None`` or
    a tuple such as ``(("lora", name, path), ("mm", identifier, offset))``. Pickle looks at object
    identity: the digests are those that Python would give for these very objects.

    Every method raises ``InvalidArgumentError`` for a digest of the wrong length, for tokens that
    are not integers of 64 bits, and for extra keys that do not match the blocks in number.
    """

    def __new__(
        cls,
        algorithm: str,
        block_size: int,
        none_hash: bytes,
        fallback: Callable[[object], bytes],
        *,
        num_lookahead_tokens: int = 0,
    ) -> BlockHasher: ...
    @property
    def algorithm(self) -> str:
        """The algorithm's name."""

    @property
    def block_size(self) -> int:
        """Tokens a block."""

    @property
    def digest_size(self) -> int:
        """Bytes a digest: 32 for SHA-256, 16 for XXH3."""

    @property
    def none_hash(self) -> bytes:
        """The parent digest of a sequence's first block, ``digest_size`` bytes."""

    @property
    def num_lookahead_tokens(self) -> int:
        """Tokens after a block that its digest covers too."""

    def hash_block(
        self, tokens: _Tokens, parent: bytes | None = None, extra_keys: object = None
    ) -> bytes:
        """Return the digest of ``(parent, tokens, extra_keys)``, for any number of tokens.

        ``parent`` is ``none_hash`` where it is ``None``. ``block_size`` and
        ``num_lookahead_tokens`` play no part.
        """

    def hash_blocks(
        self, tokens: _Tokens, parent: bytes | None = None, extra_keys: _ExtraKeys | None = None
    ) -> list[bytes]:
        """Return the digests of all full blocks of ``tokens``, each the parent of the next.

        There are ``(num_tokens - num_lookahead_tokens) // block_size`` of them. ``tokens`` follow
        on ``parent``, or start a sequence where it is ``None``. Without extra keys, the GIL is
        released from 16,384 tokens on.
        """

    def hash_prompt_blocks(
        self, tokens: _Tokens, extra_keys: _ExtraKeys | None = None
    ) -> tuple[list[bytes], HandedDigests]:
        """Return the digests of a prompt's full blocks, twice: for Python and for a manager."""

    def hash_blocks_array(
        self, tokens: _Tokens, parent: bytes | None = None, extra_keys: _ExtraKeys | None = None
    ) -> npt.NDArray[np.uint8]:
        """Return what :meth:`hash_blocks` returns as one array ``[num_blocks, digest_size]``."""

@final
class HashChain:
    """The digests of one growing sequence of tokens: it keeps the tokens no digest covers yet.

    However the sequence is cut into appends, the digests are the same. The sequence starts after
    ``parent``, or at its beginning where that is ``None``.
    """

    def __new__(cls, hasher: BlockHasher, parent: bytes | None = None) -> HashChain: ...
    def append(self, tokens: _Tokens, extra_keys: _ExtraKeys | None = None) -> list[bytes]:
        """Append tokens and return the digests of the blocks that they complete.

        ``extra_keys`` has one entry for each of these (:meth:`num_new_blocks` tells how many).

        Raises:
            InvalidArgumentError: As :class:`BlockHasher`; the chain is then as it was.
            HybridBlocksError: Another append to this chain is in progress.

        """

    def num_new_blocks(self, num_tokens: int) -> int:
        """Return how many digests an append of ``num_tokens`` tokens will make."""

    @property
    def parent(self) -> bytes:
        """The last digest, ``digest_size`` bytes."""

    @property
    def num_blocks(self) -> int:
        """Digests made so far."""

    @property
    def num_tokens(self) -> int:
        """Tokens appended so far."""

@final
class GroupSpec:
    """What the layers of a cache group keep.

    ``kind`` is one of

    - ``full``: attention over all tokens, latent attention too;
    - ``sliding_window``: over the token itself and the ``window - 1`` before it;
    - ``chunked``: within aligned chunks of ``window`` tokens;
    - ``state``: a recurrent state, in ``slots`` slots a request, 1 and 1 more for each speculative
      token;
    - ``cross``: attention over at most ``encoder_tokens`` tokens of an encoder.

    ``block_size`` is in tokens, a multiple of the hasher's; for states it is the grain of lengths
    at which a checkpoint may be kept. ``pool`` says which pool the blocks come from.

    Raises:
        InvalidArgumentError: An unknown kind, or arguments that it does not have.
    """

    def __new__(
        cls,
        kind: str,
        block_size: int,
        *,
        window: int | None = None,
        slots: int | None = None,
        encoder_tokens: int | None = None,
        pool: int = 0,
    ) -> GroupSpec: ...
    @property
    def kind(self) -> str:
        """Which layers."""

    @property
    def block_size(self) -> int:
        """Tokens a block."""

    @property
    def window(self) -> int | None:
        """Tokens of the window or chunk."""

    @property
    def slots(self) -> int | None:
        """State slots a request."""

    @property
    def encoder_tokens(self) -> int | None:
        """Encoder tokens a request, at most."""

    @property
    def pool(self) -> int:
        """The pool of the blocks."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Placement:
    """At which lengths a request leaves checkpoints of its recurrent states.

    At the end of its prompt, less a ``prompt_margin`` that the next turn may not repeat, an eighth
    of the prompt at most; at the ``branch`` point where it leaves what earlier requests left of
    attention blocks but not of states; at its ``finish``, which one copy follows every
    ``follow_every`` generated tokens; and ``every`` so many tokens. At most ``max_per_request``,
    the one at the finish not counted.
    """

    def __new__(
        cls,
        *,
        prompt_end: bool = True,
        prompt_margin: int = 128,
        branch: bool = True,
        finish: bool = True,
        follow_every: int = 64,
        every: int | None = None,
        max_per_request: int = 4,
    ) -> Placement: ...
    @property
    def prompt_end(self) -> bool:
        """Whether the end of the prompt is kept."""

    @property
    def prompt_margin(self) -> int:
        """Tokens at the end of a prompt that the next turn may not repeat."""

    @property
    def branch(self) -> bool:
        """Whether branch points are kept."""

    @property
    def finish(self) -> bool:
        """Whether the end of a request is kept."""

    @property
    def follow_every(self) -> int:
        """Generated tokens between two copies that follow a request to its end."""

    @property
    def every(self) -> int | None:
        """Tokens between periodic checkpoints."""

    @property
    def max_per_request(self) -> int:
        """Most checkpoints a request leaves."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class FlopModel:
    """What computing and keeping ``n`` tokens costs; as a policy, FLOP-aware eviction.

    FLOPs are ``linear * n + quadratic * n**2``, bytes ``token_bytes * n + state_bytes``. Cached
    content of a sequence seems up to ``alpha`` ticks younger than it is, in proportion to the FLOPs
    that it saves per byte.

    Raises:
        InvalidArgumentError: A value that is negative or not finite.
    """

    def __new__(
        cls,
        *,
        linear: float,
        quadratic: float,
        token_bytes: float,
        state_bytes: float,
        alpha: float = 0.0,
    ) -> FlopModel: ...
    def efficiency(self, num_tokens: int) -> float:
        """Return the FLOPs saved per byte kept, for a sequence of ``num_tokens``."""

@final
class Compaction:
    """Planned moves of live blocks that free slabs."""

    @property
    def num_slabs(self) -> int:
        """Slabs that come free."""

    @property
    def num_moves(self) -> int:
        """Blocks that have to be moved for it."""

@final
class BlockStore:
    """Pools and prefix indexes without requests, for engines that keep their own block tables.

    Either one pool of ``num_blocks`` (the null block 0 among them), whose decisions are those of
    vLLM's ``BlockPool``, or one pool for each entry of ``blocks_per_slab`` over an arena of
    ``num_slabs`` slabs. Block ids are int32 arrays of shape ``[n]``; digests have ``digest_size``
    bytes, 32 or 16. May be shared between threads; a refused call has changed nothing.

    Every method raises ``InvalidArgumentError`` for values that cannot be (negative or absurd
    numbers, another dtype, arrays that are not contiguous, a pool that does not exist) and
    ``BlockError`` for a block id that is not one of the pool's.
    """

    def __new__(
        cls,
        num_blocks: int | None = None,
        *,
        num_slabs: int | None = None,
        blocks_per_slab: Sequence[int] | None = None,
        digest_size: int = 32,
    ) -> BlockStore: ...
    def get_new(self, num_blocks: int, *, pool: int = 0) -> npt.NDArray[np.int32]:
        """Return the ids of new blocks, each with one owner.

        Free blocks go first, then cached ones, coldest first; those lose their keys.

        Raises:
            OutOfBlocksError: Fewer blocks have no owner.
        """

    def touch(self, blocks: npt.NDArray[np.int32], *, pool: int = 0) -> None:
        """Add an owner to each block, as after a hit."""

    def free(self, blocks: npt.NDArray[np.int32], *, pool: int = 0) -> None:
        """Take an owner from each block.

        Blocks without owner and key go first in the free order, keyed ones last, both in the order
        given.

        Raises:
            BlockError: A block has no (further) owner.
        """

    def insert_key(
        self, block: int, digest: bytes, *, group: int = 0, num_tokens: int = 0, pool: int = 0
    ) -> bool:
        """Let a block be found under a digest; return whether it was not before.

        Several blocks may carry one key and a block several keys. ``num_tokens`` is a note of how
        many tokens the first key stands for.

        Raises:
            BlockError: The block has neither an owner nor a key: there is nothing in it to find.
        """

    def get(self, digest: bytes, *, group: int = 0, pool: int = 0) -> int | None:
        """Return the block that has carried a key longest."""

    def match_prefix(
        self, digests: npt.NDArray[np.uint8], *, group: int = 0, pool: int = 0
    ) -> npt.NDArray[np.int32]:
        """Return the blocks of the leading digests that are all found, at most ``num_blocks``.

        ``digests`` has shape ``[num_blocks, digest_size]``, as
        :meth:`BlockHasher.hash_blocks_array` returns them.
        """

    def evict(self, blocks: npt.NDArray[np.int32], *, pool: int = 0) -> None:
        """Drop the keys of blocks. Owners keep theirs; the free order stays as it is."""

    def take_evicted(self) -> list[tuple[bytes, int]]:
        """Return ``(digest, group)`` of the keys dropped since the last call, in order."""

    def keys(self, block: int, *, pool: int = 0) -> list[tuple[bytes, int]]:
        """Return ``(digest, group)`` of the keys of a block, oldest first."""

    def reset(self) -> None:
        """Drop all keys; they do not count as evicted.

        Raises:
            BlockError: A block has an owner.
        """

    def tick(self) -> None:
        """Let time pass, once a step: it orders the ages of what several pools cache."""

    def free_order(self, *, pool: int = 0) -> npt.NDArray[np.int32]:
        """Return the blocks without owner, the next to be handed out first."""

    def ref_counts(self, *, pool: int = 0) -> npt.NDArray[np.int32]:
        """Return the number of owners of every block id, shape ``[num_blocks]``."""

    def num_free(self, *, pool: int = 0) -> int:
        """Return how many blocks could be had, cached ones included."""

    def num_keys(self, *, pool: int = 0) -> int:
        """Return how many different keys can be found."""

    @property
    def num_pools(self) -> int:
        """Pools."""

    @property
    def memory_bytes(self) -> int:
        """Heap bytes held."""

    def check_integrity(self) -> None:
        """Walk everything; slow, for tests.

        Raises:
            IntegrityError: A promise is broken; the message says which.
        """

@final
class BlockManager:
    """Requests, their block tables in every group, and the prefix cache between them.

    The blocks come from one pool of ``num_blocks`` (the null block 0 among them), or from several
    pools over an arena of ``num_slabs`` slabs (the first is the null block's), where pool ``p``
    cuts a slab into ``blocks_per_slab[p]`` blocks and slabs move between pools as they are needed.
    ``hasher`` gives the hash block size and the digests. ``max_chunk`` is the most tokens of one
    request that are computed in one step; it bounds what windowed groups hold.

    ``policy`` says which cached content goes first: ``lru``, a :class:`FlopModel`, or ``explicit``
    (what :meth:`set_worth` was told is worth least; both need slabs). With ``enable_compaction``
    live blocks may be moved together when a request lacks nothing but whole slabs.

    Batched calls take ``handles``, an int64 array of shape ``[n]``, and as many int32 values;
    arrays are read where they lie. Every call does all that it was asked for or changes nothing.
    The manager may be shared between threads.

    Raises:
        InvalidArgumentError: Sizes that cannot be.
    """

    def __new__(
        cls,
        groups: Sequence[GroupSpec],
        hasher: BlockHasher,
        *,
        num_blocks: int | None = None,
        num_slabs: int | None = None,
        blocks_per_slab: Sequence[int] | None = None,
        enable_caching: bool = True,
        enable_events: bool = False,
        enable_delta: bool = False,
        enable_compaction: bool = True,
        policy: str | FlopModel = ...,
        placement: Placement | None = None,
        max_chunk: int = 1073741824,
    ) -> BlockManager: ...
    def add_request(
        self, request_id: str, tokens: _Tokens, extra_keys: _ExtraKeys | None = None
    ) -> int:
        """Register a request by its prompt, take no block, and return its handle.

        ``extra_keys`` has one entry for each full hash block.

        Raises:
            DuplicateRequestError: The id is in use.
            RequestTooLargeError: The prompt would not fit into the empty cache.
            InvalidArgumentError: Tokens or extra keys that cannot be hashed.
        """

    def append_tokens(self, handles: _Handles, tokens: _Counts) -> None:
        """Append one sampled token to each request.

        Raises:
            UnknownRequestError: A handle names no request.
            InvalidArgumentError: The lengths differ, or a handle is given twice.
        """

    def match_prefix(self, handle: int) -> int:
        """Return how many leading tokens need not be computed, at most all but one.

        Takes nothing; the first :meth:`allocate` adopts what was found. 0 for a request that holds
        blocks.

        Raises:
            UnknownRequestError: The handle names no request.
        """

    def match_limit(self, handle: int) -> str:
        """Return why :meth:`match_prefix` gives no more.

        ``complete``, ``unseen``, ``attention_evicted``, ``window_evicted``, ``no_checkpoint`` or
        ``alignment``.

        Raises:
            UnknownRequestError: The handle names no request.
        """

    def can_admit(self, handle: int, headroom: int = 0) -> bool:
        """Return whether all known tokens of a waiting request have room at once.

        ``headroom`` blocks (slabs where several pools share them) stay free beside it. Layers with
        a window also hold the tokens of the chunk that is being computed; chunks may have to be as
        small as :meth:`fitting_chunk` says. Takes nothing; True for a request that holds blocks.

        Raises:
            UnknownRequestError: The handle names no request.
        """

    def fitting_chunk(self, handle: int, most: int) -> int:
        """Return the most tokens, up to ``most``, that a request can compute in one step.

        All known tokens of a waiting request have room in chunks of as many, the next chunk of a
        running one has. ``most`` if no smaller chunk would help. Takes nothing.

        Raises:
            UnknownRequestError: The handle names no request.
        """

    def next_boundary(self, handle: int) -> int | None:
        """Return the next length that a chunk must not run across, so that a checkpoint is taken.

        Raises:
            UnknownRequestError: The handle names no request.
        """

    def take_copies(self) -> npt.NDArray[np.int32]:
        """Return block copies to run before the next forward pass, in order, shape ``[n, 3]``.

        A row is ``(group, src, dst)``. Their sources are held until the next call.
        """

    def set_worth(self, handle: int, worth: npt.NDArray[np.uint64]) -> None:
        """Say what the content of each of a request's hash blocks is worth once nobody holds it.

        For the ``explicit`` policy. Shape ``[num_hash_blocks]``; missing ones are worth nothing.

        Raises:
            UnknownRequestError: The handle names no request.
        """

    def set_alpha(self, alpha: float) -> None:
        """Change the ``alpha`` of a FLOP-aware policy, in ticks.

        Raises:
            InvalidArgumentError: The policy is another one.
        """

    def plan_compaction(self, num_slabs: int) -> Compaction:
        """Find up to ``num_slabs`` slabs whose live blocks fit into other slabs of their pool."""

    def apply_compaction(self, plan: Compaction) -> npt.NDArray[np.int32]:
        """Move the blocks of a plan; return the changed table entries, shape ``[n, 4]``.

        A row is ``(row, group, position, block id)``.

        The bytes follow with the next :meth:`take_copies`.

        Raises:
            InvalidArgumentError: Something happened since the plan was made.
        """

    def allocate(self, handles: _Handles, num_new_tokens: _Counts, lookahead: int = 0) -> int:
        """Make room for more tokens of each request, in order; return how many were served.

        ``num_new_tokens[i]`` counts tokens after those computed, or, in a request's first
        allocation, after its matched prefix; ``lookahead`` more may be rejected later. The first
        request that does not fit, and all after it, are left as they were. A request whose matched
        prefix was evicted since counts as one that does not fit.

        Raises:
            UnknownRequestError: A handle names no request.
            RequestTooLargeError: A request would not fit into the empty cache.
            InvalidArgumentError: The lengths differ, or a handle is given twice.
        """

    def advance(self, handles: _Handles, num_tokens: _Counts) -> None:
        """Record that tokens were computed.

        Blocks that became full can be hit from now on; blocks that no later token looks at are
        given back.

        Raises:
            UnknownRequestError: A handle names no request.
            InvalidArgumentError: More tokens than were allocated or exist, a request without
                blocks, different lengths, or a handle given twice.
        """

    def preempt(self, handles: _Handles) -> None:
        """Give back the blocks of requests; their tokens are kept, to be computed again.

        Raises:
            UnknownRequestError: A handle names no request.
        """

    def free(self, handles: _Handles) -> None:
        """Give back the blocks of requests and forget the requests.

        Raises:
            UnknownRequestError: A handle names no request.
        """

    def tick(self) -> None:
        """Let time pass, once a step: it orders the ages of what is cached."""

    def reset(self) -> None:
        """Drop all cached content.

        Raises:
            BlockError: A request still holds blocks.
        """

    def block_ids(self, handle: int, group: int = 0) -> npt.NDArray[np.int32]:
        """Return a request's block table in one group, 0 where nothing is kept.

        Raises:
            UnknownRequestError: The handle names no request.
            InvalidArgumentError: The group does not exist.
        """

    def progress(self, handle: int) -> tuple[int, int, int]:
        """Return a request's tokens: known, computed, and with room in every group.

        Raises:
            UnknownRequestError: The handle names no request.
        """

    def find(self, request_id: str) -> int | None:
        """Return the handle of a request id."""

    def take_delta(self) -> list[_TableRuns]:
        """Return the changed entries of block tables since the last call, by group.

        A group's changes are int32 arrays ``(rows, starts, offsets, block_ids)``: run ``i`` is
        ``block_ids[offsets[i]:offsets[i + 1]]`` and goes to ``table[rows[i], starts[i]:]``, as
        :func:`hybrid_blocks.kernels.apply_table_delta` takes them. A row is the low 32 bits of a
        handle. Nothing unless ``enable_delta``; entries of freed and preempted requests are not
        cleared.
        """

    def take_events(self) -> list[tuple[object, ...]]:
        """Return the changes of the prefix cache since the last call, in order.

        ``("stored", handle, group, first_block, block_size, parent, digests)``,
        ``("removed", digest, group)`` or ``("cleared",)``. Empty unless ``enable_events``.
        """

    def stats(self) -> dict[str, int]:
        """Return counters since the start.

        Tokens of ``queries`` and ``hits``; ``preemptions``, ``checkpoints`` left, ``forks`` from
        them, ``compactions`` and ``moves``; and admissions by what ended their hit, ``limit_*``.
        """

    @property
    def num_requests(self) -> int:
        """Requests known."""

    @property
    def num_groups(self) -> int:
        """Groups."""

    @property
    def max_request_tokens(self) -> int:
        """Tokens of the longest request that fits when it is alone."""

    @property
    def num_blocks(self) -> int:
        """Blocks that can be handed out; slabs where several pools share an arena."""

    @property
    def num_free_blocks(self) -> int:
        """Of these, the ones without an owner, cached ones included."""

    def num_live_blocks(self, *, pool: int = 0) -> int:
        """Return how many blocks of a pool have an owner.

        Raises:
            ValueError: There is no such pool.
        """

    @property
    def memory_bytes(self) -> int:
        """Heap bytes that the block store holds."""

    def check_integrity(self) -> None:
        """Walk everything; slow, for tests.

        Raises:
            IntegrityError: A promise is broken; the message says which.
        """

@final
class Block:
    """One block as vLLM's managers and connectors see it; ``isinstance`` takes it for vLLM's.

    It is a number and the pool it belongs to: everything else is asked of the pool. A block has one
    such object, made when it is first asked for.
    """

    @property
    def block_id(self) -> int:
        """The block's number."""

    @property
    def is_null(self) -> bool:
        """Whether this is block 0, the placeholder."""

    @property
    def pool(self) -> Any:
        """What the blocks were tied to as their owner."""

    @property
    def ref_cnt(self) -> int:
        """Owners.

        Setting it adds or takes owners beside the first; ``ValueError`` if the block has none or
        would have none left.
        """

    @ref_cnt.setter
    def ref_cnt(self, count: int) -> None: ...
    @property
    def block_hash(self) -> bytes | None:
        """The first key under which the block's content is found: hash and group."""

    @property
    def block_hash_num_tokens(self) -> int | None:
        """Tokens from the start of the prompt that the first key stands for."""

    @property
    def _block_hash(self) -> bytes | None: ...
    @_block_hash.setter
    def _block_hash(self, block_hash: bytes | None) -> None: ...
    @property
    def _block_hash_num_tokens(self) -> int | None: ...
    @property
    def next_free_block(self) -> Any:
        """The block or queue end after it in the free queue, ``None`` if it is not in there."""

    @property
    def prev_free_block(self) -> Any:
        """The block or queue end before it in the free queue, ``None`` if it is not in there."""

    def set_block_hash(self, block_hash: bytes, num_tokens: int | None = None) -> None:
        """Let the content be found; ``AssertionError`` if it can be already."""

    def reset_hash(self) -> None:
        """Let the content be found no more."""

@final
class Blocks:
    """All blocks of a pool, a sequence, and what is done with many of them at a time.

    ``num_blocks`` counts the null block, which is number 0. ``keep_evicted`` keeps the keys of
    evicted blocks for `take_evicted`. A key is vLLM's ``BlockHashWithGroupId``: a hash of 32, 16 or
    fewer bytes and the group as four big-endian bytes; ``InvalidArgumentError`` for others.
    """

    def __new__(cls, num_blocks: int, *, keep_evicted: bool = False) -> Self: ...
    def tie(self, owner: object, head: object, tail: object, block_class: type) -> None:
        """Set what blocks give as their pool and their class, and the ends of the free queue."""

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Block: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[Block]: ...
    @property
    def num_free(self) -> int:
        """Blocks without owner. What is written to it shifts what is read from then on."""

    @num_free.setter
    def num_free(self, count: int) -> None: ...
    @property
    def num_cached(self) -> int:
        """Blocks without owner at the warm end of the free queue: those whose content is kept."""

    @property
    def num_keys(self) -> int:
        """Distinct keys under which content is found."""

    def allocate(self, num_blocks: int) -> list[Block]:
        """Take blocks out of the free queue, each with one owner; their content is evicted.

        Raises ``OutOfBlocksError`` if there are fewer; then none is taken.
        """

    def take_evicted(self) -> list[bytes]:
        """Return the keys evicted since the last call, in order."""

    def touch(self, blocks: Iterable[Block]) -> None:
        """Add an owner to each but null blocks; ``TypeError`` for one of another pool."""

    def free(self, blocks: Iterable[object]) -> list[Any]:
        """Take an owner from each but null blocks; return what is not of this pool.

        Blocks without owner go to the front of the free queue if they hold nothing, else to its
        end, in the order given. Raises ``BlockError`` if one has no owner; then none is freed.
        """

    def free_warm(self, blocks: Iterable[Block]) -> None:
        """Take an owner from each; all that have none left go to the end of the free queue."""

    def get(self, key: bytes) -> Block | None:
        """Return the block that has been found under a key longest."""

    def get_in_groups(self, block_hash: bytes, groups: Sequence[int]) -> list[Block] | None:
        """Return a hash's block in each group, or nothing if one group has none."""

    def get_all(self, key: bytes) -> list[Block]:
        """Return all blocks that are found under a key, the first one first."""

    def contains(self, key: bytes, block_id: int) -> bool:
        """Return whether this very block is found under the key."""

    def insert(self, key: bytes, block: Block, num_tokens: int | None = None) -> bool:
        """Let a block be found under a key; return whether it was not before."""

    def insert_full(
        self,
        blocks: list[Block],
        block_hashes: list[Any],
        hashes_per_block: int,
        start: int,
        end: int,
        block_size: int,
        group: int,
        mask: Sequence[bool] | None = None,
    ) -> None:
        """Let ``blocks[start:end]`` be found, each under the hash at its end.

        Null blocks and those that ``mask`` (one entry a new block) leaves out are passed over.
        Raises ``AssertionError`` for a block that is found under as many tokens already.
        """

    def remove(self, block: Block) -> list[bytes]:
        """Let a block be found no more; return its keys, the first one first."""

    def further_keys(self, block_id: int) -> list[bytes]:
        """Return a block's keys after its first."""

    def move_keys(self, source: Block, target: Block) -> None:
        """Let what is found in ``source`` be found in ``target``, which has no key."""

    @property
    def first_free(self) -> Any:
        """The first block of the free queue, or its tail."""

    @property
    def last_free(self) -> Any:
        """The last block of the free queue, or its head."""

    def all_free(self) -> list[Block]:
        """Return the free queue, in order."""

    def reset(self) -> None:
        """Forget all content; ``BlockError`` while a block has an owner."""

    def memory_bytes(self) -> int:
        """Return the heap bytes held, without the objects made for single blocks."""

    def check_integrity(self) -> None:
        """Walk everything; ``IntegrityError`` says what is broken."""

@final
class AllocatedBlocks:
    """vLLM's ``KVCacheBlocks`` as block ids by group; ``isinstance`` takes it for one.

    Made by :class:`VllmManager` alone.
    """

    @property
    def blocks(self) -> tuple[Sequence[Block], ...]:
        """Block objects by group, made when asked for."""

    def get_block_ids(
        self, allow_none: bool = False, *, group_ids: Sequence[int] | None = None
    ) -> tuple[list[int], ...] | None:
        """Return ids by group, of the groups named if any are; ``None`` for none if allowed."""

    def get_unhashed_block_ids(self) -> list[int]:
        """Return the ids of the one group's blocks that cannot be hit.

        Raises:
            AssertionError: There are several groups.
        """

    def get_unhashed_block_ids_all_groups(self) -> list[list[int]]:
        """Return the ids of blocks that cannot be hit, by group, without null blocks."""

    def new_empty(self) -> AllocatedBlocks:
        """Return a result of as many groups without blocks."""

    def __add__(self, other: object, /) -> AllocatedBlocks:
        """Return the blocks of both, group by group."""

    def __radd__(self, other: object, /) -> AllocatedBlocks: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@disjoint_base
class VllmManager:
    """What vLLM's ``KVCacheManager`` does for requests, decision by decision.

    The base of :class:`hybrid_blocks.vllm.native_manager.NativeKVCacheManager`. Arguments are
    vLLM's; it is empty until :meth:`_start` is called. Requests are vLLM's ``Request`` objects, of
    which counts, status and block hashes are read and nothing is written.
    """

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self: ...
    def _start(
        self, blocks: Blocks, num_groups: int, waiting: Sequence[object], class_: type
    ) -> AllocatedBlocks:
        """Begin over a pool's blocks and return the one result that stands for no blocks.

        ``waiting`` are the states of requests that are to be admitted, ``class_`` is what results
        claim to be. The first other call asks ``self._geometry()`` for a
        :class:`hybrid_blocks.vllm.geometry.Geometry`, and raises ``InvalidArgumentError`` for sizes
        that do not fit each other.

        Raises:
            IntegrityError: It has begun already.
        """

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
        skip_zeroing_group_ids: Sequence[int] = ...,
    ) -> AllocatedBlocks | None:
        """Make room for tokens of a request; ``None`` if there are too few blocks.

        Raises:
            ValueError: No token is new and none is computed already.
            InvalidArgumentError: A hit that the request cannot adopt.
        """

    def get_computed_blocks(
        self, request: Any, max_cache_hit_length: int | None = None
    ) -> tuple[AllocatedBlocks, int, int]:
        """Return the longest cached prefix: blocks, tokens, and where others diverged from it."""

    def free(self, request: Any) -> None:
        """Forget a request and give its blocks back, the last ones first to go."""

    def pop_blocks_for_free(self, request: Any) -> list[Block]:
        """Forget a request and return its blocks, still owned."""

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        """Enter what so many tokens complete into the prefix cache."""

    def remove_skipped_blocks(
        self,
        request_id: str,
        processed_computed_tokens: int,
        num_prompt_tokens: int | None = None,
    ) -> None:
        """Give back what a request need not keep after so many tokens."""

    def get_blocks(self, request_id: str) -> AllocatedBlocks:
        """Return a request's blocks."""

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """Return the ids of a request's blocks by group."""

    def estimate_cached_tokens(self, request: Any) -> int:
        """Return the tokens of a request that every group has cached, at least."""

    def take_new_block_ids(self) -> list[int]:
        """Return the blocks to be zeroed since the last call."""

    def record_blocks_for_zeroing(self, request_id: str, start_token: int) -> None:
        """Have a request's blocks zeroed again, from a token on that starts a block.

        Raises:
            InvalidArgumentError: It does not.
        """

    def take_boundary_state_offloads(self) -> dict[str, list[tuple[int, int, int]]]:
        """Return states that a connector may save: ``(group, block, tokens)`` by request."""

    def finalize_partial_tail_offloads(self, request: Any) -> list[tuple[int, int, int]]:
        """Return the states at the end of a finished request: ``(group, block, tokens)``."""

    def new_step_starts(self) -> None:
        """Note that what the last step computed is there."""

    def _free(self, request_id: str) -> None: ...
    def _pop(self, request_id: str) -> list[Block]: ...
    def _take_copies(self) -> list[list[Block]]: ...
    def _demand(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: object,
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool,
        prefill_end: int,
    ) -> int: ...
    def _blocks_of(self, request_id: str, group: int) -> list[Block] | None: ...
    def _num_cached_blocks(self, request_id: str, group: int) -> int | None: ...
    def _checkpoint(self, request_id: str, group: int) -> tuple[int, int] | None: ...
    def _holders(self, group: int) -> list[str]: ...
    def _inject_fault(self, request_id: str) -> None:
        """Have the core panic when it next allocates for a request, to test what becomes of it."""

@final
class DecodeBatch:
    """The running requests of vLLM's scheduler that decode one token a step, all in one call.

    Requests are vLLM's ``Request`` objects; their counts, tokens and status are read and written
    as vLLM's scheduler does.
    """

    def __new__(
        cls,
        manager: VllmManager,
        *,
        output_class: type,
        states: tuple[object, object, object, object],
        max_model_len: int,
        hash_block_size: int,
        num_hash_lookahead_tokens: int,
        is_async: bool,
    ) -> Self:
        """Begin over a block manager.

        ``output_class`` is vLLM's ``EngineCoreOutput``; ``states`` are its states of requests that
        run, are preempted, ended by a token, and ended by their length. ``is_async`` says whether
        steps are scheduled before the outputs of earlier ones are there.
        """

    def schedule(
        self,
        running: list[Any],
        max_requests: int,
        token_budget: int,
        previous: set[str] | None,
    ) -> ScheduledDecodes:
        """Schedule a token each for the first of the running requests.

        It ends before the first that does anything but decode one token, or for which there is no
        room, and after ``max_requests`` requests or ``token_budget`` tokens. ``previous`` are the
        ids of the requests of the step before, or ``None`` where nobody wants the tokens of others.
        """

    def take_outputs(
        self,
        scheduler: Any,
        requests: dict[str, Any],
        num_scheduled_tokens: dict[str, int],
        index_of: dict[str, int],
        sampled: list[list[int]],
    ) -> TakenOutputs:
        """Append what was sampled in a step, and end the requests whose last token it is.

        It ends before the first request that got anything but one token. ``index_of`` gives a
        request's position in ``sampled``. Requests that end are freed by ``scheduler``.
        """

@final
class ScheduledDecodes:
    """What a step's output says of the requests that decode; lists are in their order."""

    @property
    def num_seen(self) -> int:
        """Running requests dealt with, those that have nothing to do in this step included."""
    @property
    def num_scheduled_tokens(self) -> dict[str, int]:
        """One token each."""
    @property
    def req_ids(self) -> list[str]:
        """The requests."""
    @property
    def new_block_ids(self) -> list[tuple[list[int], ...] | None]:
        """New blocks by group, or ``None``."""
    @property
    def num_computed_tokens(self) -> list[int]:
        """Tokens computed before this step."""
    @property
    def num_output_tokens(self) -> list[int]:
        """Tokens sampled before this step, those in flight included."""
    @property
    def all_token_ids(self) -> dict[str, list[int]]:
        """All tokens of requests that the step before had not scheduled."""
    @property
    def has_structured_output(self) -> bool:
        """Whether a grammar constrains any of them."""
    @property
    def pending_structured_output(self) -> bool:
        """Whether one of those waits for tokens in flight."""

@final
class TakenOutputs:
    """Outputs of the requests that got one token."""

    @property
    def num_seen(self) -> int:
        """Requests of the step dealt with."""
    @property
    def outputs(self) -> dict[int, list[Any]]:
        """VLLM's ``EngineCoreOutput`` objects by client."""
    @property
    def stopped(self) -> list[Any]:
        """Requests that ended; they are freed but still among the running ones."""

@disjoint_base
class RequestHasher:
    """Decides whether a request has blocks to hash.

    The base of :class:`hybrid_blocks.vllm.request_hasher.RequestHasher`, which hashes them.
    """

    def __new__(
        cls, block_size: int, num_lookahead_tokens: int, *_args: Any, **_kwargs: Any
    ) -> Self: ...
    def __call__(self, request: Any) -> list[Any]:
        """Return the hashes of the blocks that became full since the last call."""

@final
class HandedDigests:
    """Digests on their way from a hasher to a block manager, which takes them out."""

    def __len__(self) -> int: ...
