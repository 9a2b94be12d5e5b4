"""Where the time of a scheduler step goes: vLLM's real ``Scheduler`` without a model."""
