"""The documentation: Markdown pages and their pictures, as they stand in `docs` of the source."""

from __future__ import annotations

import sys
from pathlib import Path

FIRST = "tour.md"


def documentation() -> Path | None:
    """Its folder: beside the source and in an app, or where a wheel puts it; None where it was not installed."""
    beside = Path(__file__).parents[1] / "docs"
    installed = Path(sys.prefix) / "share" / "elsewise" / "docs"
    return next((folder for folder in (beside, installed) if (folder / FIRST).is_file()), None)


def pages(folder: Path) -> list[tuple[str, Path]]:
    """The title of each page and its file: the tour, then the others by title, those in folders last."""
    found = [(_title(file), file) for file in sorted(folder.rglob("*.md"))]
    return sorted(found, key=lambda page: (page[1] != folder / FIRST, page[1].parent != folder, page[0].casefold()))


def _title(file: Path) -> str:
    with file.open(encoding="utf-8") as lines:
        return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), file.stem)
