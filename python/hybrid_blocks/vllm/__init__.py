"""The vLLM plugin: vLLM's block management, replaced at run time and only in memory.

``HYBRID_BLOCKS`` chooses the level: ``off``, ``pool`` (vLLM's managers over this project's block
pool) or ``manager`` (the default).
"""
