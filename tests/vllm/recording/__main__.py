"""``python -m recording``: write the fixtures of the installed vLLM again."""

import logging

import vllm
from hybrid_blocks.vllm.surface.support import release_of
from oracle.engines import RINGS

from . import fixture
from .engines import recorded
from .lives import NUM_LIVES, record


def main() -> None:
    """Record every engine's lives."""
    logging.disable(logging.WARNING)
    release = release_of(vllm.__version__) or vllm.__version__
    parts = {"": recorded(), "-ring": RINGS}
    for part, engines in parts.items():
        lives = [
            record(name, engine, it) for name, engine in engines.items() for it in range(NUM_LIVES)
        ]
        file = fixture.path(release, part)
        fixture.write(file, vllm.__version__, lives)
        num_steps = sum(len(life) - 1 for life in lives)
        print(f"{file.name}: {len(engines)} engines, {len(lives)} lives, {num_steps} steps")


if __name__ == "__main__":
    main()
