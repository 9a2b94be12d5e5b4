"""Block hashing: digests that name the tokens up to a block's end.

The digest of a block is ``hash((parent_digest, token_ids, extra_keys))``, with the tuple serialized
by pickle protocol 5 or by canonical CBOR (RFC 8949, section 4.2). The digests are byte-identical to
vLLM's for the algorithms of the same names, but are computed without building the tuple.
"""

import hashlib
import os
import pickle
from collections.abc import Callable, Mapping
from functools import cache
from typing import Literal, get_args

from hybrid_blocks._core import BlockHasher, HashChain
from hybrid_blocks.errors import InvalidArgumentError

__all__ = [
    "DEFAULT_SEED",
    "Algorithm",
    "BlockHasher",
    "HashChain",
    "block_hasher",
    "hash_function",
    "none_hash",
]

Algorithm = Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]

DEFAULT_SEED = "vllm-none-hash"
"""What ``none_hash`` hashes for SHA-256, the same in every process, as vLLM 0.33 has it."""


def block_hasher(
    algorithm: Algorithm = "sha256",
    block_size: int = 16,
    *,
    none_hash: bytes | None = None,
    num_lookahead_tokens: int = 0,
) -> BlockHasher:
    """Return a hasher of blocks of ``block_size`` tokens.

    ``none_hash`` is the parent digest of a sequence's first block, by default that of
    :func:`none_hash`. With ``num_lookahead_tokens`` > 0 a digest also covers that many tokens after
    its block, as vLLM has it for drafters.

    Raises:
        InvalidArgumentError: An unknown algorithm, no tokens a block, or a ``none_hash`` of the
            wrong length.
    """
    seed = _none_hash(algorithm) if none_hash is None else none_hash
    return BlockHasher(
        algorithm,
        block_size,
        seed,
        hash_function(algorithm),
        num_lookahead_tokens=num_lookahead_tokens,
    )


def none_hash(algorithm: Algorithm, environ: Mapping[str, str] = os.environ) -> bytes:
    """Return the digest that stands for "no tokens", the parent of a first block.

    It is the hash of a seed: ``PYTHONHASHSEED`` where that is set; else :data:`DEFAULT_SEED` for
    SHA-256; else, as XXH3 resists no attacker who knows the seed, random text drawn once a process.
    """
    seed = environ.get("PYTHONHASHSEED")
    if seed is None:
        seed = DEFAULT_SEED if algorithm.startswith("sha256") else _process_seed()
    return hash_function(algorithm)(seed)


_none_hash = none_hash


@cache
def _process_seed() -> str:
    return os.urandom(32).hex()


def hash_function(algorithm: Algorithm) -> Callable[[object], bytes]:
    """Return the algorithm as a Python function of any object it can serialize.

    It defines what a digest is. A :class:`BlockHasher` calls it only for extra keys of types other
    than ``str``, ``bytes``, ``int`` of 64 bits, ``float``, ``bool``, ``None`` and tuples of these.

    Raises:
        InvalidArgumentError: An unknown algorithm.
        ModuleNotFoundError: When called, without ``cbor2`` or ``xxhash`` where it needs them.
    """
    if algorithm not in get_args(Algorithm):
        known = ", ".join(get_args(Algorithm))
        raise InvalidArgumentError(f"unknown hash algorithm {algorithm!r}; use one of {known}")
    encode = _cbor if algorithm.endswith("cbor") else _pickle
    digest = _sha256 if algorithm.startswith("sha256") else _xxh3
    return lambda value: digest(encode(value))


def _pickle(value: object) -> bytes:
    return pickle.dumps(value, protocol=5)


def _cbor(value: object) -> bytes:
    import cbor2  # noqa: PLC0415 - only extra keys of unusual types need it

    return cbor2.dumps(value, canonical=True)


def _sha256(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()


def _xxh3(message: bytes) -> bytes:
    import xxhash  # noqa: PLC0415 - only extra keys of unusual types need it

    return xxhash.xxh3_128_digest(message)
