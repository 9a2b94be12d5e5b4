"""Environment variables of vLLM: those that change no stored byte, and the values of all others."""

from typing import Any

from vllm import envs

from hybrid_blocks.offload.canonical import UnwritableError
from hybrid_blocks.offload.same_bytes import variables


def left_out() -> frozenset[str]:
    """The names that are left out."""
    known = envs.environment_variables
    return frozenset(f"VLLM_{it}" if f"VLLM_{it}" in known else it for it in variables())


def environment() -> dict[str, Any]:
    """The variables that count, as vLLM reads them.

    Raises:
        UnwritableError: one of them has a value that vLLM refuses.
    """
    values = {}
    for name in sorted(envs.environment_variables.keys() - left_out()):
        try:
            values[name] = envs.environment_variables[name]()
        except (ValueError, TypeError, KeyError) as error:
            raise UnwritableError(f"the environment variable {name} ({error})") from None
    return values
