"""The entry point that vLLM calls in each of its processes."""

import vllm
from vllm.logger import init_logger

from hybrid_blocks.vllm import support
from hybrid_blocks.vllm.level import VARIABLE, Level, requested

logger = init_logger("vllm.hybrid_blocks")


def register() -> None:
    """Replace vLLM's block management at the level that the environment asks for.

    vLLM may call this more than once. Raises ``InvalidArgumentError`` for an unknown level.
    """
    level = requested()
    if level is Level.OFF:
        return
    if not support.is_supported(vllm.__version__):
        logger.warning_once(
            "hybrid_blocks is off: it supports vLLM %s, and this is %s. %s=off silences this.",
            support.supported_versions(),
            vllm.__version__,
            VARIABLE,
        )
        return
    from hybrid_blocks.vllm import installation  # noqa: PLC0415 - imports what off never needs

    installation.install()
