"""A command line of ``vllm serve``, pasted as it is, and the deployment that it starts."""
