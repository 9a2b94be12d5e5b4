"""Which KV connectors level ``natural`` serves: those that know blocks in slabs."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from hybrid_blocks import variables
from hybrid_blocks.reasons import sentence

_SPEC: Final = "HybridOffloadingSpec"
_STOCK: Final = "OffloadingConnector"
_STOCK_SPEC: Final = "CPUOffloadingSpec"
_OURS: Final = "hybrid_blocks.offload.connector"
_MULTI: Final = ("HybridMultiConnector", "MultiConnector")
_MULTI_MODULE: Final = "hybrid_blocks.offload.multi"
_PULLS: Final = "HybridNixlConnector"
_OF_PULLS: Final = "hybrid_blocks.offload.nixl"


class Connector(msgspec.Struct, frozen=True):
    """A KV connector by the fields of vLLM's ``KVTransferConfig``."""

    name: str | None
    module: str | None
    extra: Mapping[str, Any]

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Connector":
        """Read it from a ``kv_transfer_config``."""
        extra = fields.get("kv_connector_extra_config")
        return cls(
            fields.get("kv_connector"),
            fields.get("kv_connector_module_path"),
            extra if isinstance(extra, dict) else {},
        )

    def refused(
        self, environment: Mapping[str, str], *, drafts: bool = False, pp: int = 1, dcp: int = 1
    ) -> str | None:
        """Return why level ``natural`` refuses it under these variables; None if it does not.

        ``drafts`` tells whether the engine drafts tokens. ``pp`` and ``dcp`` count its ranks of
        pipeline and decode context parallelism.
        """
        if pp > 1:
            return sentence("pp_with_connector")
        if dcp > 1:
            return sentence("dcp_with_connector")
        if self.weighs:
            reasons = (child.refused(environment, drafts=drafts) for child in self.listed)
            return next(filter(None, reasons), None)
        if self.pulls:
            return self._refused_as_pulls(drafts=drafts)
        return self._refused_as_offload(environment)

    def _refused_as_offload(self, environment: Mapping[str, str]) -> str | None:
        if not self._knows_slabs:
            return sentence("connector", name=self.name)
        # The spec takes no `store` under vLLM's connector: its engine does not start.
        takes_options = self.name != _STOCK or "store" not in self.extra
        replaces = variables.OFFLOAD.value(environment) == "1" and self._spec == _STOCK_SPEC
        replaces = replaces and takes_options
        if self._spec != _SPEC and not replaces:
            return sentence("connector_option", name=self.name, option=self._spec)
        return None

    def _refused_as_pulls(self, *, drafts: bool) -> str | None:
        both = "bidirectional_kv_xfer"
        if self.extra.get(both):
            return sentence("connector_option", name=self.name, option=both)
        return sentence("drafts_with_connector", name=self.name) if drafts else None

    @property
    def weighs(self) -> bool:
        """Whether it is this package's connector that asks several others."""
        return self.name in _MULTI and self.module == _MULTI_MODULE

    @property
    def listed(self) -> list["Connector"]:
        """The connectors in its list."""
        listed = self.extra.get("connectors")
        children = listed if isinstance(listed, list) else []
        return [Connector.of(it) for it in children if isinstance(it, dict)]

    @property
    def pulls(self) -> bool:
        """Whether it reads prompts from other engines at level ``natural``."""
        return self.name == _PULLS and self.module == _OF_PULLS

    @property
    def _knows_slabs(self) -> bool:
        if self.name == _STOCK:
            return self.module is None
        return self.name == "HybridOffloadingConnector" and self.module == _OURS

    @property
    def _spec(self) -> Any:
        return self.extra.get("spec_name", _STOCK_SPEC)
