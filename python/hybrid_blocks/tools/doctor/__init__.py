"""How far an engine of vLLM gets with the plugin: constructed without weights, and asked."""
