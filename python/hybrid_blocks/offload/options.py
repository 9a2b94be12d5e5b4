"""The options of ``kv_connector_extra_config``."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hybrid_blocks._core.offload import ObjectStore
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.units import parse_memory

_LEAST_BYTES: Final = 2**20
_MOST_BYTES: Final = 2**60
_EXAMPLE: Final = '{"host": "64GiB", "disk": "/var/cache/kv:500GiB"}'
_OWN: Final = (
    "host",
    "disk",
    "objects",
    "read",
    "prompt_tokens_per_second",
    "model_version",
    "compress_states",
)
STORE: Final = "store"
"""The option of the connector that is none of the spec."""
STATE_FORMATS: Final = ("bf16", "fp8", "int8")
_READS: Final = ("soonest", "longest")
# Options that vLLM's connector reads itself, or puts in.
_CONNECTOR: Final = (
    "spec_name",
    "spec_module_path",
    "cpu_bytes_to_use",
    "offload_prompt_only",
    "self_describing_kv_events",
    "sync_load_budget_bytes",
)
# Options of vLLM's own specs, and why there is no need for them here.
_NOT_HERE: Final = {
    STORE: 'write "kv_connector": "HybridOffloadingConnector", "kv_connector_module_path": '
    '"hybrid_blocks.offload.connector" in the place of OffloadingConnector',
    "block_size": "a chunk is one block of its group; leave it out",
    "blocks_per_chunk": "a chunk is one block of its group; leave it out",
    "eviction_policy": "states and their attention are evicted together; leave it out",
    "cache_policy_module_path": "states and their attention are evicted together; leave it out",
    "store_threshold": "every chunk is stored; leave it out",
    "max_tracker_size": "every chunk is stored; leave it out",
    "secondary_tiers": 'write the disk tier as "disk": "/path:500GiB", an object tier as '
    '"objects": "s3://bucket/prefix"',
    "canonical_layout": "chunks on disk and objects have one wherever it is known; leave it out",
}


@dataclass(frozen=True, kw_only=True)
class DiskOptions:
    """A folder and the bytes that all segment files in it may have together."""

    path: Path
    max_bytes: int


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a user.

    ``host_bytes`` is the size of the region that all ranks share. ``objects`` is a URL, such as
    ``s3://bucket/prefix``. ``reads_longest`` stands for reading all that can be restored, whatever
    it takes; ``prompt_tokens_per_second`` for what is otherwise measured. ``prompt_only`` leaves
    out answers. ``model_version`` is any text; chunks on disk and objects are read only under the
    same text. ``compress_states`` names the format that recurrent states of 32-bit numbers have on
    disk and objects.
    """

    host_bytes: int
    disk: DiskOptions | None = None
    objects: str | None = None
    reads_longest: bool = False
    prompt_tokens_per_second: float | None = None
    prompt_only: bool = False
    model_version: str = ""
    compress_states: str | None = None

    @property
    def has_tiers_below(self) -> bool:
        """Whether chunks outlive the process, on a disk or as objects."""
        return self.disk is not None or self.objects is not None

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> "Options":
        """Read ``kv_connector_extra_config``; an error says which value would do."""
        for name in config:
            _check_name(name)
        if "host" not in config and "cpu_bytes_to_use" not in config:
            raise InvalidArgumentError(f"host is missing; write for example {_EXAMPLE}")
        disk = config.get("disk")
        return cls(
            host_bytes=_host(config),
            disk=None if disk is None else _disk(disk),
            objects=_objects(config.get("objects")),
            reads_longest=_one_of("read", config.get("read", "soonest"), _READS) == "longest",
            prompt_tokens_per_second=_rate(config.get("prompt_tokens_per_second")),
            prompt_only=_flag("offload_prompt_only", config.get("offload_prompt_only", False)),
            model_version=_text("model_version", config.get("model_version", "")),
            compress_states=_state_format(config),
        )


def _check_name(name: str) -> None:
    if name in _NOT_HERE:
        raise InvalidArgumentError(
            f"{name} is no option of HybridOffloadingSpec: {_NOT_HERE[name]}"
        )
    known = (*_OWN, *_CONNECTOR)
    if name in known:
        return
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise InvalidArgumentError(
        f"{name} is no option of HybridOffloadingSpec; {hint}Known are {', '.join(known)}"
    )


def _host(config: Mapping[str, Any]) -> int:
    if "host" in config:
        return _size("host", config["host"])
    # vLLM's option is in bytes, so that few of them are no forgotten unit.
    return _size("cpu_bytes_to_use", config["cpu_bytes_to_use"], least=1)


def _size(name: str, value: Any, least: int = _LEAST_BYTES) -> int:
    try:
        # Numbers are bytes, as vLLM's option has them; some programs write whole ones as floats.
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 1:
            num_bytes = int(value)
        else:
            num_bytes = parse_memory(value if isinstance(value, str) else repr(value))
    except (InvalidArgumentError, OverflowError):
        raise InvalidArgumentError(
            f'{name} {value!r} is no size; write for example "64GiB" or bytes as a number'
        ) from None
    if not least <= num_bytes < _MOST_BYTES:
        raise InvalidArgumentError(
            f'{name} {value!r} is {num_bytes} bytes; write the unit, for example "64GiB"'
        )
    return num_bytes


def _disk(value: Any) -> DiskOptions:
    path, colon, size = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not Path(path).is_absolute():
        raise InvalidArgumentError(
            f"disk {value!r} is no folder with a size; write an absolute path, a colon and a "
            'size, for example "/var/cache/kv:500GiB"'
        )
    return DiskOptions(path=Path(path), max_bytes=_size("the size of disk", size))


def _objects(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidArgumentError(
            f'objects {value!r} is no URL; write for example "s3://bucket/prefix"'
        )
    try:
        ObjectStore.check(value)
    except OSError as error:
        raise InvalidArgumentError(f"objects {value!r}: {error}") from None
    return value


def _state_format(config: Mapping[str, Any]) -> str | None:
    name = config.get("compress_states")
    if name is None:
        return None
    if name not in STATE_FORMATS:
        raise InvalidArgumentError(
            f"compress_states {name!r} is no format of states; write one of "
            f"{', '.join(STATE_FORMATS)}, or leave it out"
        )
    if config.get("disk") is None and config.get("objects") is None:
        raise InvalidArgumentError(
            f"compress_states {name!r} is of use for disk and objects only; give one of them, or "
            "leave it out"
        )
    return str(name)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise InvalidArgumentError(f"{name} is any text, not {value!r}")
    return str(value)


def read_store(value: Any) -> str:
    """Return ``eager`` or ``lazy``."""
    return _one_of(STORE, value, ("eager", "lazy"))


def _one_of(name: str, value: Any, known: Sequence[str]) -> str:
    if value not in known:
        raise InvalidArgumentError(f"{name} is {' or '.join(known)}, not {value!r}")
    return str(value)


def _rate(value: Any) -> float | None:
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf"):
        raise InvalidArgumentError(
            f"prompt_tokens_per_second {value!r} is no rate; write tokens a second, for example "
            "20000, or leave it out to have it measured"
        )
    return float(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{name} is true or false, not {value!r}")
    return value
