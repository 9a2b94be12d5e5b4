"""``python tests/view/page_images.py``: pictures of ``docs/view.md`` and of the README.

It takes them from the pages in ``build/pages``.
"""

from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
SHOWN = ("plan", "replay")
COLORS = 160


def main() -> None:
    """Write each screenshot with few colors, so that its file is small."""
    for name in SHOWN:
        with Image.open(ROOT / f"build/pages/{name}.png") as image:
            small = image.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
            small.save(ROOT / f"docs/images/page-{name}.png", optimize=True)


if __name__ == "__main__":
    main()
