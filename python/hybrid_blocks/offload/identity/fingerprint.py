"""Fingerprints of files, in few reads: equal wherever and whenever they were downloaded."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# Up to this size a file is read as a whole.
_SMALL: Final = 16 << 20
# Number of evenly spaced samples of a larger file; its end is read too.
_NUM_SAMPLES: Final = 256
_SAMPLE: Final = 4096
_MOST_FILES: Final = 10_000
_LONGEST_PATH: Final = 4096
_DOCUMENTS: Final = ("README", "LICENSE", "NOTICE")
_UNREAD: Final = (
    *(".md", ".pdf", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp"),
    *(".onnx", ".onnx_data", ".h5", ".msgpack", ".tflite", ".ot"),
)


def names_a_file(text: str) -> bool:
    """Whether a text of a configuration is the path of a file, not a word that a file has too."""
    if not ("/" in text or "." in text) or len(text) > _LONGEST_PATH or "\0" in text:
        return False
    try:
        return Path(text).is_file()
    except OSError:
        return False


def file_content(path: str | Path) -> str:
    """SHA-256 of a file; of one over 16 MiB of its size and 1 MiB of samples.

    Weights that were trained on differ in nearly all samples.

    Raises:
        OSError: it cannot be read.
    """
    hasher = hashlib.sha256()
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _SMALL:
            return hashlib.file_digest(file, "sha256").hexdigest()
        hasher.update(size.to_bytes(8, "little"))
        for at in range(_NUM_SAMPLES):
            hasher.update(os.pread(file.fileno(), _SAMPLE, size * at // _NUM_SAMPLES))
        hasher.update(os.pread(file.fileno(), _SAMPLE, size - _SAMPLE))
    return hasher.hexdigest()


def model_content(path: Path) -> str:
    """Return the content of a model's file or folder.

    Raises:
        OSError: a file cannot be read, or a folder holds too many to be a model.
    """
    if path.is_file():
        return f"file {file_content(path)}"
    return f"folder {files_content(files_of(path))}"


def files_of(folder: Path) -> dict[str, Path]:
    """Return the files of a folder that an engine may read, by their place in it.

    Hidden files are left out: they are notes of a download. So are documents, pictures and weights
    of other programs.

    Raises:
        OSError: the folder holds too many to be a model.
    """
    files: dict[str, Path] = {}
    for parent, below, names in os.walk(folder, followlinks=True):
        below[:] = [name for name in below if not _is_hidden(name)]
        for name in names:
            file = Path(parent, name)
            if not _is_hidden(name) and not _is_unread(name) and file.is_file():
                files[str(file.relative_to(folder))] = file
        if len(files) > _MOST_FILES:
            raise OSError(f"{folder} holds over {_MOST_FILES} files, so it is no model")
    return files


def files_content(files: Mapping[str, Path]) -> str:
    """SHA-256 of files and of their names.

    Raises:
        OSError: one of them cannot be read.
    """
    contents = [(name, file_content(file), _blob(file)) for name, file in sorted(files.items())]
    return hashlib.sha256(repr(contents).encode()).hexdigest()


def _blob(file: Path) -> str | None:
    """Return the digest of a whole large file, by which the cache of a hub names what it links."""
    if not file.is_symlink() or file.stat().st_size <= _SMALL:
        return None
    target = file.resolve()
    return target.name if target.parent.name == "blobs" else None


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def _is_unread(name: str) -> bool:
    return name.upper().startswith(_DOCUMENTS) or name.lower().endswith(_UNREAD)
