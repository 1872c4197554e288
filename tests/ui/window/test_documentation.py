"""*Help > Documentation*: every page, the links between them, and nothing outside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices, QTextDocument
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QDialog

from resources.documentation import documentation, pages
from tests.ui.window.test_habits import Play, laid_out
from ui import MainWindow
from ui.commands.documentation import DocumentationBox

DOCS = documentation()


def in_documentation(in_window: Play, look: Callable[[DocumentationBox], None]) -> None:
    async def scene(window: MainWindow) -> None:
        await laid_out(window)
        QTest.keyClick(window, Qt.Key.Key_F1)
        [box] = [each for each in window.findChildren(QDialog) if each.isVisible()]
        assert isinstance(box, DocumentationBox)
        look(box)
        QTest.keyClick(box, Qt.Key.Key_Escape)
        assert not box.isVisible()

    in_window(scene)


def test_every_page_is_shown(in_window: Play) -> None:
    assert DOCS is not None
    titles = [title for title, _ in pages(DOCS)]
    assert titles[0] == "A tour of the window"
    assert len(titles) == len(list(DOCS.rglob("*.md"))) == len(set(titles))

    def look(box: DocumentationBox) -> None:
        for at, title in enumerate(titles):
            box.list.setCurrentRow(at)
            assert box.page.toPlainText().strip().startswith(title)

    in_documentation(in_window, look)


def test_links_are_followed_and_those_to_the_web_left_to_the_system(in_window: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: asked.append(url.toString()))

    def look(box: DocumentationBox) -> None:
        assert DOCS is not None
        box.page.anchorClicked.emit(QUrl("python/quickstart.md"))
        assert box.page.toPlainText().strip().startswith("Python: quickstart")
        assert box.list.currentItem().text() == "Python: quickstart"
        box.page.anchorClicked.emit(QUrl("../../SECURITY.md"))  # not among the pages
        box.page.anchorClicked.emit(QUrl("https://example.org/"))
        assert box.page.toPlainText().strip().startswith("Python: quickstart")
        assert asked == ["https://example.org/"]
        box.page.backward()
        assert box.list.currentItem().text() == "A tour of the window"

    in_documentation(in_window, look)


def test_pictures_fit_and_files_elsewhere_are_not_read(in_window: Play, tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Elsewhere")

    def look(box: DocumentationBox) -> None:
        picture = box.page.loadResource(QTextDocument.ResourceType.ImageResource.value, QUrl("tokens.png"))
        assert 0 < picture.width() < box.page.viewport().width()
        kind = QTextDocument.ResourceType.MarkdownResource.value
        for elsewhere in (QUrl.fromLocalFile(str(tmp_path / "other.md")), QUrl("https://example.org/a.md")):
            assert box.page.loadResource(kind, elsewhere) is None

    in_documentation(in_window, look)
