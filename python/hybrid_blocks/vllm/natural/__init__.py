"""Level ``natural``: the memory in slabs, over which each group has blocks of its own size."""

from types import ModuleType

from hybrid_blocks.vllm import releases


def planning() -> ModuleType:
    """Return what plans memory in the installed release: a builder, which earlier ones lack."""
    if releases.installed.plans_by_builder:
        from hybrid_blocks.vllm.natural import builder  # noqa: PLC0415 - for these releases only

        return builder
    from hybrid_blocks.vllm.natural import planning_functions  # noqa: PLC0415 - for these releases only

    return planning_functions
