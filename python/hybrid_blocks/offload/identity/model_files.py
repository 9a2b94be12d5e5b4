"""Content of the files and the code that a configuration names, where an engine can know it."""

import glob
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from huggingface_hub import HfApi, ResolvedRevision, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError, RevisionResolutionError
from vllm import envs

from hybrid_blocks.offload.identity.canonical import Unknown
from hybrid_blocks.offload.identity.fingerprint import (
    file_content,
    files_content,
    files_of,
    model_content,
)

if TYPE_CHECKING:
    from vllm.config import ModelConfig

_COMMIT: Final = re.compile("[0-9a-f]{40}")
_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
# Placeholder of a shard's number in a path of tensorizer.
_SHARD: Final = re.compile(r"%0?\d*d")
_PROCESSORS: Final = tuple(
    f"{it}.json" for it in ("processor_config", "preprocessor_config", "video_preprocessor_config")
)
_PLUGINS: Final = ("vllm.general_plugins", "vllm.platform_plugins")


def content(name: str, revision: str | None, caches: Sequence[str | None]) -> object:
    """Return the content of a model by its path, or by its name on a hub.

    ``revision`` is what vLLM made of it before it read the first file. All files of a model come
    from the commit that it holds; ``caches`` are the folders that may have them, ``None`` for the
    hub's own.

    Raises:
        OSError: a file cannot be read.
    """
    path = Path(name)
    if path.exists():
        return model_content(path)
    if (commit := _commit(name, revision)) is None:
        return Unknown(f"{name} at {revision}" if revision else name)
    files = _snapshot(name, commit, caches)
    if not any(it.endswith(_WEIGHTS) for it in files):
        return f"commit {commit}"
    # Only the names that links lead to are digests of whole files.
    are_links = all(it.is_symlink() for it in files.values())
    return f"folder {files_content(files)}{'' if are_links else f' of commit {commit}'}"


def _commit(name: str, revision: str | None) -> str | None:
    """Return the commit that vLLM's downloads of a model were bound to, if they were to any."""
    if revision is None or _COMMIT.fullmatch(revision):
        return revision
    if not isinstance(revision, ResolvedRevision):
        return None
    try:
        same = HfApi().resolve_revision(name, revision=revision, local_files_only=True)
    except (RevisionResolutionError, ValueError):
        return None
    # A revision that was resolved for another model says nothing of this one.
    return revision.resolved if same is revision else None


def _snapshot(name: str, commit: str, caches: Sequence[str | None]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for cache in caches:
        with suppress(LocalEntryNotFoundError, ValueError):
            folder = snapshot_download(
                name, revision=commit, cache_dir=cache, local_files_only=True, ignore_patterns="*"
            )
            files |= files_of(Path(folder))
    return files


def tensors(options: Mapping[str, Any]) -> object:
    """Return the content of all files that options of tensorizer name.

    Raises:
        OSError: a file cannot be read.
    """
    place, folder = options.get("tensorizer_uri") or "", options.get("tensorizer_dir") or ""
    # A worker that has loaded its shard wrote the shard's number into the place.
    if place and options.get("_is_sharded") and not _SHARD.search(place):
        place, folder = "", str(Path(place).parent)
    if place:
        pattern = "*".join(map(glob.escape, _SHARD.split(place)))
        shards = sorted(glob.glob(pattern))  # noqa: PTH207 - the place may be absolute
        return [[Path(it).name, file_content(it)] for it in shards] or Unknown(place)
    return model_content(Path(folder)) if Path(folder).is_dir() else Unknown(folder)


def code(config: "ModelConfig") -> Iterator[Unknown]:
    """Yield the code that a model runs at no commit: that of other models, or of a branch."""
    if not config.trust_remote_code or _COMMIT.fullmatch(config.code_revision or ""):
        return
    if names := sorted(set(_code_names(config))):
        if config.code_revision:
            yield Unknown(f"code of {config.model} at {config.code_revision}")
        for name in names:
            repository, separator, _ = name.partition("--")
            if separator and repository != config.model:
                yield Unknown(f"code of {repository}")


def _code_names(config: "ModelConfig") -> Iterator[str]:
    """Yield the classes of remote code that compute: those that read configurations do not."""
    is_multimodal = config.multimodal_config is not None
    if not is_multimodal and not config.using_transformers_backend():
        return
    read: list[Mapping[str, Any]] = [vars(config.hf_config)]
    if is_multimodal:
        path, commit = Path(config.model), _commit(config.model, config.revision)
        files = files_of(path) if path.is_dir() else {}
        if commit is not None:
            files = _snapshot(config.model, commit, [None])
        read += [json.loads(files[it].read_text()) for it in _PROCESSORS if it in files]
    for it in read:
        for kind, name in (it.get("auto_map") or {}).items():
            if isinstance(name, str) and kind not in ("AutoConfig", "AutoTokenizer"):
                yield name


def plugins() -> list[list[str]]:
    """Return the names and versions of vLLM's plugins: their code may compute, this package not."""
    found = {
        (it.dist.name, it.dist.version)
        for group in _PLUGINS
        for it in entry_points(group=group)
        if it.dist is not None and (envs.VLLM_PLUGINS is None or it.name in envs.VLLM_PLUGINS)
    }
    own = (__package__.partition(".")[0], "vllm")
    return sorted(list(it) for it in found if it[0].replace("-", "_") not in own)
