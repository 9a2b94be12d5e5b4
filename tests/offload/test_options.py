"""Options of the spec: what is right is read, what is wrong is refused with what would do."""

from pathlib import Path
from typing import Any

import pytest
from hybrid_blocks._core.offload import DiskStore
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.offload.options import DiskOptions, Options


def test_sizes_are_read_with_their_units(tmp_path: Path) -> None:
    options = Options.parse(
        {
            "spec_name": "HybridOffloadingSpec",
            "spec_module_path": "hybrid_blocks.offload",
            "host": "1.5GiB",
            "disk": "/var/cache/kv:2TB",
            "objects": f"file://{tmp_path}",
            "offload_prompt_only": True,
            "read": "longest",
            "prompt_tokens_per_second": 20_000,
            "model_version": "r2",
            "compress_states": "int8",
        }
    )
    assert options == Options(
        host_bytes=3 << 29,
        disk=DiskOptions(path=Path("/var/cache/kv"), max_bytes=2 * 10**12),
        objects=f"file://{tmp_path}",
        reads_longest=True,
        prompt_tokens_per_second=20_000.0,
        prompt_only=True,
        model_version="r2",
        compress_states="int8",
    )


def test_vllms_own_option_for_the_size_will_do_and_answers_are_kept() -> None:
    options = Options.parse({"cpu_bytes_to_use": 64.0 * 2**30})
    assert options == Options(host_bytes=64 << 30)
    assert not options.prompt_only
    assert options.compress_states is None
    assert Options.parse({"cpu_bytes_to_use": 4096}).host_bytes == 4096


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, 'host is missing; write for example {"host": "64GiB"'),
        ({"host": "lots"}, """host 'lots' is no size; write for example "64GiB\""""),
        ({"host": 0}, "host 0 is no size"),
        ({"host": True}, "host True is no size"),
        ({"host": float("inf")}, "host inf is no size"),
        ({"host": 1e300}, "write the unit"),
        ({"host": 64}, 'host 64 is 64 bytes; write the unit, for example "64GiB"'),
        ({"host": "1GiB", "disk": "/x:5"}, "the size of disk '5' is no size; write for example"),
        ({"host": "1GiB", "model_version": None}, "model_version is any text, not None"),
        ({"host": "1GiB", "disk": "/x"}, "disk '/x' is no folder with a size"),
        ({"host": "1GiB", "disk": "x:1GiB"}, "write an absolute path, a colon and a size"),
        ({"host": "1GiB", "disk": "/x:much"}, "the size of disk 'much' is no size"),
        ({"host": "1GiB", "dsk": "/x:1GiB"}, "dsk is no option .*did you mean disk?"),
        ({"host": "1GiB", "objects": 3}, 'objects 3 is no URL; write for example "s3://bucket/'),
        ({"host": "1GiB", "objects": "b/p"}, 'objects "b/p" names no bucket and no folder; write'),
        ({"host": "1GiB", "objects": "file:///proc/y"}, "objects 'file:///proc/y': .*cannot make"),
        ({"host": "1GiB", "objects": "file:///proc/x/y"}, "no folder /proc/x; mount or make it"),
        (
            {"host": "1GiB", "disk": "/x:1GiB", "compress_states": "int4"},
            "compress_states 'int4' is no format of states; write one of bf16, fp8, int8",
        ),
        ({"host": "1GiB", "disk": "/x:1GiB", "compress_states": True}, "True is no format"),
        ({"host": "1GiB", "compress_states": "int8"}, "of use for disk and objects only"),
        ({"host": "1GiB", "store": "lazy"}, 'write "kv_connector": "HybridOffloadingConnector"'),
        ({"host": "1GiB", "read": "all"}, "read is soonest or longest, not 'all'"),
        ({"host": "1GiB", "prompt_tokens_per_second": 0}, "per_second 0 is no rate; write tokens"),
        ({"host": "1GiB", "blocks_per_chunk": 4}, "a chunk is one block of its group"),
        ({"host": "1GiB", "offload_prompt_only": "no"}, "is true or false, not 'no'"),
    ],
)
def test_what_is_wrong_is_refused_with_what_would_do(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Options.parse(config)


def test_folders_that_others_can_write_to_are_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(InvalidArgumentError, match="others can write to it"):
        Options.parse({"host": "1GiB", "objects": f"file://{tmp_path}"})
    with pytest.raises(InvalidArgumentError, match="others can write to it"):
        DiskStore(tmp_path, 1 << 30, layouts=[bytes(16)])
