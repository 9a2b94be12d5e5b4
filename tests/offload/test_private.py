"""Folders of disk and objects are for one user alone."""

import os
from pathlib import Path

import pytest
from hybrid_blocks._core.offload import DiskStore, ObjectStore
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.offload.options import Options

SIZE = 1 << 30


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(InvalidArgumentError, match=r"others can write to it .*shared/kv"):
        DiskStore(shared, SIZE, layouts=[bytes(16)])
    with pytest.raises(InvalidArgumentError, match="others can write to it"):
        ObjectStore.check(f"file://{shared}")
    with pytest.raises(InvalidArgumentError, match="others can write to it"):
        Options.parse({"host": "1GiB", "objects": f"file://{shared}"})
    # As the error proposes.
    DiskStore(shared / "kv", SIZE, layouts=[bytes(16)]).close()
    assert (shared / "kv").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, -1)
    with pytest.raises(InvalidArgumentError, match="user 65534 owns it"):
        DiskStore(tmp_path, SIZE, layouts=[bytes(16)])
    os.chown(tmp_path, 0, -1)
