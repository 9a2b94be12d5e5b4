"""``python tests/view/page_images.py``: pictures of ``docs/view.md``, from ``build/pages``."""

from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
COLORS = 160


def main() -> None:
    """Write each screenshot with few colors, so that its file is small."""
    for path in sorted((ROOT / "build/pages").glob("*.png")):
        with Image.open(path) as image:
            small = image.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
            small.save(ROOT / f"docs/images/page-{path.name}", optimize=True)


if __name__ == "__main__":
    main()
