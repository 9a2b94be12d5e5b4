"""The variable that replaces vLLM's spec by ours."""

import pytest
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.offload import HybridOffloadingSpec
from hybrid_blocks.offload.replacement import VARIABLE, replace_spec
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
def test_the_variable_replaces_vllms_spec(
    value: str, spec: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    replace_spec()
    assert OffloadingSpecFactory.get_spec_cls({"cpu_bytes_to_use": 1 << 30}) is spec


def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(InvalidArgumentError, match="HYBRID_BLOCKS_OFFLOAD is 0 or 1, not 'yes'"):
        replace_spec()
