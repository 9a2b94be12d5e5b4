"""Fields of vLLM's configuration and environment variables count, or are known not to."""

import dataclasses
import importlib
import pkgutil
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import vllm.config
from configurations import configuration, write
from hybrid_blocks.offload.identity import identity_of, same_bytes
from hybrid_blocks.offload.identity.canonical import UnwritableError
from sorted_fields import COUNT, ENVIRONMENT, NOT_OF_AN_ENGINE
from vllm import envs
from vllm.config import VllmConfig

LEFT_OUT = same_bytes.left_out()
# Fields that count by a rule, which has tests of its own.
BY_RULE = {("ModelConfig", "max_model_len"), ("SpeculativeConfig", "model")}


@pytest.fixture
def config(tmp_path: Path) -> VllmConfig:
    return configuration(write(tmp_path / "model"))


def modules() -> Iterator[ModuleType]:
    for module in pkgutil.iter_modules(vllm.config.__path__):
        yield importlib.import_module(f"vllm.config.{module.name}")


CLASSES = {
    name: it
    for module in modules()
    for name, it in vars(module).items()
    if isinstance(it, type) and dataclasses.is_dataclass(it) and it.__module__ == module.__name__
}


def names_of(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def test_every_field_of_vllms_configuration_is_sorted() -> None:
    count = {kind: set(fields.split()) for kind, fields in COUNT.items()}
    engine = [(name, it) for name, it in CLASSES.items() if name not in NOT_OF_AN_ENGINE]
    fields = {(kind, name) for kind, it in engine for name in names_of(it)}
    twice = [it for it in fields if it[1] in count.get(it[0], set()) & LEFT_OUT.get(it[0], set())]
    assert twice == []
    known = {kind: count.get(kind, set()) | LEFT_OUT.get(kind, set()) for kind, _ in fields}
    unsorted = [f"{kind}.{name}" for kind, name in sorted(fields) if name not in known[kind]]
    assert unsorted == [], "sort them into sorted_fields.py or same_bytes.toml"


def test_every_environment_variable_of_vllm_is_sorted() -> None:
    count = {f"VLLM_{name}" for name in ENVIRONMENT.split()}
    names = set(envs.environment_variables)
    assert count & same_bytes.variables_left_out() == set()
    unsorted = sorted(names - count - same_bytes.variables_left_out())
    assert unsorted == [], "sort them into sorted_fields.py or same_bytes.toml"


def classes_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and annotation.__name__ in CLASSES:
        yield annotation
    for it in typing.get_args(annotation):
        yield from classes_in(it)


def blank(kind: type) -> Any:
    """An object of a class with each field's default, or none; checks are left out."""
    made: Any = object.__new__(kind)
    for field in dataclasses.fields(kind):
        has_default = field.default is not dataclasses.MISSING
        default = field.default if has_default else None
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        # A default of pydantic's own is an object that holds it.
        if type(default).__name__ == "FieldInfo":
            default = None
        object.__setattr__(made, field.name, default)
    return made


def fill(config: Any) -> None:
    """Puts an object wherever one of vLLM's classes may be and is none."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name, None)
        kinds = list(classes_in(field.type))
        if field.name in LEFT_OUT.get(type(config).__name__, ()) or not kinds:
            continue
        if not dataclasses.is_dataclass(value):
            kind = kinds[0]
            value = config.target_model_config if kind.__name__ == "ModelConfig" else blank(kind)
            object.__setattr__(config, field.name, value)
        if type(value).__name__ != "ModelConfig" or type(config).__name__ == "VllmConfig":
            fill(value)


def owners(config: Any) -> Iterator[Any]:
    yield config
    for field in dataclasses.fields(config):
        value = getattr(config, field.name, None)
        is_read = field.name not in LEFT_OUT.get(type(config).__name__, ())
        if is_read and type(value).__name__ in CLASSES and field.name != "draft_model_config":
            yield from owners(value)


def with_every_class(config: VllmConfig) -> VllmConfig:
    speculative = blank(CLASSES["SpeculativeConfig"])
    object.__setattr__(speculative, "target_model_config", config.model_config)
    object.__setattr__(config, "speculative_config", speculative)
    fill(config)
    return config


class Odd:
    """Has no text."""


def test_each_field_changes_the_digest_or_does_not_as_it_is_sorted(config: VllmConfig) -> None:
    with_every_class(config)
    before = identity_of(config).digest
    all_owners = list(owners(config))
    kinds = {type(it).__name__ for it in all_owners}
    assert kinds == CLASSES.keys() - set(NOT_OF_AN_ENGINE)
    wrong = []
    for owner in all_owners:
        kind = type(owner).__name__
        for name in names_of(type(owner)):
            value = getattr(owner, name, None)
            counts = name not in LEFT_OUT.get(kind, ())
            # The fields of an object that counts are changed one by one.
            if (counts and type(value).__name__ in CLASSES) or (kind, name) in BY_RULE:
                continue
            object.__setattr__(owner, name, "another" if counts else Odd())
            if (identity_of(config).digest != before) != counts:
                wrong.append(f"{kind}.{name}")
            object.__setattr__(owner, name, value)
    assert wrong == []
    assert identity_of(config).digest == before


def test_a_value_without_a_text_is_named(config: VllmConfig) -> None:
    config.model_config.hf_config.odd = {"deep": [Odd()]}
    with pytest.raises(UnwritableError, match=r"model_config\.hf_config\.odd\.deep\[\] .*Odd"):
        identity_of(config)


def test_environment_variables_change_the_digest_unless_they_are_left_out(
    config: VllmConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = identity_of(config).digest
    known = dict(envs.environment_variables)
    for name, read in known.items():
        monkeypatch.setitem(envs.environment_variables, name, lambda: "another")
        is_left_out = name in same_bytes.variables_left_out()
        assert (identity_of(config).digest == before) == is_left_out, name
        monkeypatch.setitem(envs.environment_variables, name, read)
