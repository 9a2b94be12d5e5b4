"""The package's logger, below vLLM's, so that its lines look and are kept as vLLM's own."""

from typing import Final

from vllm.logger import init_logger

logger: Final = init_logger("vllm.hybrid_blocks")
