"""The command line and what stands behind it: nothing here is needed to serve.

What a user got wrong is a `HybridBlocksError` with one line, which `cli` prints before exit code 2.
"""
