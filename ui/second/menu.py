"""The choice of what to compare a path with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication, QMenu, QWidget

from ui.port import SecondChoice


def open_menu(under: QWidget, choices: Sequence[SecondChoice], chosen: Callable[[SecondChoice], None]) -> QMenu:
    """Shows what there is under a part of the bar; what cannot be had here says why.

    Args:
        under: That part.
        choices: The same model otherwise first, then others.
        chosen: Hears what was taken.
    """
    translate = QApplication.translate
    menu = QMenu(under)
    menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    menu.setLayoutDirection(QApplication.layoutDirection())  # not the chip's own
    menu.setAccessibleName(translate("Second", "Compare with"))
    head = menu.addAction(translate("Second", "Compare this path with"))
    head.setEnabled(False)
    own = choices[0].source if choices else ""
    for before, choice in zip((None, *choices), choices, strict=False):
        if before is not None and before.source == own != choice.source:
            menu.addSeparator()
        detail = " ".join((choice.problem or choice.detail).split())
        label = " ".join(choice.label.split())
        action = menu.addAction(f"{label}\t{detail}".strip().replace("&", "&&"))
        action.setEnabled(not choice.problem)
        action.triggered.connect(lambda _checked=False, choice=choice: chosen(choice))
    if not choices:
        menu.addAction(translate("Second", "nothing else is here: fetch another model first")).setEnabled(False)
    right = under.mapToGlobal(QPoint(under.width(), under.height() + 4))
    menu.popup(QPoint(right.x() - menu.sizeHint().width(), right.y()))
    return menu
