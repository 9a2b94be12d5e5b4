"""Fingerprints of files, in few reads: equal wherever and whenever they were downloaded."""

import hashlib
import os
from pathlib import Path
from typing import Final

# Up to this size a file is read as a whole.
_SMALL: Final = 16 << 20
# Of a larger one this many samples are read, evenly spaced, and its end.
_NUM_SAMPLES: Final = 256
_SAMPLE: Final = 4096
_MOST_FILES: Final = 10_000
_LONGEST_PATH: Final = 4096


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


def model_content(model: str) -> str:
    """Return a model's name, or the content of its file or folder instead.

    Hidden files are left out: they are notes of a download.

    Raises:
        OSError: a file cannot be read, or a folder holds too many to be a model.

    """
    path = Path(model)
    if path.is_file():
        return f"file {file_content(path)}"
    if not path.is_dir():
        return model
    files = []
    for folder, below, names in os.walk(path, followlinks=True):
        below[:] = [name for name in below if not _is_hidden(name)]
        files += [Path(folder, name) for name in names if not _is_hidden(name)]
        if len(files) > _MOST_FILES:
            raise OSError(f"{model} holds over {_MOST_FILES} files, so it is no model")
    contents = [(str(it.relative_to(path)), file_content(it)) for it in files if it.is_file()]
    return f"folder {hashlib.sha256(repr(sorted(contents)).encode()).hexdigest()}"


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"
