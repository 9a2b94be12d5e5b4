"""Chunks on their way between host memory, where ranks' shares lie, and the tiers below."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hybrid_blocks._core.offload import ChunkCodec
from hybrid_blocks.offload.layout import Groups, group_number
from hybrid_blocks.vllm.log import logger

if TYPE_CHECKING:
    from hybrid_blocks._core.offload import ChunkStore

Bytes = npt.NDArray[np.uint8]
# Memory for stored forms that a transfer takes at a time, if its largest chunk is not larger.
_BUFFER_BYTES: Final = 32 << 20


class Codec:
    """The stored forms of all groups' chunks.

    A stored form is the same for any number of ranks. That of one rank is what host memory holds,
    so its chunks are transferred as they are, unless their states are converted.
    """

    def __init__(self, groups: Groups) -> None:
        self._codecs = [
            None if group is None else groups.codec(group) for group in groups.by_number()
        ]
        self._has_warned = False

    @property
    def stored_bytes(self) -> list[int]:
        """Bytes of a stored chunk by vLLM's group number; 0 where a group is not stored."""
        return [codec.stored_bytes if codec else 0 for codec in self._codecs]

    @property
    def converts_states(self) -> bool:
        """Whether any group has states that are stored in another format."""
        return any(codec is not None and codec.converts_states for codec in self._codecs)

    def is_plain(self, key: bytes) -> bool:
        """Whether the stored form of a chunk is what host memory holds."""
        return self._other(key) is None

    def write(
        self,
        store: "ChunkStore",
        keys: Sequence[bytes],
        tokens: Sequence[int],
        chunks: Sequence[Bytes],
    ) -> None:
        """Store chunks of host memory."""
        for part in self._batches(keys):
            forms = list(map(self._encoded, keys[part], chunks[part]))
            good = [at for at, form in enumerate(forms) if form is not None]
            store.store(
                [keys[part][at] for at in good],
                [tokens[part][at] for at in good],
                [form for form in forms if form is not None],
            )

    def read(
        self, store: "ChunkStore", keys: Sequence[bytes], chunks: Sequence[Bytes]
    ) -> list[bool]:
        """Fill chunks of host memory; ``False`` for what could not be read."""
        loaded: list[bool] = []
        for part in self._batches(keys):
            forms = [
                chunk if (codec := self._other(key)) is None else _buffer(codec)
                for key, chunk in zip(keys[part], chunks[part], strict=True)
            ]
            ok = store.load(keys[part], forms)
            for key, form, chunk, is_ok in zip(keys[part], forms, chunks[part], ok, strict=True):
                if is_ok and (codec := self._other(key)) is not None:
                    codec.decode(form, chunk)
            loaded += ok
        return loaded

    def _other(self, key: bytes) -> ChunkCodec | None:
        """The codec of a chunk whose stored form is not what host memory holds."""
        codec = self._codecs[group_number(key)]
        return None if codec is None or codec.is_identity else codec

    def _encoded(self, key: bytes, chunk: Bytes) -> Bytes | None:
        codec = self._other(key)
        if codec is None:
            return chunk
        form = _buffer(codec)
        if codec.encode(chunk, form):
            return form
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "Ranks that should hold the same heads of group %d do not. Such chunks are kept in "
                "host memory only. Please report this with the name of the model.",
                group_number(key),
            )
        return None

    def _batches(self, keys: Sequence[bytes]) -> Iterator[slice]:
        """Cut a transfer so that the stored forms of a part fit the memory for them."""
        start = size = 0
        for at, key in enumerate(keys):
            codec = self._other(key)
            needed = 0 if codec is None else codec.stored_bytes
            if at > start and size + needed > _BUFFER_BYTES:
                yield slice(start, at)
                start, size = at, 0
            size += needed
        if start < len(keys):
            yield slice(start, len(keys))


def _buffer(codec: ChunkCodec) -> Bytes:
    return np.empty(codec.stored_bytes, dtype=np.uint8)
