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
from ui.theme.fonts import mono_font

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


@pytest.mark.slow
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


def test_links_between_pages_are_followed_and_web_links_open_in_the_system_browser(
    in_window: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: asked.append(url.toString()))

    def look(box: DocumentationBox) -> None:
        assert DOCS is not None
        box.page.anchorClicked.emit(QUrl("python/quickstart.md"))
        assert box.page.toPlainText().strip().startswith("Python: quickstart")
        assert box.list.currentItem().text() == "Python: quickstart"
        box.page.anchorClicked.emit(QUrl("../../SECURITY.md"))  # not among the pages
        assert box.note.words == "SECURITY.md is not shown here: it comes with the source code"
        box.page.anchorClicked.emit(QUrl("../notebooks/layers.ipynb"))
        assert box.note.words.startswith("layers.ipynb ")
        box.page.anchorClicked.emit(QUrl("https://example.org/"))
        assert box.page.toPlainText().strip().startswith("Python: quickstart")
        assert asked == ["https://example.org/"]
        box.page.go_back()
        assert box.list.currentItem().text() == "A tour of the window"
        assert box.note.words == ""

    in_documentation(in_window, look)


@pytest.mark.slow
def test_text_is_smaller_than_headings_and_code_has_its_own_face_on_every_page(in_window: Play) -> None:
    def look(box: DocumentationBox) -> None:
        for at in range(box.list.count()):
            box.list.setCurrentRow(at)
            sizes, block = dict[str, set[float]](), box.page.document().begin()
            while block.isValid():
                kind = "heading" if block.blockFormat().headingLevel() else "text"
                for fragment in [each.fragment() for each in block]:  # type: ignore[attr-defined]  # iterable, the stubs miss it
                    font = fragment.charFormat().font()
                    kind = "code" if font.families()[:1] == mono_font().families()[:1] else kind
                    sizes.setdefault(kind, set()).add(font.pointSizeF())
                block = block.next()
            assert max(sizes["text"]) < max(sizes["heading"]), box.list.item(at).text()
            assert sizes.get("code", sizes["text"]) != sizes["heading"], box.list.item(at).text()
        assert DOCS is not None
        commands = [line for line in (DOCS / "cli.md").read_text("utf-8").splitlines() if line.startswith("elsewise ")]
        box.page.show_page(DOCS / "cli.md")
        longest = box.page.document().find(max(commands, key=len)).block()
        assert (longest.layout().lineCount(), box.page.horizontalScrollBar().maximum() > 0) == (1, True)

    in_documentation(in_window, look)


def test_pictures_fit_and_files_elsewhere_are_not_read(in_window: Play, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes((DOCS / "tokens.png").read_bytes() if DOCS is not None else b"")

    def look(box: DocumentationBox) -> None:
        picture = box.page.loadResource(QTextDocument.ResourceType.ImageResource.value, QUrl("tokens.png"))
        assert 0 < picture.width() < box.page.viewport().width()
        kind = QTextDocument.ResourceType.ImageResource.value
        for outside in (QUrl.fromLocalFile(str(tmp_path / "a.png")), QUrl("https://example.org/a.png"), QUrl("../a.png")):
            assert box.page.loadResource(kind, outside) is None

    in_documentation(in_window, look)
