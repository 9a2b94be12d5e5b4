"""vLLM's planning in one call: 0.33 has it in a module of its own, and in two steps."""

from importlib.util import find_spec
from typing import Any

from vllm.v1.core import kv_cache_utils

Groups = list[Any]
Configs = list[Any]


def plan(config: Any, workers: list[dict[str, Any]], memory: list[int]) -> tuple[Groups, Configs]:
    """Return the groups of all layers and each worker's configuration, with its bytes."""
    if find_spec("vllm.v1.core.kv_cache_planning"):
        from vllm.v1.core import kv_cache_planning  # noqa: PLC0415 - not there before 0.33

        groups = kv_cache_planning.get_global_kv_cache_groups(config, workers)
        return groups, kv_cache_planning.get_kv_cache_configs(config, workers, memory, groups)
    utils: Any = kv_cache_utils
    configs = utils.get_kv_cache_configs(config, workers, memory)
    return configs[0].kv_cache_groups, configs
