"""Level ``natural``: this project's geometry inside vLLM."""
