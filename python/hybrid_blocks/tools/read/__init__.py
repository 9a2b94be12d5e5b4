"""Commands and logs of an engine, read as a model and its deployment."""
