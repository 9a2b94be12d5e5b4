"""Text that an operator pastes: a command of vLLM's server, or the log of an engine's start."""
