"""The plugin in vLLM for as long as a context lasts."""

from collections.abc import Iterator
from contextlib import contextmanager

from hybrid_blocks.vllm import install
from hybrid_blocks.vllm.level import Level


@contextmanager
def installed(level: Level | None = None) -> Iterator[None]:
    """The plugin at a level, by default at the requested one; nothing at ``off``."""
    if level is not Level.OFF:
        install.install(level)
    try:
        yield
    finally:
        install.uninstall()
