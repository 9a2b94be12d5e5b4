"""The compiled core: typed here by hand, checked against the binary by stubtest."""

from collections.abc import Callable
from typing import TypeAlias, TypedDict, final, type_check_only

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

__all__ = ["BlockHasher", "HashChain", "build_info"]

_Tokens: TypeAlias = Buffer | list[int] | tuple[int, ...]
_ExtraKeys: TypeAlias = list[object] | tuple[object, ...]

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
