"""The documentation: its pages beside the list of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices, QImage, QResizeEvent, QTextDocument
from PySide6.QtWidgets import QDialog, QListWidget, QListWidgetItem, QSplitter, QTextBrowser, QVBoxLayout, QWidget

from resources.documentation import FIRST, documentation, pages
from ui.widgets.controls import button, row

MARGIN = 24  # pixels around a page
FILE = Qt.ItemDataRole.UserRole


class Page(QTextBrowser):
    """A page. Links within the documentation are followed, those to the web given to the system; pictures fit its width."""

    def __init__(self, folder: Path, parent: QWidget) -> None:
        super().__init__(parent)
        self._folder = folder
        self.setOpenLinks(False)
        self.anchorClicked.connect(self._follow)
        self.document().setDocumentMargin(MARGIN)

    def show_page(self, file: Path, place: str = "") -> None:
        """Shows a page from its beginning, or from a heading."""
        url = QUrl.fromLocalFile(str(file))
        url.setFragment(place)
        self.setSource(url, QTextDocument.ResourceType.MarkdownResource)

    def loadResource(self, kind: int, name: QUrl | str) -> Any:
        """A picture no wider than the page; files outside the documentation are not read."""
        url = self.source().resolved(name)
        if not url.isLocalFile() or not Path(url.toLocalFile()).resolve().is_relative_to(self._folder.resolve()):
            return None
        if kind != QTextDocument.ResourceType.ImageResource.value:
            return super().loadResource(kind, name)
        picture = QImage(url.toLocalFile())
        room = self.viewport().width() - 2 * MARGIN
        return (
            picture.scaledToWidth(room, Qt.TransformationMode.SmoothTransformation) if picture.width() > room > 0 else picture
        )

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Pictures fit again."""
        wider = event.oldSize().width() != event.size().width()
        super().resizeEvent(event)
        if wider and self.source().isValid():
            place = self.verticalScrollBar().value()
            self.reload()
            self.verticalScrollBar().setValue(place)

    def _follow(self, link: QUrl) -> None:
        url = self.source().resolved(link)
        file = Path(url.toLocalFile())
        if not url.isLocalFile():
            QDesktopServices.openUrl(url)
        elif file.suffix == ".md" and file.resolve().is_relative_to(self._folder.resolve()):
            self.show_page(file, url.fragment())


class DocumentationBox(QDialog):
    """Open it with `open()`; it deletes itself.

    Args:
        parent: The window that it stands over.
    """

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Documentation"))
        self.resize(min(980, parent.width()), min(720, parent.height()))
        folder = documentation()
        self.list = QListWidget()
        self.list.setAccessibleName(self.tr("Pages"))
        self.page = Page(folder or Path(), self)
        self.page.setAccessibleName(self.tr("Page"))
        both = QSplitter()
        both.addWidget(self.list)
        both.addWidget(self.page)
        both.setSizes([240, 740])
        both.setStretchFactor(1, 1)
        back, close = button(self.tr("Back")), button(self.tr("Close"))
        back.clicked.connect(self.page.backward)
        back.setEnabled(False)
        self.page.backwardAvailable.connect(back.setEnabled)
        close.clicked.connect(self.close)
        column = QVBoxLayout(self)
        column.addWidget(both, 1)
        column.addLayout(row(back, 1, close))
        self.list.currentItemChanged.connect(self._show)
        self.page.sourceChanged.connect(self._mark)
        if folder is None:
            self.page.setPlainText(self.tr("The documentation was not installed with this app."))
            return
        for title, file in pages(folder):
            item = QListWidgetItem(title, self.list)
            item.setData(FILE, str(file))
        self.page.show_page(folder / FIRST)

    def _show(self, item: QListWidgetItem | None) -> None:
        if item is not None and item.data(FILE) != self.page.source().toLocalFile():
            self.page.show_page(Path(item.data(FILE)))

    def _mark(self, url: QUrl) -> None:
        """The page that is shown is the chosen one of the list, however it was reached."""
        shown = url.toLocalFile()
        for item in (self.list.item(at) for at in range(self.list.count())):
            if item.data(FILE) == shown:
                self.list.setCurrentItem(item)
