"""Host memory, disk and objects below the device: typed here by hand, checked by stubtest.

A key is a digest of 16 or 32 bytes, the chained hash of all tokens up to a chunk's end. Behind it
stands the group's number in 4 bytes, high byte first, as vLLM writes it. Bytes and offsets are
counted in bytes.
"""

from collections.abc import Sequence
from os import PathLike
from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import disjoint_base

__all__ = [
    "ChunkCodec",
    "ChunkRegion",
    "ChunkStore",
    "DiskStore",
    "HostCache",
    "Lookup",
    "ObjectStore",
    "RequestKeys",
]

@final
class Lookup:
    """The result of one look-up."""

    @property
    def num_tokens(self) -> int:
        """The length to restore; 0 for none beyond what the device holds."""

    @property
    def num_passed_by(self) -> int:
        """Tokens that could be restored beyond it and are sooner computed."""

    @property
    def is_pending(self) -> bool:
        """Whether some of its chunks are still being copied to host memory."""

    @property
    def on_host(self) -> list[bytes]:
        """Keys to load from host memory."""

    @property
    def on_disk(self) -> list[bytes]:
        """Keys to read from the disk first."""

    @property
    def on_disk_tokens(self) -> list[int]:
        """The tokens that each of ``on_disk`` stands for."""

    @property
    def in_objects(self) -> list[bytes]:
        """Keys to read from the store of objects first."""

    @property
    def in_objects_tokens(self) -> list[int]:
        """The tokens that each of ``in_objects`` stands for."""

@final
class HostCache:
    """The books of a region of host memory: the place and the unit of each chunk.

    A chunk of a group has its natural size. A unit is a state and the attention that leads to it;
    it is evicted as one. The cache touches no byte of the region; several threads may call it.
    """

    def __new__(
        cls,
        num_bytes: int,
        *,
        hash_block_size: int,
        chunk_tokens: Sequence[int],
        chunk_bytes: Sequence[int],
        windows: Sequence[int | None],
        drafters: Sequence[int] = ...,
        is_written_back: bool = False,
    ) -> HostCache:
        """Cut ``num_bytes`` into slots for chunks of each group, by group number.

        ``windows`` counts the chunks that the next token needs: 1 for a state, ``None`` for all.
        ``chunk_tokens`` are multiples of ``hash_block_size``; 0 stands for a group that is not
        stored. A drafter reads the groups ``drafters``: a chunk of theirs counts only if the next
        one is there too, as its last entry depends on the next token. With ``is_written_back`` the
        caller writes a request's chunks elsewhere once it ends; until then they are evicted last.

        Raises ``InvalidArgumentError`` where sizes make no sense or the region is too small.
        """

    @property
    def region_bytes(self) -> int:
        """Bytes of the region that slots use."""

    @property
    def num_units(self) -> int:
        """Lengths from which a request can resume, and runs of attention without one yet."""

    @property
    def num_pending(self) -> int:
        """Chunks that are being copied to host memory."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of the slots that chunks are being copied to."""

    @property
    def pinned_bytes(self) -> int:
        """Bytes that loads keep from eviction, counted once for each load."""

    @property
    def pinned_chunk_bytes(self) -> int:
        """The same, each chunk counted once."""

    @property
    def version(self) -> int:
        """A number that changes with all that look-ups see."""

    @property
    def num_releases(self) -> int:
        """How often something ended that may have made room."""

    @property
    def live_bytes(self) -> int:
        """Bytes of slots that units or transfers need."""

    @property
    def held_bytes(self) -> int:
        """Bytes of slots whose chunks can be found or are needed."""

    def presence(self, key: bytes) -> int:
        """Return the presence of a chunk: 0 absent, 1 being copied here, 2 ready."""

    def presences(self, keys: Sequence[bytes]) -> bytes:
        """Return the same of many chunks, a byte for each."""

    def lookup(
        self,
        keys: RequestKeys,
        *,
        num_computed: int = 0,
        limit: int | None = None,
        disk: DiskStore | None = None,
        objects: ObjectStore | None = None,
        disk_cost: tuple[float, float] | None = None,
        objects_cost: tuple[float, float] | None = None,
        token_cost: float | None = None,
    ) -> Lookup:
        """Find which prefix to restore from host memory and the given tiers together.

        ``keys`` are all of a request. The device holds the first ``num_computed`` tokens. It looks
        for states first, and reads no data.

        It finds the longest prefix. ``token_cost`` gives the seconds to compute a token; with it,
        it finds the prefix from which the request resumes soonest. Other costs are the seconds that
        a read takes whatever its size, and those for each byte. A tier without one counts as one
        that takes no time. If both tiers have costs, the look-up asks the faster one first.
        """

    def open_request(self, keys: RequestKeys) -> int:
        """Begin the stores of a request with all its keys; return its number."""

    def close_request(self, request: int) -> None:
        """End the stores of a request. Copies under way continue."""

    def begin_store(
        self, request: int, keys: Sequence[bytes], tokens: Sequence[int]
    ) -> tuple[list[bytes], npt.NDArray[np.int64]] | None:
        """Take slots for chunks that are neither here nor on their way.

        Returns their keys and the first byte of each slot. Other chunks are evicted for them.
        Chunks without room next to pinned ones are left out; ``None`` if none has room.
        """

    def complete_store(self, keys: Sequence[bytes], success: bool = True) -> list[bytes]:
        """End the copying of chunks; those that succeeded are found from now on.

        Returns those of ``keys`` that were on their way.
        """

    def begin_load(self, keys: Sequence[bytes]) -> npt.NDArray[np.int64]:
        """Pin chunks and return the first byte of each.

        Raises ``HybridBlocksError`` if one is not here; then none is pinned.
        """

    def complete_load(self, keys: Sequence[bytes]) -> None:
        """Unpin chunks that `begin_load` pinned; others are passed over."""

    def touch(self, keys: Sequence[bytes], *, request: int | None = None) -> None:
        """Note a use, by a request of `open_request` if one is given.

        The likelier the request's next turn is, the longer the units of these chunks are kept.
        """

    def take_evicted(self) -> list[bytes]:
        """Return the keys whose slots were taken since the last call."""

    def reset(self) -> None:
        """Forget everything, transfers under way too."""

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` with the first contradiction in the books."""

@final
class RequestKeys:
    """The keys of a request's chunks and the tokens that each stands for. They grow with it.

    They are read from Python once, and not in each look-up.
    """

    def __new__(cls, cache: HostCache) -> RequestKeys:
        """Begin a request without keys, for look-ups in ``cache``."""

    def extend(self, keys: Sequence[bytes], tokens: Sequence[int]) -> None:
        """Append keys.

        Raises ``InvalidArgumentError`` for a group that the cache does not have, and for tokens
        that are no positive multiple of its ``hash_block_size``; then nothing is appended.
        """

    @property
    def num_tokens(self) -> int:
        """The tokens that the last key stands for; 0 without keys."""

    def __len__(self) -> int:
        """Return the number of keys."""

@final
class ChunkCodec:
    """Chunks as ranks hold them, to and from a stored form that is the same for any of them.

    Ranks' shares lie one after another. The stored form has the bytes that one rank alone would
    hold. Several threads may call a codec; it copies without the interpreter's lock.
    """

    def __new__(
        cls,
        parts: Sequence[tuple[str, int, int, int, bool]],
        *,
        tp_size: int,
        state_format: str | None = None,
    ) -> ChunkCodec:
        """Describe a chunk by its parts: kind, rows, heads, bytes a head, and whether float32.

        A part's bytes are ``[row][head][byte]``, with the heads of the whole model. Kinds are
        ``key_value``, ``convolution`` and ``recurrent``, whose heads ranks share; ``replicated``,
        one head that all hold; and ``opaque``, a head for each rank. Recurrent parts of float32 are
        stored in ``state_format``: ``bf16``, ``fp8``, ``int8``, or as they are.

        Raises ``InvalidArgumentError`` for sizes that make no sense, and for heads that ``tp_size``
        ranks cannot share.
        """

    @property
    def rank_bytes(self) -> int:
        """Bytes that a rank holds of a chunk."""

    @property
    def stored_bytes(self) -> int:
        """Bytes of a stored chunk."""

    @property
    def is_identity(self) -> bool:
        """Whether a stored chunk has the bytes that ranks hold."""

    @property
    def converts_states(self) -> bool:
        """Whether any part is stored in another format."""

    def encode(self, chunk: npt.NDArray[np.uint8], stored: npt.NDArray[np.uint8]) -> bool:
        """Fill ``stored`` from the shares of ranks.

        ``False`` if ranks differ that should hold the same keys and values; ``stored`` is void.
        """

    def decode(self, stored: npt.NDArray[np.uint8], chunk: npt.NDArray[np.uint8]) -> None:
        """Fill the shares of ranks from ``stored``."""

@final
class ChunkRegion:
    """Memory in which chunks lie, handed over once for all transfers."""

    def __new__(cls, array: npt.NDArray[np.uint8], chunk_bytes: Sequence[int]) -> ChunkRegion:
        """Take memory for chunks of ``chunk_bytes``, by group number.

        The caller keeps the places of a transfer from any other use until it ends.

        Raises ``InvalidArgumentError`` for memory with gaps, or that cannot be written.
        """

@disjoint_base
class ChunkStore:
    """Chunks below host memory, in a `DiskStore` or an `ObjectStore`.

    Several threads may call it. Transfers run without the interpreter's lock.
    """

    @property
    def num_chunks(self) -> int:
        """Chunks that can be read, as far as is known."""

    @property
    def is_paused(self) -> bool:
        """Whether nothing is written for a while, because the tier refused."""

    def take_warnings(self) -> list[str]:
        """Return what went wrong since this was last asked, once a minute for each kind."""

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """Say which chunks can be read, as far as is known."""

    def store(
        self,
        keys: Sequence[bytes],
        tokens: Sequence[int],
        chunks: Sequence[npt.NDArray[np.uint8]],
    ) -> int:
        """Write chunks that are not there yet; return how many are written, or wait for it."""

    def load(self, keys: Sequence[bytes], chunks: Sequence[npt.NDArray[np.uint8]]) -> list[bool]:
        """Read chunks into arrays of their sizes.

        ``False`` stands for a chunk that is not there, is damaged, or cannot be read for now; its
        array holds anything then. A read of an object takes 30 s at most.
        """

    def store_from(
        self,
        region: ChunkRegion,
        keys: Sequence[bytes],
        tokens: Sequence[int],
        offsets: Sequence[int],
    ) -> int:
        """As `store`, of chunks whose first bytes in a region are ``offsets``."""

    def load_into(
        self, region: ChunkRegion, keys: Sequence[bytes], offsets: Sequence[int]
    ) -> list[bool]:
        """As `load`, into chunks whose first bytes in a region are ``offsets``."""

    def close(self) -> None:
        """End all writing, so that the next start has no file to read through.

        A disk seals its current segment. A store of objects waits for its uploads, 30 s at most.
        """

@final
class DiskStore(ChunkStore):
    """Chunks in segment files of bounded size, with checksums, found again after a restart."""

    def __new__(
        cls,
        path: str | PathLike[str],
        max_bytes: int,
        *,
        layouts: Sequence[bytes],
        segment_bytes: int | None = None,
        largest_chunk: int = 0,
        direct: bool = True,
    ) -> DiskStore:
        """Open the folder of a namespace below ``path``, and read the names of its chunks.

        ``layouts`` are 16 bytes a group that name the meaning of its chunks' bytes. Chunks of other
        layouts are never read. Segments have room for a chunk of ``largest_chunk`` bytes. With
        ``direct``, transfers bypass the page cache.

        Raises ``OSError`` if the folder cannot be used, and ``HybridBlocksError`` if another
        process uses it. Raises ``InvalidArgumentError`` for sizes that make no sense, such as a
        disk without room for four segments. It also raises it for a folder that other users own or
        can write to.
        """

    @staticmethod
    def make_folder(path: str | PathLike[str]) -> None:
        """Make a folder for this user alone, or check that the one that is there is their own.

        Raises ``InvalidArgumentError`` if other users own it or can write to it, and ``OSError``
        where it cannot be made.
        """

    @property
    def num_bytes(self) -> int:
        """Bytes of all segment files below ``path``, but those of other engines that run."""

    def touch(self, keys: Sequence[bytes]) -> None:
        """Note that a request used chunks, of any tier: they outlive their segment."""

@final
class ObjectStore(ChunkStore):
    """Chunks as objects in a bucket or a folder, which many engines may share.

    Listings and its own stores tell the store which objects exist, so look-ups wait for nothing.
    Transfers run on a thread of its own. A store that refuses is not used for a while.
    """

    def __new__(
        cls,
        url: str,
        *,
        layouts: Sequence[bytes],
        queue_bytes: int = 268435456,
        retry_after: float = 60.0,
        list_every: float = 300.0,
    ) -> ObjectStore:
        """Open a store and begin to list it.

        ``url`` is ``s3://``, ``gs://`` or ``az://`` with bucket and prefix, or ``file://`` with a
        folder; access to buckets is read from the environment. ``layouts`` are those of
        `DiskStore`. At most ``queue_bytes`` wait for their upload. A store that refused is tried
        again after ``retry_after`` seconds; ``list_every`` seconds after a listing the next begins.

        Raises ``InvalidArgumentError`` for a URL or an environment that makes no sense, and
        ``OSError`` for a folder that cannot be made.
        """

    @staticmethod
    def check(url: str) -> None:
        """Raise the errors of opening a store, without a request to a bucket."""

    @property
    def num_uploads(self) -> int:
        """Chunks that wait for their upload or are being uploaded."""

    def wait(self, seconds_at_most: float) -> bool:
        """Wait for the first listing and all uploads; ``False`` if that takes longer."""
