"""Text fields. Files pasted into a field or dropped on it go to its window, never as addresses into the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from PySide6.QtCore import QEvent, QMimeData, Qt
from PySide6.QtGui import (
    QAction,
    QClipboard,
    QContextMenuEvent,
    QDragEnterEvent,
    QGuiApplication,
    QKeyEvent,
    QKeySequence,
    QMouseEvent,
)
from PySide6.QtWidgets import QFileDialog, QLineEdit, QPlainTextEdit, QWidget


@runtime_checkable
class TakesFiles(Protocol):
    """A window that takes files."""

    def take_files(self, paths: Sequence[Path]) -> None:
        """Handles each file by its kind."""


def files_of(data: QMimeData | None) -> list[Path]:
    """The local files and folders in the data; none for text, web addresses or (None) an empty clipboard."""
    return [Path(url.toLocalFile()) for url in data.urls() if url.isLocalFile()] if data is not None and data.hasUrls() else []


def _hand_on(field: QWidget, files: Sequence[Path]) -> None:
    window: QWidget | None = field.window()
    while window is not None and not isinstance(window, TakesFiles):  # from a dialogue to its parent
        parent = window.parentWidget()
        window = None if parent is None else parent.window()
    if window is not None:
        window.take_files(files)


def _is_left(event: QEvent, *, can_undo: bool, can_redo: bool) -> bool:
    """Whether a key is an undo or redo that the field does not have: then it triggers the window's command."""
    if not isinstance(event, QKeyEvent) or event.type() is not QEvent.Type.ShortcutOverride:
        return False
    undoes, redoes = (event.matches(key) for key in (QKeySequence.StandardKey.Undo, QKeySequence.StandardKey.Redo))
    left = (undoes and not can_undo) or (redoes and not can_redo)
    if left:
        event.ignore()
    return left


def ask_for_file(owner: QWidget, title: str, chosen: Callable[[str], object], *, names: str = "", folder: bool = False) -> None:
    """Opens a dialogue for an existing file (`names`: filters of names) or a folder; `chosen` gets the path.

    The dialogue does not block the window, and deletes itself.
    """
    dialog = QFileDialog(owner, title)
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.setFileMode(QFileDialog.FileMode.Directory if folder else QFileDialog.FileMode.ExistingFile)
    dialog.setOption(QFileDialog.Option.ShowDirsOnly, folder)
    if names:
        dialog.setNameFilter(names)
    dialog.fileSelected.connect(chosen)
    dialog.open()


class TextField(QPlainTextEdit):
    """Lines of plain text."""

    def event(self, event: QEvent) -> bool:
        text = self.document()
        return not _is_left(event, can_undo=text.isUndoAvailable(), can_redo=text.isRedoAvailable()) and super().event(event)

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        """Accepts dropped text; dropped files are left to the window."""
        return source.hasText() and not files_of(source)

    def insertFromMimeData(self, source: QMimeData) -> None:
        files = files_of(source)
        if files:
            _hand_on(self, files)
        elif source.hasText():
            self.insertPlainText(source.text())


class LineEdit(QLineEdit):
    """One line of text."""

    def event(self, event: QEvent) -> bool:
        can_undo, can_redo = self.isUndoAvailable(), self.isRedoAvailable()
        return not _is_left(event, can_undo=can_undo, can_redo=can_redo) and super().event(event)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if files_of(event.mimeData()):
            event.ignore()  # Qt then asks the window
        else:
            super().dragEnterEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        files = files_of(QGuiApplication.clipboard().mimeData()) if event.matches(QKeySequence.StandardKey.Paste) else []
        if files:
            _hand_on(self, files)
        else:
            super().keyPressEvent(event)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        clipboard, middle = QGuiApplication.clipboard(), event.button() is Qt.MouseButton.MiddleButton
        pastes = middle and clipboard.supportsSelection()  # the selection, on X11
        files = files_of(clipboard.mimeData(QClipboard.Mode.Selection)) if pastes else []
        if files:
            _hand_on(self, files)
        else:
            super().mouseReleaseEvent(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        menu = self.createStandardContextMenu()
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        paste = menu.findChild(QAction, "edit-paste")
        if paste is not None and files_of(QGuiApplication.clipboard().mimeData()):
            paste.setEnabled(False)
        menu.popup(event.globalPos())
