"""To be imported before vLLM, which else asks for a GPU."""

from hybrid_blocks.tools.doctor.environment import allow_no_gpu

allow_no_gpu()
