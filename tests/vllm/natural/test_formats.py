"""An engine that cannot keep checkpoints in another format leaves them as they are and says why."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import vllm.logger
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.vllm.level import CHECKPOINTS, Grant, Level
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from hybrid_blocks.vllm.natural import refusal

from .engine import Engine, installed


@pytest.fixture(autouse=True)
def natural(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(CHECKPOINTS, "learned/format=int8")
    # A line that another test of this process logged would not be logged again.
    vllm.logger._print_warning_once.cache_clear()
    with installed():
        yield


def planned(ssm_dtype: str = "float32") -> Engine:
    deployment = Deployment(max_model_len=4_096, mamba_ssm_dtype=ssm_dtype)
    return Engine(load_model("Qwen3.5-27B"), deployment, 8 * 2**30)


def is_apart(engine: Engine) -> bool:
    config = engine.kv_cache_config
    assert isinstance(config, NaturalKVCacheConfig)
    return set(config.kept_pools) != {None}


def test_float32_states_alone_are_kept_in_fewer_bytes(caplog: pytest.LogCaptureFixture) -> None:
    assert is_apart(planned())
    assert "format=int8" not in caplog.text
    assert not is_apart(planned("bfloat16"))
    assert "format=int8, but checkpoints stay as running states are: no recurrent" in caplog.text


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("cache_config.enable_prefix_caching", False, "there is no prefix cache"),
        ("kv_transfer_config", SimpleNamespace(), "a KV connector moves states as they are"),
    ],
)
def test_an_engine_that_cannot_convert_says_why(path: str, value: Any, why: str) -> None:
    engine = planned()
    holder: Any = engine.config
    *folders, last = path.split(".")
    for folder in folders:
        holder = getattr(holder, folder)
    setattr(holder, last, value)
    assert refusal.format_reason(engine.config, engine.specs, "int8") == why


def test_workers_that_copy_as_vllm_are_given_no_format(monkeypatch: pytest.MonkeyPatch) -> None:
    differs = Grant(Level.NATURAL, ("copy_kv_cache_blocks_inplace has a new parameter",))
    monkeypatch.setattr(refusal, "worker_grant", lambda _: differs)
    engine = planned()
    assert not is_apart(engine)
    why = refusal.format_reason(engine.config, engine.specs, "int8")
    assert why is not None
    assert "has a new parameter" in why
