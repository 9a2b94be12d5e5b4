"""The operators that vLLM's Python calls on a CPU are those that its compiled files register."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
import vllm
from vllm.platforms import current_platform

PACKAGE = Path(vllm.__file__).parent
NAMESPACE = "_C"
# 0.33 calls operators that 0.32 leaves empty for FP8, or that take one argument less there for
# quantized experts. No model of these tests is quantized.
CHANGED = {
    "dynamic_per_token_scaled_fp8_quant",
    "dynamic_scaled_fp8_quant",
    "fused_experts_cpu",
    "static_scaled_fp8_quant",
}


@dataclass(frozen=True)
class Call:
    """A call of an operator in vLLM's sources."""

    operator: str
    where: str
    num_positional: int
    keywords: frozenset[str]
    is_whole: bool  # no * or ** hides arguments


@cache
def calls() -> list[Call]:
    """Return every call of ``torch.ops._C.NAME`` in the installed package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text()
        if f"ops.{NAMESPACE}." in source:
            found += list(_calls_in(ast.parse(source), path.relative_to(PACKAGE).as_posix()))
    return found


def _calls_in(tree: ast.AST, file: str) -> Iterator[Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (operator := _operator(node.func)):
            yield Call(
                operator=operator,
                where=f"{file}:{node.lineno}",
                num_positional=len(node.args),
                keywords=frozenset(k.arg for k in node.keywords if k.arg),
                is_whole=all(k.arg for k in node.keywords)
                and not any(isinstance(argument, ast.Starred) for argument in node.args),
            )


def _operator(function: ast.expr) -> str | None:
    text = ast.unparse(function).removesuffix(".default")
    prefix = f"torch.ops.{NAMESPACE}."
    return text.removeprefix(prefix) if text.startswith(prefix) else None


@pytest.fixture(scope="module")
def schemas() -> dict[str, torch.FunctionSchema]:
    """The registered operators by name."""
    current_platform.import_kernels()
    prefix = f"{NAMESPACE}::"
    return {
        schema.name.removeprefix(prefix): schema
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith(prefix)
    }


def test_what_every_model_computes_with_is_named_and_registered(
    schemas: dict[str, torch.FunctionSchema],
) -> None:
    needed = {"cpu_attention_with_kv_cache", "get_scheduler_metadata", "rms_norm", "silu_and_mul"}
    assert schemas.keys() >= needed
    assert {call.operator for call in calls()} >= needed


def test_every_call_of_a_registered_operator_fits_its_schema(
    schemas: dict[str, torch.FunctionSchema],
) -> None:
    known = [call for call in calls() if call.operator in schemas and call.is_whole]
    assert len(known) > 30
    misfits = [
        f"{call.where}: {call.operator} does not take these arguments: {schemas[call.operator]}"
        for call in known
        if call.operator not in CHANGED and not _fits(call, schemas[call.operator])
    ]
    assert not misfits, "\n".join(misfits)


def _fits(call: Call, schema: torch.FunctionSchema) -> bool:
    names = [argument.name for argument in schema.arguments]
    needed = {a.name for a in schema.arguments if not a.has_default_value()}
    given = set(names[: call.num_positional]) | call.keywords
    return call.num_positional <= len(names) and call.keywords <= set(names) and needed <= given
