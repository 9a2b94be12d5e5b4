"""Speculative decoding in a pasted command."""

from collections.abc import Mapping
from typing import Any, Final

from hybrid_blocks.geometry.deployment import MAX_DRAFT_TOKENS
from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.tools.doctor.features import Speculative
from hybrid_blocks.tools.read.options import shown

WITHOUT_LAYERS: Final = ("ngram", "ngram_gpu", "suffix")
"""Methods that draft without layers of their own."""
_SUFFIX_TOKENS: Final = 24
"""Draft tokens of suffix decoding where none are given, ``suffix_decoding_max_tree_depth``."""


def read(options: Mapping[str, Any], model: Model, name: str | None) -> Speculative | None:
    """Return the drafts of a command, None without; ``name`` is the model that it serves."""
    config = config_of(options)
    if not config:
        return None
    method = _method(config, name)
    default = None
    if method == "suffix":
        default = config.get("suffix_decoding_max_tree_depth", _SUFFIX_TOKENS)
    elif method == "mtp":
        default = len({layer.depth for layer in model.draft_layers}) or None
    tokens = tokens_of(config, default)
    if method == "mtp" and not model.draft_layers:
        raise PlanError(
            f"--speculative-config method mtp: {model.name} has no draft head for multi-token "
            "prediction"
        )
    return Speculative(method, tokens)


def tokens_of(config: Mapping[str, Any], default: int | None) -> int:
    """Return the draft tokens of a step."""
    tokens = config.get("num_speculative_tokens", default)
    if tokens is None:
        raise PlanError("--speculative-config lacks num_speculative_tokens")
    if isinstance(tokens, bool) or not isinstance(tokens, int):
        raise PlanError(
            f"--speculative-config num_speculative_tokens is {shown(tokens)}; it is a whole number"
        )
    if not 1 <= tokens <= MAX_DRAFT_TOKENS:
        raise PlanError(
            f"--speculative-config num_speculative_tokens is {shown(tokens)}; vLLM drafts 1 to "
            f"{MAX_DRAFT_TOKENS}"
        )
    return tokens


def config_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``--speculative-config`` with what single options add to it."""
    config = options.get("speculative_config")
    if config is not None and not isinstance(config, dict):
        raise PlanError("--speculative-config: give a JSON object")
    given = {
        "method": options.get("spec_method"),
        "model": options.get("spec_model"),
        "num_speculative_tokens": options.get("spec_tokens"),
    }
    return {**(config or {}), **{key: value for key, value in given.items() if value is not None}}


def _method(config: Mapping[str, Any], name: str | None) -> str:
    """Return the method; all names of multi-token prediction are ``mtp``."""
    method, drafter = config.get("method"), config.get("model")
    if method is None:
        if drafter is not None and drafter == name:
            return "mtp"
        if drafter in WITHOUT_LAYERS:
            return str(drafter)
        given = "lacks a method" if drafter is None else f"model {shown(drafter)}"
        raise PlanError(
            f"--speculative-config {given}: the layers of a drafter cannot be planned; mtp, ngram "
            "and suffix can"
        )
    method = str(method)
    if method == "mtp" or method.endswith("_mtp"):
        if drafter is not None and drafter != name:
            raise PlanError(
                f"--speculative-config model {shown(drafter)}: a head apart from the model cannot "
                "be planned"
            )
        return "mtp"
    if method in WITHOUT_LAYERS:
        return method
    raise PlanError(
        f"--speculative-config method {shown(method)}: the layers of its drafter cannot be "
        "planned; mtp, ngram and suffix can"
    )
