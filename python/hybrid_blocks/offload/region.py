"""Host memory that the scheduler and all workers of an engine share."""

import json
import mmap
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hybrid_blocks.errors import HybridBlocksError, InvalidArgumentError
from hybrid_blocks.offload.parts import Structure
from hybrid_blocks.units import human

_FOLDER: Final = Path("/dev/shm")
_HEADER_BYTES: Final = 64 << 10
# Behind the header's text, a byte for each rank says that it is there.
_MOST_RANKS: Final = 4096


@dataclass(frozen=True)
class Header:
    """What workers tell the scheduler: bytes of a block by group, and how they are laid out.

    Bytes are those of one rank; all ranks have the same. ``structures`` say by group what they are.
    """

    rank_bytes: list[int]
    layout: dict[str, Any]
    structures: list[Structure] = field(default_factory=list)


class Region:
    """A file in shared memory, mapped. Its name goes once the scheduler, which comes last, has it.

    ``bytes`` is the region as ``uint8``, without the header behind it.
    """

    def __init__(self, file: int, num_bytes: int, path: Path) -> None:
        """Map an open file of a region; `create` and `join` call this."""
        self.num_bytes = num_bytes
        self._path = path
        self._map = mmap.mmap(file, num_bytes + _HEADER_BYTES)
        whole = np.frombuffer(self._map, dtype=np.uint8)
        self.bytes: npt.NDArray[np.uint8] = whole[:num_bytes]
        self._header: npt.NDArray[np.uint8] = whole[num_bytes:-_MOST_RANKS]
        self._ranks: npt.NDArray[np.uint8] = whole[-_MOST_RANKS:]

    @classmethod
    def create(cls, engine_id: str, num_bytes: int, rank: int, header: Header) -> "Region":
        """Map the region of an engine in the worker of a rank; rank 0 writes the header.

        Raises:
            InvalidArgumentError: shared memory has no room for it, or ranks no place in the header.

        """
        if rank >= _MOST_RANKS:
            raise InvalidArgumentError(f"rank {rank}; offload supports {_MOST_RANKS} ranks")
        path = _path(engine_id)
        file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            # Memory is reserved now: a page that cannot be had later would kill the process.
            os.posix_fallocate(file, 0, num_bytes + _HEADER_BYTES)
            region = cls(file, num_bytes, path)
        except OSError as error:
            path.unlink(missing_ok=True)
            usage = os.statvfs(_FOLDER)
            free = human(usage.f_bavail * usage.f_frsize)
            raise InvalidArgumentError(
                f"host {human(num_bytes)} does not fit into {_FOLDER}, which has {free} free "
                f"({error.strerror}); ask for less, or make it larger, in a container with "
                "--shm-size"
            ) from None
        finally:
            os.close(file)
        if rank == 0:
            region._write(header)
        region._ranks[rank] = 1
        return region

    @classmethod
    def join(cls, engine_id: str, num_bytes: int, num_ranks: int) -> "Region":
        """Map the region that all workers of an engine have made, and take its name away.

        Raises:
            HybridBlocksError: there is none.
            InvalidArgumentError: not all ranks are in it, so some run on another machine.

        """
        path = _path(engine_id)
        try:
            file = os.open(path, os.O_RDWR)
        except OSError as error:
            raise HybridBlocksError(
                f"no worker of engine {engine_id} has made {path} ({error.strerror}); scheduler "
                "and workers must run on one machine"
            ) from None
        try:
            region = cls(file, num_bytes, path)
        finally:
            os.close(file)
        path.unlink(missing_ok=True)
        # vLLM makes the scheduler once all workers have registered their caches.
        missing = [rank for rank in range(num_ranks) if not region._ranks[rank]]
        if missing:
            raise InvalidArgumentError(
                f"the workers of ranks {', '.join(map(str, missing))} of {num_ranks} do not share "
                f"{path} with the scheduler; HybridOffloadingSpec supports workers on one machine"
            )
        return region

    def header(self) -> Header:
        """What the workers wrote."""
        text = bytes(self._header).partition(b"\0")[0]
        fields = json.loads(text)
        structures = [Structure.from_json(it) for it in fields.pop("structures")]
        return Header(**fields, structures=structures)

    def _write(self, header: Header) -> None:
        text = json.dumps(asdict(header)).encode()
        if len(text) >= self._header.size:
            raise HybridBlocksError(
                f"a header of {len(text)} bytes, over {self._header.size}; please report this"
            )
        self._header[: len(text)] = np.frombuffer(text, dtype=np.uint8)
        self._header[len(text)] = 0

    def cleanup(self) -> None:
        """Let go of the memory; it is freed when the last process has."""
        self._path.unlink(missing_ok=True)
        del self.bytes
        del self._header
        del self._ranks


def _path(engine_id: str) -> Path:
    safe = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in engine_id)
    return _FOLDER / f"hybrid_blocks_{safe}.region"
