"""The figures that an engine with the plugin shows on ``/metrics``, by name. Imports no vLLM."""
