"""Features of an engine, and the KV connectors that it may have. Imports no vLLM."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeGuard

import msgspec

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.geometry.deployment import MAX_DRAFT_TOKENS, stages
from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.model.layer import Attention, Cache

OFFLOADING: Final = "HybridOffloadingConnector"
_PULLS: Final = "HybridNixlConnector"
_MULTI: Final = "HybridMultiConnector"
OURS: Mapping[str, str] = MappingProxyType(
    {
        OFFLOADING: "hybrid_blocks.offload.connector",
        _PULLS: "hybrid_blocks.offload.nixl",
        _MULTI: "hybrid_blocks.offload.multi",
    }
)
"""This package's connectors and their modules."""
_LISTED: Final = (OFFLOADING, _PULLS)
"""The connectors in the list of `HybridMultiConnector`."""
_NONE: Mapping[str, str] = MappingProxyType({})


def asked(name: str) -> dict[str, Any]:
    """Return the ``kv_transfer_config`` by which users ask for a connector of this package."""
    return transfer(name, {"spec_name": "HybridOffloadingSpec"})


def transfer(
    name: str, extra: Mapping[str, Any], stands: Mapping[str, str] = _NONE
) -> dict[str, Any]:
    """Return the ``kv_transfer_config`` of a connector. Others may stand for those in it."""
    if name == _MULTI:
        extra = {"connectors": [transfer(it, extra, stands) for it in _LISTED]}
    name = stands.get(name, name)
    return {
        "kv_connector": name,
        "kv_connector_module_path": OURS.get(name),
        "kv_role": "kv_both",
        "kv_connector_extra_config": dict(extra),
    }


METHODS = (
    "ngram", "ngram_gpu", "suffix", "eagle", "eagle3", "mtp", "dflash", "dspark", "draft_model",
    "custom_class", "extract_hidden_states",
)  # fmt: skip
"""Methods of speculative decoding, as vLLM names them."""
FIRST_RUNNER = ("suffix", "custom_class")
"""Methods that only vLLM's first model runner knows; it does not schedule them asynchronously."""
MOST_RANKS = 1024


class Speculative(msgspec.Struct, frozen=True):
    """A method of speculative decoding and its draft tokens a step."""

    method: str
    num_tokens: int

    def __str__(self) -> str:
        return f"{self.method}:{self.num_tokens}"

    @property
    def needs_first_runner(self) -> bool:
        """Return whether vLLM falls back to its first model runner."""
        return self.method in FIRST_RUNNER


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an engine that may decide what runs. The defaults are vLLM's.

    ``connector`` is the name of a class. ``tp``, ``dcp``, ``pcp`` and ``pp`` count
    the ranks of tensor, decode context, prefill context and pipeline parallelism; ``tp`` 0 stands
    for as few as ``dcp`` asks for. ``pp_partition`` counts the layers of each pipeline stage. With
    ``images``, requests have image inputs. ``spared_layers`` are those whose keys and values stay
    unquantized.
    """

    speculative: Speculative | None = None
    connector: str | None = None
    encoder_connector: bool = False
    lora: bool = False
    images: bool = False
    logprobs: bool = False
    priorities: bool = False
    tp: int = 0
    dcp: int = 1
    pcp: int = 1
    pp: int = 1
    pp_partition: tuple[int, ...] | None = None
    residency_metrics: bool = False
    flop_metrics: bool = False
    sampling_masks: bool = False
    aux_outputs: bool = False
    replay_ssm: bool = False
    no_hybrid_manager: bool = False
    spared_layers: tuple[str, ...] = ()
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name in ("tp", "dcp", "pcp", "pp"):
            ranks = getattr(self, name)
            if ranks < (name != "tp"):
                raise InvalidArgumentError(f"--{name} must be positive: {ranks}")
            if ranks > MOST_RANKS:
                raise InvalidArgumentError(f"--{name} {ranks}: at most {MOST_RANKS:,} ranks")
        if self.tp and self.tp % self.dcp:
            raise InvalidArgumentError(
                f"--tp {self.tp} is no multiple of --dcp {self.dcp}, whose ranks are of those"
            )

    @property
    def needs_first_runner(self) -> bool:
        """Return whether vLLM falls back to its first model runner."""
        return self.speculative is not None and self.speculative.needs_first_runner


def is_served(model: Model, features: Features) -> bool:
    """Return whether a model has what a feature needs: MTP is of models with a draft head."""
    drafts = features.speculative
    return bool(model.draft_layers) or drafts is None or drafts.method != "mtp"


def check_model(model: Model, features: Features) -> None:
    """Check that there can be such an engine of a model.

    Raises ``PlanError`` for a draft head that the model lacks, and for more pipeline stages than
    its layers fill. It also raises it for fewer tensor-parallel ranks than its KV heads need.
    """
    if not is_served(model, features):
        others = ", ".join(method for method in METHODS if method != "mtp")
        raise PlanError(
            f"--speculative {features.speculative}: {model.name} has no draft head for multi-token "
            f"prediction; methods without one are {others}"
        )
    stages(model, model.layers, features.pp, features.pp_partition)
    heads = max((it.cache.kv_heads for it in model.layers if _has_kv_heads(it.cache)), default=0)
    if features.tp and features.dcp > 1 and features.tp < heads * features.dcp:
        raise PlanError(
            f"--tp {features.tp} with --dcp {features.dcp}: decode context parallelism stores each "
            f"of the {heads} KV heads of {model.name} {features.dcp} times; give --tp "
            f"{heads * features.dcp} or more"
        )


def _has_kv_heads(cache: Cache) -> TypeGuard[Attention]:
    return isinstance(cache, Attention)


def parse_speculative(text: str) -> Speculative:
    """Return what ``mtp:2`` stands for.

    Raises ``InvalidArgumentError`` for an unknown method, naming those that are known, and for a
    number of tokens below 1 or above ``MAX_DRAFT_TOKENS``.
    """
    method, _, count = text.partition(":")
    if method not in METHODS:
        raise InvalidArgumentError(
            f"--speculative {text}: {method!r} is no known method; known are {', '.join(METHODS)}"
        )
    if not (count.isascii() and count.isdecimal() and count.strip("0")):
        raise InvalidArgumentError(
            f"--speculative {text}: say how many tokens are drafted a step, as in {method}:2"
        )
    if len(count) > 9 or int(count) > MAX_DRAFT_TOKENS:
        raise InvalidArgumentError(
            f"--speculative {text}: vLLM verifies at most {MAX_DRAFT_TOKENS} draft tokens a step"
        )
    return Speculative(method, int(count))
