"""Host memory that the scheduler and all workers of an engine share."""

import contextlib
import fcntl
import json
import mmap
import os
import stat
import time
import weakref
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hybrid_blocks.errors import HybridBlocksError, InvalidArgumentError
from hybrid_blocks.offload.layout.parts import Structure
from hybrid_blocks.units import human

_FOLDER: Final = Path("/dev/shm")
_PREFIX: Final = "hybrid_blocks_"
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_HEADER_BYTES: Final = 64 << 10
# Behind the header's text, a byte for each rank says that it is there.
_MOST_RANKS: Final = 4096


@dataclass(frozen=True)
class Header:
    """The workers' message to the scheduler: bytes of a block by group, and their layout.

    Bytes are those of one rank; all ranks have the same. ``structures`` say by group what they are.
    """

    rank_bytes: list[int]
    layout: dict[str, Any]
    structures: list[Structure] = field(default_factory=list)


class Region:
    """A file in shared memory, mapped. Its name goes once the scheduler, which comes last, has it.

    ``bytes`` is the region as ``uint8``, without the header behind it. Each process keeps the file
    locked. So a file that no process has locked is one that a crash left, and the next start
    removes it.
    """

    def __init__(self, file: int, num_bytes: int, path: Path) -> None:
        """Map an open file of a region, and own it; `create` and `join` call this."""
        self.num_bytes = num_bytes
        self._file = file
        self._map = mmap.mmap(file, num_bytes + _HEADER_BYTES)
        whole = np.frombuffer(self._map, dtype=np.uint8)
        self.bytes: npt.NDArray[np.uint8] = whole[:num_bytes]
        self._header: npt.NDArray[np.uint8] = whole[num_bytes:-_MOST_RANKS]
        self._ranks: npt.NDArray[np.uint8] = whole[-_MOST_RANKS:]
        # Also where a process ends by an exception before the scheduler has come.
        self._close = weakref.finalize(self, _close, file, path)

    @classmethod
    def create(
        cls, engine_id: str, num_bytes: int, rank: int, header: Header, patience: float = 300.0
    ) -> "Region":
        """Map the region of an engine in the worker of a rank.

        Rank 0 makes it and writes the header; the others wait ``patience`` seconds for that.

        Raises:
            InvalidArgumentError: shared memory has no room for it, ranks no place in the header, or
                another engine has the id.
            HybridBlocksError: rank 0 has made none.
        """
        if rank >= _MOST_RANKS:
            raise InvalidArgumentError(f"rank {rank}; offload supports {_MOST_RANKS} ranks")
        path = _path(engine_id)
        if rank == 0:
            remove_left_over()
            made, source = _make(path, num_bytes + _HEADER_BYTES)
            region = cls(made, num_bytes, path)
            region._write(header)
            region._ranks[0] = 1
            _name(source, path, engine_id)
            return region
        deadline = time.monotonic() + patience
        while (file := _open(path, num_bytes + _HEADER_BYTES)) is None:
            if time.monotonic() > deadline:
                raise HybridBlocksError(
                    f"rank 0 of engine {engine_id} has not made {path} in {patience:.0f} s; all "
                    "workers must run on one machine and share /dev/shm"
                )
            time.sleep(0.01)
        region = cls(file, num_bytes, path)
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
        file = _open(path, num_bytes + _HEADER_BYTES)
        if file is None:
            raise HybridBlocksError(
                f"no worker of engine {engine_id} has made {path}; scheduler and workers must run "
                "on one machine"
            )
        region = cls(file, num_bytes, path)
        _unlink(file, path)
        # vLLM makes the scheduler once all workers have registered their caches.
        missing = [rank for rank in range(num_ranks) if not region._ranks[rank]]
        if missing:
            raise InvalidArgumentError(
                f"the workers of ranks {', '.join(map(str, missing))} of {num_ranks} do not share "
                f"{path} with the scheduler; HybridOffloadingSpec supports workers on one machine"
            )
        return region

    def header(self) -> Header:
        """Read the header that the workers wrote."""
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
        self._close()
        del self._map
        del self.bytes
        del self._header
        del self._ranks


def remove_left_over() -> None:
    """Remove the regions of this user's engines that ended in a crash."""
    for path in _FOLDER.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_RDWR | _FLAGS)
            try:
                # Each process of an engine has it locked, from before it has its name.
                if _is_ours(file):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _unlink(file, path)
            finally:
                os.close(file)


def _make(path: Path, num_bytes: int) -> tuple[int, Path]:
    """Make and lock a file; return it and where it can be linked from."""
    file, source = _unnamed(path)
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        # Memory is reserved now: a page that cannot be had later would kill the process.
        os.posix_fallocate(file, 0, num_bytes)
    except OSError as error:
        _close(file, source)
        usage = os.statvfs(_FOLDER)
        free = human(usage.f_bavail * usage.f_frsize)
        raise InvalidArgumentError(
            f"host {human(num_bytes - _HEADER_BYTES)} does not fit into {_FOLDER}, which has "
            f"{free} free ({error.strerror}); ask for less, or make it larger, in a container with "
            "--shm-size"
        ) from None
    return file, source


def _unnamed(path: Path) -> tuple[int, Path]:
    """Open a new file without a name, so that a crash leaves nothing."""
    try:
        file = os.open(_FOLDER, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # not every system has such files; one with a name is removed by the next start
        source = path.with_name(f"{path.name}.{os.getpid()}")
        return os.open(source, os.O_CREAT | os.O_EXCL | os.O_RDWR | _FLAGS, 0o600), source
    return file, Path(f"/proc/self/fd/{file}")


def _name(source: Path, path: Path, engine_id: str) -> None:
    """Let other ranks and the scheduler find a file that is whole."""
    here = os.open(_FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a folder's number, as Python follows the link only then.
        os.link(source, path, src_dir_fd=here, follow_symlinks=True)
    except FileExistsError:
        raise InvalidArgumentError(
            f"{path} is there already: another engine with the id {engine_id} starts or another "
            "user made it; give each engine an id of its own"
        ) from None
    finally:
        os.close(here)
        if source.parent == path.parent:
            source.unlink()


def _open(path: Path, num_bytes: int) -> int | None:
    """Open and lock the region that a worker keeps locked; ``None`` if there is none."""
    try:
        file = os.open(path, os.O_RDWR | _FLAGS)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _foreign(path, str(error.strerror)) from None
    try:
        if not _is_ours(file):
            raise _foreign(path, "another user's, or no file")
        if not _is_locked(file):  # a crash left it, and rank 0 is about to remove it
            os.close(file)
            return None
        if os.fstat(file).st_size != num_bytes:
            raise _foreign(path, f"of {os.fstat(file).st_size} bytes, not {num_bytes}")
        fcntl.flock(file, fcntl.LOCK_SH)
    except BaseException:
        os.close(file)
        raise
    return file


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _is_ours(file: int) -> bool:
    status = os.fstat(file)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _foreign(path: Path, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{path} is no region of this engine: {why}; remove it, or give the engine another id"
    )


def _unlink(file: int, path: Path) -> None:
    """Take the name of a file away, unless it is another file's by now."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(file), path.lstat()):
            path.unlink()


def _close(file: int, path: Path) -> None:
    _unlink(file, path)
    os.close(file)


def _path(engine_id: str) -> Path:
    safe = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in engine_id)
    return _FOLDER / f"{_PREFIX}{safe}.region"
