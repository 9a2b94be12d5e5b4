"""The recorded table is what the installed vLLM says."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import registry_configs
from hybrid_blocks.model import from_config
from process import printed_by_python

HERE = Path(__file__).parent
REFUSED: dict[str, str] = tomllib.loads((HERE / "reasons.toml").read_text())["refused"]
HEADS = set(registry_configs.HEADS)
RECORDED: dict[str, dict[str, Any]] = json.loads((HERE / "recorded.json").read_bytes())
SLICE = ("LlamaForCausalLM", "Gemma3ForCausalLM", "FalconH1ForCausalLM")


def build(folder: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """Let a process of its own say; this one's vLLM may know another device."""
    out = folder / "recorded.json"
    unset = ("VLLM_TARGET_DEVICE", "PYTHONHASHSEED")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    only = ["--only", *names] if names else []
    environment |= {"VLLM_PLUGINS": "", "VLLM_LOGGING_LEVEL": "ERROR"}
    printed_by_python(HERE, *only, "--out", out, env=environment, timeout=1800)
    rows: dict[str, Any] = json.loads(out.read_bytes())
    return rows


def test_some_architectures_are_built_as_recorded(tmp_path: Path) -> None:
    rows = build(tmp_path, SLICE)
    assert rows.keys() == {name for name in RECORDED if _begins(name)}
    assert not _different(rows)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_all_architectures_are_built_as_recorded(tmp_path: Path) -> None:
    rows = build(tmp_path, ())
    assert rows.keys() == RECORDED.keys()
    assert not _different(rows)


def _begins(name: str) -> bool:
    return any(part in name for part in SLICE)


def _different(rows: dict[str, Any]) -> list[str]:
    return [name for name, row in rows.items() if _said(row) != _said(RECORDED[name])]


def _said(row: dict[str, Any]) -> dict[str, Any]:
    """Return vLLM's answer: the caches of a model, or that it did not build one."""
    return {key: value for key, value in row.items() if key not in ("written", "error")}


def test_heads_are_read_where_vllm_names_a_class_for_them() -> None:
    environment = {**os.environ, "VLLM_PLUGINS": "", "VLLM_LOGGING_LEVEL": "ERROR"}
    answered = printed_by_python(HERE / "head_classes.py", env=environment, timeout=1800)
    classes: dict[str, str | None] = json.loads(answered.splitlines()[-1])
    assert classes.keys() == RECORDED.keys()
    read = {name: _head(name) for name in RECORDED if name not in REFUSED}
    headed = {name for name in read if classes[name] is not None}
    assert {name for name, head in read.items() if head} == headed
    assert {name for name, head in read.items() if head} >= HEADS


def _head(name: str) -> bool:
    fields = registry_configs.with_head(name, RECORDED[name]["config"])
    return bool(from_config(fields, name).draft_layers)
