"""The copies of cache blocks in vLLM's workers."""
