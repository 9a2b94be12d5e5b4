"""The command line and what stands behind it: nothing here is needed to serve."""
