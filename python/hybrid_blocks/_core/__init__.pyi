"""The compiled core: typed here by hand, checked against the binary by stubtest."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypedDict, TypeVar, final, type_check_only

import numpy as np
import numpy.typing as npt
from hybrid_blocks._core import offload, vllm
from typing_extensions import Buffer

__all__ = [
    "SESSION_HINTS",
    "BlockHasher",
    "BlockManager",
    "CheckpointPolicy",
    "GroupKind",
    "GroupSpec",
    "HashChain",
    "RecordLines",
    "build_info",
    "offload",
    "vllm",
]

_Tokens: TypeAlias = Buffer | npt.NDArray[np.integer] | list[int] | tuple[int, ...]
_ExtraKeys: TypeAlias = list[Any] | tuple[object, ...]
_Handles: TypeAlias = npt.NDArray[np.int64]
_Counts: TypeAlias = npt.NDArray[np.int32]

SESSION_HINTS: tuple[str, ...]
"""Hints that :meth:`BlockManager.set_hint` takes."""

@type_check_only
class BuildInfo(TypedDict):
    """Version, profile and target of the extension's build."""

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

    Every method raises ``InvalidArgumentError`` for a digest of the wrong length, and for tokens
    that are not integers of 64 bits. It also raises it for extra keys that do not match the blocks
    in number.
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
class RecordLines:
    """Writes the lines of a file of recorded traffic, whose digests have ``key``.

    It numbers requests, sessions and adapters from 0, and counts times from ``start``, in seconds.
    """

    def __new__(cls, key: bytes, start: float) -> RecordLines: ...
    def encode(self, requests: list[Any]) -> bytes:
        """Return a line for each ``hybrid_blocks.recording.recorder.Finished``, with its end."""

_Count = TypeVar("_Count", int, npt.NDArray[np.int64])

@final
class GroupKind:
    """Which tokens and blocks a kind of layer still needs, as the block manager reckons it.

    ``name`` and its numbers are those of `GroupSpec`; ``str`` writes both as one text.

    Raises:
        InvalidArgumentError: An unknown kind, or arguments that it does not have.
    """

    def __new__(
        cls,
        name: str,
        *,
        window: int | None = None,
        slots: int | None = None,
        encoder_tokens: int | None = None,
        **parameters: int | None,
    ) -> GroupKind: ...
    @property
    def name(self) -> str:
        """Name of the kind, such as ``sliding_window``."""

    @property
    def parameters(self) -> dict[str, int]:
        """Numbers of the kind by name, such as ``window``."""

    @property
    def is_cached(self) -> bool:
        """Whether later requests can hit it."""

    def num_skipped_tokens(self, num_computed: _Count) -> _Count:
        """Leading tokens that nothing computed after ``num_computed`` tokens looks at."""

    def num_live_tokens(self, num_tokens: _Count) -> _Count:
        """Tokens that the last of ``num_tokens`` looks at, itself included; 0 for states."""

    def peak_tokens(self, num_tokens: int, max_chunk: int) -> int:
        """Most tokens held at once on the way to ``num_tokens``, ``max_chunk`` at most a step."""

    def peak_blocks(self, num_tokens: int, max_chunk: int, block_size: int) -> int:
        """Most blocks of ``block_size`` tokens held at once on that way; slots for states."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class GroupSpec:
    """Kind, block size and pools of a cache group.

    ``kind`` is one of these, and takes its numbers as keywords or behind it, as in
    ``sliding_window(window=4096)``:

    - ``full``: attention over all tokens, latent attention too;
    - ``sliding_window``: over the token itself and the ``window - 1`` before it;
    - ``chunked``: within aligned chunks of ``window`` tokens;
    - ``state``: a recurrent state, in ``slots`` slots a request, 1 and 1 more for each speculative
      token;
    - ``cross``: attention over at most ``encoder_tokens`` tokens of an encoder;
    - ``ring``: one block a request, written in a circle and never cached.

    ``block_size`` is in tokens, a multiple of the hasher's; for states it is the grain of lengths
    at which a checkpoint may be kept. ``pool`` says which pool the blocks come from. Where the
    placement's format is not ``full``, a group of states has its checkpoints in ``kept_pool``.

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
        kept_pool: int | None = None,
        **parameters: int | None,
    ) -> GroupSpec: ...
    @property
    def kind(self) -> str:
        """Kind of the group's layers, as text."""

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

    @property
    def kept_pool(self) -> int | None:
        """The pool of the checkpoints, where they have another format than running states."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class CheckpointPolicy:
    """At which lengths a request leaves checkpoints of its recurrent states.

    A request leaves checkpoints near the end of its prompt. With ``prompt_margin=None`` the policy
    learns their places from where later prompts leave earlier ones. One distance before the end, or
    several, keep the places fixed; the shortest is an eighth of the prompt at most.

    It leaves one at the ``branch`` point, where earlier requests left attention blocks but no
    states. One copy follows its ``finish``, every ``follow_every`` generated tokens. It leaves
    periodic ones, ``every`` given number of tokens. There are at most ``max_per_request``, the one
    at the finish not counted. A checkpoint that ends a chunk has to save ``step_tokens``, the
    prompt tokens that take as long as one more step; None where the engine does not know.

    ``format`` is ``full``, or ``bf16``, ``fp8`` or ``int8``: the engine then converts a state when
    it copies it to a checkpoint, and back. The groups name the pools of the smaller blocks.

    ``text`` names a placement. ``learned`` is the default. ``fixed:N`` keeps a state N tokens
    before the end of a prompt, ``fixed:N+M`` two of them; ``geometric`` is
    ``fixed:128+1024+8192``. ``every:N`` keeps one every N tokens as well; ``none`` keeps none.
    Options follow behind slashes, as in ``fixed:128/finish=false``, or as keywords.

    Raises:
        InvalidArgumentError: There is no such placement or option, or it cannot have this value.
    """

    def __new__(
        cls,
        text: str = "learned",
        /,
        *,
        prompt_end: bool = ...,
        prompt_margin: int | Sequence[int] | None = ...,
        branch: bool = ...,
        finish: bool = ...,
        follow_every: int = ...,
        every: int | None = ...,
        max_per_request: int = ...,
        step_tokens: int | None = ...,
        format: str = ...,  # noqa: A002
    ) -> CheckpointPolicy: ...
    @property
    def options(self) -> dict[str, Any]:
        """The value of each option: a bool, a number, several, a word, or None."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class BlockManager:
    """Requests, their block tables in every group, and the prefix cache between them.

    The blocks come from one pool of ``num_blocks``, the null block 0 among them. Or they come from
    several pools over an arena of ``num_slabs`` slabs, the first of them the null block's. Pool
    ``p`` cuts a slab into ``blocks_per_slab[p]`` blocks, and slabs move between pools as needed.
    ``hasher`` gives the hash block size and the digests. ``max_in_flight_tokens`` is the most
    tokens of one request in all steps in flight; it bounds what windowed groups hold. No request is
    longer than ``max_request_tokens``, or than what fits alone. An admission beside other requests
    leaves ``watermark`` blocks (slabs of an arena) free. An engine whose forward passes can keep
    states at multiples of ``prefill_checkpoint_alignment`` tokens after the start of a chunk gives
    that number; for others chunks end at checkpoints. The decisions are those of level ``natural``.

    Batched calls take ``handles``, an int64 array of shape ``[n]``, and as many int32 values;
    arrays are read where they lie. Every call does its whole work or changes nothing. The manager
    may be shared between threads.

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
        placement: CheckpointPolicy | None = None,
        max_in_flight_tokens: int = 1073741824,
        max_request_tokens: int | None = None,
        watermark: int = 0,
        prefill_checkpoint_alignment: int | None = None,
    ) -> BlockManager: ...
    def add_request(
        self,
        request_id: str,
        tokens: _Tokens,
        extra_keys: _ExtraKeys | None = None,
        *,
        session_id: str | None = None,
        client: int = 0,
        hint: str | None = None,
    ) -> int:
        """Register a request by its prompt, take no block, and return its handle.

        ``extra_keys`` has one entry for each full hash block. The other arguments guide eviction
        and may be left out. ``session_id`` names the session of the request. ``client`` is a number
        below 1024; checkpoint places are learned apart for each. For ``hint`` see :meth:`set_hint`.

        Raises:
            DuplicateRequestError: The id is in use.
            RequestTooLargeError: The prompt would not fit into the empty cache.
            InvalidArgumentError: Tokens or extra keys that cannot be hashed.
        """

    def set_hint(self, handle: int, hint: str | None) -> None:
        """Say how the conversation of a request continues; the last hint before its end counts.

        ``going_on``, ``paused`` (for a tool), ``done``, ``compacted`` (its history was rewritten),
        or ``none``. Over slabs it is learned how right each hint is; one pool of blocks ignores
        hints.

        Raises:
            UnknownRequestError: The handle names no request.
            InvalidArgumentError: There is no such hint.
        """

    def set_session_hint(self, session_id: str, hint: str | None) -> bool:
        """Say how a session continues, also when none of its requests runs.

        Hints are those of :meth:`set_hint`. One counts for the session's requests that were added
        and not freed. Without such a request, the content that the last one left is kept as if the
        hint had come before its end. Content that another request needs stays as it was. Returns
        False if no request of the session is known or remembered. One pool of blocks remembers
        none.

        Raises:
            InvalidArgumentError: There is no such hint.
        """

    def append_tokens(self, handles: _Handles, tokens: _Counts) -> None:
        """Append one sampled token to each request.

        Raises:
            UnknownRequestError: A handle names no request.
            InvalidArgumentError: The lengths differ, or a handle is given twice.
        """

    def match_prefix(self, handle: int) -> int:
        """Return how many leading tokens need not be computed, at most all but one.

        It takes no block; the first :meth:`allocate` adopts the hit. 0 for a request that holds
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

    def waits_for_checkpoint(self, handle: int) -> bool:
        """Return whether a waiting request had better be passed over in this step.

        Another request leaves a checkpoint in it from which this one can resume.

        Raises:
            UnknownRequestError: The handle names no request.
        """

    def num_uncached(self, handle: int) -> int:
        """Return how many tokens a waiting request would compute if it were admitted now.

        Raises:
            UnknownRequestError: The handle names no request.
        """

    def chunk(self, handle: int, start: int, most: int) -> int:
        """Return how many tokens after ``start`` one step computes, at most ``most``.

        A chunk ends where a checkpoint is taken.

        Raises:
            UnknownRequestError: The handle names no request.
        """

    def take_copies(self) -> npt.NDArray[np.int32]:
        """Return block copies to run before the next forward pass, shape ``[n, 3]``.

        A row is ``(group, src, dst)``; no block is both read and written. Where checkpoints have
        pools of their own, the pools of both blocks follow: ``[n, 5]``. Between two pools the copy
        converts.
        """

    def take_prefill_checkpoints(self) -> npt.NDArray[np.int64]:
        """Return states to keep from inside the next forward pass, shape ``[n, 5]``.

        A row is ``(handle, group, position, src, dst)``. After ``position`` tokens of the request
        the pass copies its running state, in block ``src``, to block ``dst``. The pass follows the
        copies. It is to be recorded with `advance`; the states can be hit after the next `tick`.
        """

    def allocate(self, handles: _Handles, num_new_tokens: _Counts, lookahead: int = 0) -> int:
        """Make room for more tokens of each request, in order; return how many were served.

        ``num_new_tokens[i]`` counts tokens after those computed, or, in a request's first
        allocation, after its matched prefix; ``lookahead`` more may be rejected later. All known
        tokens must have room at a request's first allocation. Known tokens are taken for computed:
        the blocks that they fill can be hit from now on. Requests that hit what others compute in
        the same step are computed in it too; who is preempted in a step is preempted before others
        are admitted. The first request that does not fit, and all after it, stay as they were. Nor
        does one fit if its matched prefix was evicted since. While nothing else runs, one that does
        not fit with its prefix goes on without it the next time.

        Raises:
            UnknownRequestError: A handle names no request.
            RequestTooLargeError: A request would not fit into the empty cache.
            InvalidArgumentError: The lengths differ, or a handle is given twice.
        """

    def advance(self, handles: _Handles, num_tokens: _Counts) -> None:
        """Record that tokens were computed, or that a step was started that computes them.

        Raises:
            UnknownRequestError: A handle names no request.
            InvalidArgumentError: More tokens than exist or have room; fewer than were known when
                they got room; a request without blocks. Different lengths, or a handle given twice.
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
        """Let time pass, once a step: it orders the ages of cached blocks."""

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

    def take_events(self) -> list[tuple[object, ...]]:
        """Return the changes of the prefix cache since the last call, in order.

        ``("stored", handle, group, first_block, block_size, parent, digests)``,
        ``("removed", digest, group)`` or ``("cleared",)``. Empty unless ``enable_events``.
        """

    def stats(self) -> dict[str, int]:
        """Return counters since the start.

        Tokens of ``queries`` and ``hits``; ``preemptions``; ``checkpoints`` left and ``forks`` from
        them, one a group; hits that were ``shortened`` so that their requests come to their ends;
        admissions by what ended their hit, ``limit_*``.
        """

    @property
    def num_requests(self) -> int:
        """Number of known requests."""

    @property
    def num_groups(self) -> int:
        """Number of cache groups."""

    @property
    def max_request_tokens(self) -> int:
        """Tokens of the longest request that fits when it is alone."""

    @property
    def num_blocks(self) -> int:
        """Blocks that can be handed out; slabs where several pools share an arena."""

    @property
    def num_free_blocks(self) -> int:
        """Blocks or slabs of ``num_blocks`` without an owner, cached ones included."""

    def num_live_blocks(self, *, pool: int = 0) -> int:
        """Return how many blocks of a pool have an owner.

        Raises:
            ValueError: There is no such pool.
        """

    def reserved_bytes(self, slab_bytes: int, block_bytes: Sequence[int]) -> dict[str, int]:
        """Return what the slabs are held for in which a block has an owner, in bytes by part.

        ``slab_bytes`` are those of a slab, or of a block of ``num_blocks``; ``block_bytes`` what a
        block of each group holds. `docs/reference/replay-figures.md` defines the parts.

        Raises:
            ValueError: Sizes of other groups, or of blocks that do not fit into their slab.
        """

    @property
    def memory_bytes(self) -> int:
        """Heap bytes that the block store holds."""

    def check_integrity(self) -> None:
        """Walk everything; slow, for tests.

        Raises:
            IntegrityError: A promise is broken; the message says which.
        """
