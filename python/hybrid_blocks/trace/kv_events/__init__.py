"""KV events of an engine without the plugin: recorded without tokens, and read as requests."""
