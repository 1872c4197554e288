"""Draws parts of the window into pictures: `python -m tests.ui.dense FOLDER`, at the scale of QT_SCALE_FACTOR."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")  # before PySide6 is imported

from PySide6.QtWidgets import QApplication, QWidget

from benchmarks.children.view import append, empty_view, made_runs
from ui import Scheme, apply_theme
from ui.inspector.alternatives import Alternative, AlternativeList
from ui.widgets.labels import IconButton

PARTS = ("tokens", "icon", "bars")


def main() -> None:
    """Saves each part as `NAME.png` in the folder."""
    folder = Path(sys.argv[1])
    application = QApplication(["dense"])
    apply_theme(application, Scheme.LIGHT)
    draw(folder)


def draw(folder: Path) -> None:
    """Draws the parts into a folder, with the running application."""
    view = empty_view()
    append(view, made_runs(120, 40))
    icon, bars = IconButton("plus", "icon"), AlternativeList()
    shares = (1.0, 0.63, 0.31, 0.07)
    rows = [Alternative(i, b" word", -1.0 - i, i + 1, share, i == 1) for i, share in enumerate(shares)]
    bars.show_alternatives(rows, can_choose=True)
    bars.resize(300, 26 * len(rows))
    icon.show()
    bars.show()
    parts: dict[str, QWidget] = {"tokens": view.tokens.viewport(), "icon": icon, "bars": bars}
    for name, part in parts.items():
        QApplication.processEvents()
        part.grab().save(str(folder / f"{name}.png"))
    for top in (view, icon, bars):
        top.close()
        top.deleteLater()


if __name__ == "__main__":
    main()
