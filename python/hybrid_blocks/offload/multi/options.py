"""The options of `HybridMultiConnector`, read from vLLM's ``kv_connector_extra_config``."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from hybrid_blocks.errors import InvalidArgumentError

_KNOWN: Final = ("connectors", "weights", "wait", "patience")


class Options(msgspec.Struct, frozen=True):
    """``weights`` by connector; ``wait`` and ``patience`` in seconds.

    A connector that wants to be asked again holds a request for ``wait`` if another one can load.
    It holds the request for ``patience`` if no other can.
    """

    weights: tuple[float, ...]
    wait: float = 0.1
    patience: float = 10.0

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> "Options":
        """Read the options of HybridMultiConnector."""
        if unknown := sorted(extra.keys() - set(_KNOWN)):
            raise InvalidArgumentError(
                f"HybridMultiConnector has no option {unknown[0]}; it has {', '.join(_KNOWN)}"
            )
        connectors = extra.get("connectors")
        if not isinstance(connectors, list) or not connectors:
            raise InvalidArgumentError(
                'HybridMultiConnector needs "connectors": a list of kv_transfer_configs'
            )
        weights = extra.get("weights", [1.0] * len(connectors))
        if not isinstance(weights, list) or len(weights) != len(connectors):
            raise InvalidArgumentError(
                f"weights={weights!r} is no list of {len(connectors)} numbers, one a connector"
            )
        seconds = {
            name: _number(name, extra[name]) for name in ("wait", "patience") if name in extra
        }
        return cls(tuple(_number("a weight", weight) for weight in weights), **seconds)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise InvalidArgumentError(f"{name} is a number from 0 on, not {value!r}")
    return float(value)
