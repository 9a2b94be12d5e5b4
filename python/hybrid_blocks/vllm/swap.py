"""Replaces classes and functions by others, wherever a loaded module holds them."""

import sys
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

_OWN = "hybrid_blocks."

_NEVER: Final = sys.stdlib_module_names | {
    *("aiohttp", "botocore", "cuda", "cutlass", "cv2", "fastapi", "huggingface_hub", "mpmath"),
    *("networkx", "numpy", "openai", "opentelemetry", "pandas", "pydantic", "pynvml", "requests"),
    *("scipy", "sympy", "torch", "torchaudio", "torchvision", "transformers", "triton"),
}
"""Packages that name no class of vLLM's, and hold most names in its processes."""


def _modules() -> Iterator[tuple[str, dict[str, Any]]]:
    """Give the name and the names of each loaded module that may name a class of vLLM's."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _NEVER:
            try:
                # A module that waits for its first use would be imported by its own look-up.
                yield name, object.__getattribute__(module, "__dict__")
            except AttributeError:
                continue


def _name(kind: type) -> tuple[str, str]:
    return kind.__module__, kind.__qualname__


def swap(
    pairs: Sequence[tuple[Any, Any]], but: Container[tuple[str, str]] = frozenset()
) -> frozenset[tuple[str, str]]:
    """Let every loaded module, but this package's, that names a first name the second instead.

    Names in ``but``, and classes of these names, stay as they are.

    Modules loaded later import the new name from the module that defines it. Classes derived from
    a first derive from the second from now on, but for those that are a first name themselves.
    No file changes; a swap back undoes this one.

    Return the modules and names that stood for a second already, and the classes derived from one:
    users name ours themselves, and a swap back leaves them alone.
    """
    replacements = {id(original): replacement for original, replacement in pairs}
    originals, ours = replacements.keys(), set(map(id, replacements.values()))
    searched, already = originals | ours, set[tuple[str, str]]()
    for _, replacement in pairs:
        if isinstance(replacement, type):
            already.update(map(_name, replacement.__subclasses__()))
    # One search for all pairs: there are thousands of modules, and most name none of them.
    for name, namespace in _modules():
        if searched.isdisjoint(map(id, namespace.values())):
            continue
        is_own = name.startswith(_OWN)
        for attribute, value in list(namespace.items()):
            if id(value) in ours:
                already.add((name, attribute))
            elif id(value) in originals and not is_own and (name, attribute) not in but:
                setattr(sys.modules[name], attribute, replacements[id(value)])
    for original, replacement in pairs:
        if isinstance(original, type):
            _derive(original, replacement, originals, but)
    return frozenset(already)


def _derive(
    original: type, replacement: type, originals: Container[int], but: Container[tuple[str, str]]
) -> None:
    """Let classes derived from ``original``, but this package's, derive from ``replacement``."""
    derived: type
    for derived in original.__subclasses__():
        if id(derived) in originals or derived is replacement or _name(derived) in but:
            continue
        if not derived.__module__.startswith(_OWN):
            bases = tuple(replacement if base is original else base for base in derived.__bases__)
            # A class derived from this one and from the replacement would have no order of bases.
            with suppress(TypeError):
                derived.__bases__ = bases


def back(pairs: Sequence[tuple[Any, Any]]) -> tuple[tuple[Any, Any], ...]:
    """Return the pairs that undo the swap of ``pairs``."""
    return tuple((replacement, original) for original, replacement in pairs)


def replace(owner: Any, name: str, replacement: Any) -> Callable[[], None]:
    """Let an attribute be another from now on, and return what takes that back."""
    before = getattr(owner, name)
    setattr(owner, name, replacement)
    return lambda: setattr(owner, name, before)
