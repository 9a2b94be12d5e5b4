"""Lets a benchmark import the card of the tests, and the fields of models."""

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[2] / "tests"
sys.path += [str(_TESTS / name) for name in ("", "architectures", "plan", "vllm", "e2e")]
