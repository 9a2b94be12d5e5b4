"""A hub's cache on this machine, as ``huggingface_hub`` lays it out."""

import hashlib
from collections.abc import Mapping
from pathlib import Path


def add_commit(
    cache: Path, name: str, files: Mapping[str, bytes], *, branch: str = "main", linked: bool = True
) -> str:
    """Move a model's branch to a commit with these files; return the commit.

    Without ``linked`` the files lie in the commit's folder, as where a system has no links.
    """
    commit = hashlib.sha1(repr((name, sorted(files.items()))).encode()).hexdigest()
    model = cache / f"models--{name.replace('/', '--')}"
    folder = model / "snapshots" / commit
    for place, content in files.items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        if not linked:
            file.write_bytes(content)
            continue
        blob = model / "blobs" / hashlib.sha256(content).hexdigest()
        blob.parent.mkdir(exist_ok=True)
        blob.write_bytes(content)
        up = "../" * (2 + place.count("/"))
        file.unlink(missing_ok=True)
        file.symlink_to(f"{up}blobs/{blob.name}")
    reference = model / "refs" / branch
    reference.parent.mkdir(exist_ok=True)
    reference.write_text(commit)
    return commit
