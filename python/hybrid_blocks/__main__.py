"""``python -m hybrid_blocks``: the command without its script."""

from hybrid_blocks.tools.cli import app

if __name__ == "__main__":
    app()
