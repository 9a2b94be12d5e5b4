"""The variable that replaces vLLM's spec by ours."""

import pytest
import vllm
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.offload import HybridOffloadingSpec
from hybrid_blocks.offload.replacement import replace_spec, serve_slabs
from hybrid_blocks.offload.slabs import connector
from hybrid_blocks.variables import OFFLOAD
from hybrid_blocks.vllm.surface import part_differences
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

CHOSEN = {"spec_name": "HybridOffloadingSpec", "spec_module_path": "hybrid_blocks.offload"}


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = dict(OffloadingSpecFactory._registry)
    monkeypatch.setattr(OffloadingSpecFactory, "_registry", kept)


def test_vllm_finds_the_spec_by_its_name() -> None:
    assert OffloadingSpecFactory.get_spec_cls(CHOSEN) is HybridOffloadingSpec


@pytest.mark.parametrize(("value", "spec"), [("0", CPUOffloadingSpec), ("1", HybridOffloadingSpec)])
def test_a_variable_replaces_specs(value: str, spec: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OFFLOAD.name, value)
    replace_spec()
    assert OffloadingSpecFactory.get_spec_cls({"cpu_bytes_to_use": 1 << 30}) is spec


def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OFFLOAD.name, "yes")
    told = "HYBRID_BLOCKS_OFFLOAD='yes' is no choice; use 0, 1"
    with pytest.raises(InvalidArgumentError, match=told):
        replace_spec()


def test_vllms_connector_serves_slabs_once_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVConnectorFactory, "_registry", dict(KVConnectorFactory._registry))
    connector.uninstall()  # the plugin may have been registered in this process
    vllms = OffloadingConnector.__init__
    serve_slabs()
    assert OffloadingConnector.__init__ is vllms
    try:
        found = KVConnectorFactory.get_connector_class_by_name("OffloadingConnector")
        assert found is OffloadingConnector
        assert OffloadingConnector.__init__ is not vllms
        assert part_differences("offload", vllm.__version__) == []
    finally:
        connector.uninstall()
    assert OffloadingConnector.__init__ is vllms
