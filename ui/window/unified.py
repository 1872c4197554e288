"""The bar as the window's toolbar, which macOS draws as one with the title."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QMainWindow, QToolBar, QWidget


def unify(window: QMainWindow, bar: QWidget) -> None:
    """Puts `bar` over everything else of the window; it cannot be moved, floated or hidden."""
    toolbar = QToolBar(window)
    toolbar.setObjectName("unified")
    toolbar.setMovable(False)
    toolbar.setFloatable(False)
    toolbar.toggleViewAction().setEnabled(False)
    toolbar.setContextMenuPolicy(Qt.ContextMenuPolicy.PreventContextMenu)
    layout = toolbar.layout()
    if layout is not None:
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
    toolbar.addWidget(bar)
    window.addToolBar(Qt.ToolBarArea.TopToolBarArea, toolbar)
    window.setContextMenuPolicy(Qt.ContextMenuPolicy.NoContextMenu)  # the window's own would offer to hide it
    window.setUnifiedTitleAndToolBarOnMac(True)
