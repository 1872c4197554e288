"""The documentation: a list of pages, and the page shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, QUrl, Signal
from PySide6.QtGui import QDesktopServices, QImage, QResizeEvent, QTextDocument
from PySide6.QtWidgets import QDialog, QFrame, QListWidget, QListWidgetItem, QSplitter, QTextBrowser, QVBoxLayout, QWidget

from resources.documentation import FIRST, documentation, pages
from ui.theme.scheme import current_theme
from ui.transcript.read_mode.document import fill_page
from ui.transcript.text.faces import Faces
from ui.widgets.controls import button, fill, row
from ui.widgets.labels import Notice, plain_tooltip

MARGIN = 24  # pixels around a page
LIST_WIDTH = 240
FILE = Qt.ItemDataRole.UserRole


class DocumentationPage(QTextBrowser):
    """Shows a page. Links within the documentation are followed, others are opened by the system; pictures fit the width."""

    shown = Signal(object)  # Path: its file
    can_go_back = Signal(bool)
    missing = Signal(str)  # the name of a linked file that is not a page of the documentation

    def __init__(self, folder: Path, parent: QWidget) -> None:
        super().__init__(parent)
        self._folder = folder
        self.file: Path | None = None  # of the page shown
        self._past: list[tuple[Path, int]] = []  # former pages, with their scroll positions
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setOpenLinks(False)
        self.anchorClicked.connect(self._follow)
        for news in (current_theme().changed, current_theme().scaled):
            news.connect(self._refresh)

    def show_page(self, file: Path) -> None:
        """Shows a page from its beginning."""
        if self.file is not None:
            self._past.append((self.file, self.verticalScrollBar().value()))
        self._show(file, 0)

    def go_back(self) -> None:
        """Shows the previous page, at its scroll position."""
        if self._past:
            self._show(*self._past.pop())

    def loadResource(self, kind: int, name: QUrl | str) -> Any:
        """A picture no wider than the page; files outside the documentation are not read."""
        file = self._within(QUrl(name))
        if file is None or kind != QTextDocument.ResourceType.ImageResource.value:
            return None
        picture, room = QImage(str(file)), self._room()
        return (
            picture.scaledToWidth(room, Qt.TransformationMode.SmoothTransformation) if picture.width() > room > 0 else picture
        )

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Fits the pictures to the new width."""
        super().resizeEvent(event)
        if event.oldSize().width() != event.size().width():
            self._refresh()

    def _room(self) -> int:
        return self.viewport().width() - 2 * MARGIN

    def _refresh(self, _news: object = None) -> None:
        if self.file is not None:
            self._show(self.file, self.verticalScrollBar().value())

    def _show(self, file: Path, scrolled: int) -> None:
        self.file = file
        page = QTextDocument(self)  # a new one: in one that was used, Qt gives text the type of the heading that stood there
        fill_page(page, file.read_text("utf-8"), Faces(), current_theme().palette, self._room())
        page.setDocumentMargin(MARGIN)
        self.setDocument(page)
        self.verticalScrollBar().setValue(scrolled)
        self.shown.emit(file)
        self.can_go_back.emit(bool(self._past))

    def _within(self, url: QUrl) -> Path | None:
        """The file that a link of the page leads to; None outside the documentation."""
        if not url.isRelative() or self.file is None:
            return None
        file = (self.file.parent / url.path()).resolve()
        return file if file.is_relative_to(self._folder.resolve()) else None

    def _follow(self, link: QUrl) -> None:
        file = self._within(link)
        if not link.isRelative():
            QDesktopServices.openUrl(link)
        elif file is not None and file.suffix == ".md" and file.is_file():
            self.show_page(file)
        elif link.path():  # else an anchor in the page itself
            self.missing.emit(link.fileName())


class DocumentationBox(QDialog):
    """Open it with `open()`; it deletes itself.

    Args:
        parent: The window below it.
    """

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Documentation"))
        self.resize(min(980, parent.width()), min(720, parent.height()))
        folder = found.resolve() if (found := documentation()) else None
        self.list = QListWidget()
        self.list.setObjectName("pages")
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)  # long titles are cut
        self.list.setAccessibleName(self.tr("Pages"))
        self.page = DocumentationPage(folder or Path(), self)
        self.page.setAccessibleName(self.tr("Page"))
        self.note = Notice()
        both = QSplitter()
        both.addWidget(self.list)
        both.addWidget(self.page)
        both.setSizes([LIST_WIDTH, self.width() - LIST_WIDTH])
        both.setStretchFactor(1, 1)
        back, close = button(self.tr("Back")), button(self.tr("Close"))
        back.clicked.connect(self.page.go_back)
        back.setEnabled(False)
        self.page.can_go_back.connect(back.setEnabled)
        close.clicked.connect(self.close)
        fill(QVBoxLayout(self), (both, 1), self.note, row(back, 1, close))
        self.list.currentItemChanged.connect(self._show)
        self.page.shown.connect(self._mark)
        self.page.missing.connect(self._say_missing)
        if folder is None:
            self.page.setPlainText(self.tr("The documentation was not installed with this app."))
            return
        for title, file in pages(folder):
            item = QListWidgetItem(title, self.list)
            item.setToolTip(plain_tooltip(title))
            item.setData(FILE, file)
        self.page.show_page(folder / FIRST)

    def _show(self, item: QListWidgetItem | None) -> None:
        self.note.clear()
        if item is not None and item.data(FILE) != self.page.file:
            self.page.show_page(item.data(FILE))

    def _say_missing(self, name: str) -> None:
        self.note.say(self.tr("{0} is not shown here: it comes with the source code").format(name))

    def _mark(self, file: Path) -> None:
        """Selects the page shown in the list."""
        for item in (self.list.item(at) for at in range(self.list.count())):
            if item.data(FILE) == file:
                self.list.setCurrentItem(item)
