#!/usr/bin/env python3
"""Pictures of a profile's HTML report, as wide as a desktop and as a phone. Needs Chromium and Pillow.

python tools/picture_report.py REPORT.html PREFIX     # writes PREFIX-desktop.png and PREFIX-phone.png
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from headless_browser import NAMES, Browser, find_browser

WIDTHS = {"desktop": 1280, "phone": 390}
COLORS = 128  # of a palette, which makes the files a third as large


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("prefix", type=Path)
    arguments = parser.parse_args()
    try:
        from PIL import Image
    except ImportError:
        sys.exit("Pillow is not installed: pip install pillow")
    if find_browser() is None:
        sys.exit(f"none of {', '.join(NAMES)} is installed")
    with Browser() as browser, tempfile.TemporaryDirectory() as folder:
        for name, width in WIDTHS.items():
            page = browser.open(arguments.report, width)
            page.picture(Path(folder) / "page.png")
            path = arguments.prefix.with_name(f"{arguments.prefix.name}-{name}.png")
            with Image.open(Path(folder) / "page.png") as image:
                few = image.convert("RGB").quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
                few.save(path, optimize=True)
            print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
