"""Lets a benchmark import the loads of the tests, and what they plan a model with."""

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[2] / "tests"
sys.path += [str(_TESTS / name) for name in ("", "plan", "shadow", "vllm")]
