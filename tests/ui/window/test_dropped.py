"""Files that are dropped anywhere on the window, or pasted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QContextMenuEvent, QDragEnterEvent, QDropEvent, QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLineEdit, QMenu, QPlainTextEdit, QWidget

from tests.ui.conftest import Scene, until
from tests.ui.fakes import FakeWorkbench
from ui import MainWindow
from ui.controller.setup import SYSTEM
from ui.sidebar.branch_tree import NameBox

Play = Callable[[Scene], None]
COPY, LEFT, PLAIN = Qt.DropAction.CopyAction, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier


def carried(*paths: Path) -> QMimeData:
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path)) for path in paths])
    return data


def drop(widget: QWidget, paths: Sequence[Path], text: str = "") -> bool:
    """Drops files onto a widget; whether the widget, or a parent of it, accepted them."""
    data, at = carried(*paths), QPointF(widget.rect().center())
    if text:
        data.setText(text)
    entered = QDragEnterEvent(at.toPoint(), COPY, data, LEFT, PLAIN)
    QApplication.sendEvent(widget, entered)
    if entered.isAccepted():
        QApplication.sendEvent(widget, QDropEvent(at, COPY, data, LEFT, PLAIN))
    return entered.isAccepted()


@pytest.mark.slow
def test_each_kind_of_dropped_file_is_handled_by_its_part_of_the_window(
    in_window: Play, bench: FakeWorkbench, tmp_path: Path
) -> None:
    notes, session, exported = tmp_path / "notes.md", tmp_path / "trip.elsewise", tmp_path / "trip.json"
    plain, picture, model, folder = (tmp_path / name for name in ("data.json", "cat.png", "tiny.gguf", "tiny"))
    notes.write_text("a note")
    exported.write_text('{"format": "elsewise.session", "version": 1}')
    plain.write_text('{"a": 1}')
    folder.mkdir()

    async def scene(window: MainWindow) -> None:
        parts = window.parts
        # on the message itself, and on any other part
        assert drop(parts.composer.field.viewport(), [notes])
        assert drop(parts.transcript.tokens.viewport(), [plain])
        await until(lambda: bench.asked("read_file") == [(str(notes),), (str(plain),)])
        assert parts.composer.draft == ""  # no file address is inserted as text
        for path in (session, exported):
            assert drop(parts.sidebar.sessions.view.viewport(), [path])
            await until(lambda: not parts.status.transfer.isVisible())
        assert [call[0] for call in bench.asked("import_file")] == [session, exported]
        assert drop(parts.inspector, [picture])
        assert parts.composer.notice.words == "cat.png: models here read text, not pictures"
        assert drop(parts.transcript.tokens.viewport(), [model])
        await until(lambda: window.settings.isVisible() and bool(bench.asked("plan_gguf")))
        window.settings.close()
        assert drop(parts.transcript.tokens.viewport(), [folder])
        await until(lambda: window.settings.isVisible() and bench.asked("add_model_folder") == [(folder,)])
        window.settings.close()

    in_window(scene)


def test_pasted_files_are_files_and_pasted_pictures_are_declined(in_window: Play, bench: FakeWorkbench, tmp_path: Path) -> None:
    notes, others = tmp_path / "notes.md", [tmp_path / "other" / name for name in ("notes.md", "one.bin", "two.bin")]
    notes.write_text("a note")
    others[0].parent.mkdir()
    for path, text in zip(others, ("another", "\0", "\0"), strict=True):
        path.write_text(text)

    async def scene(window: MainWindow) -> None:
        field, clipboard = window.parts.composer.field, QApplication.clipboard()
        window.activateWindow()
        await until(window.isActiveWindow)
        field.setFocus()
        clipboard.setMimeData(carried(notes))
        QTest.keyClick(field, Qt.Key.Key_V, Qt.KeyboardModifier.ControlModifier)
        await until(lambda: bench.asked("read_file") == [(str(notes),)])
        assert field.toPlainText() == ""
        # another file of the same name is attached too, and all files that cannot be are named
        clipboard.setMimeData(carried(*others))
        QTest.keyClick(field, Qt.Key.Key_V, Qt.KeyboardModifier.ControlModifier)
        await until(lambda: len(window.parts.composer.notice.words.splitlines()) == 2)
        assert [file.text for file in window.parts.composer.chips.files] == ["a note", "another"]
        window.parts.composer.notice.clear()
        picture = QMimeData()
        picture.setImageData(QImage(4, 4, QImage.Format.Format_RGB32))
        clipboard.setMimeData(picture)
        QTest.keyClick(field, Qt.Key.Key_V, Qt.KeyboardModifier.ControlModifier)
        assert window.parts.composer.notice.words == "a picture: models here read text, not pictures"
        # the address of a page is text
        page = QMimeData()
        page.setUrls([QUrl("https://example.org/page")])
        page.setText("https://example.org/page")
        clipboard.setMimeData(page)
        QTest.keyClick(field, Qt.Key.Key_V, Qt.KeyboardModifier.ControlModifier)
        assert field.toPlainText() == "https://example.org/page"
        clipboard.clear()

    in_window(scene)


def test_no_field_inserts_the_address_of_a_dropped_or_pasted_file(
    in_window: Play, bench: FakeWorkbench, tmp_path: Path
) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("a note")

    async def scene(window: MainWindow) -> None:
        clipboard, asked = QApplication.clipboard(), 0

        def all_are_read() -> bool:
            return len(bench.asked("read_file")) == asked

        window.activateWindow()
        await until(window.isActiveWindow)
        window.popover.open(SYSTEM)
        window.intents.rename()
        rename = window.parts.sidebar.sessions.view.findChild(QLineEdit)
        assert rename is not None
        tree = window.parts.sidebar.tree
        await until(lambda: tree.rows.rowCount() > 1)
        tree.ask_name(tree.rows.rows[1])
        box = tree.findChild(NameBox)
        assert isinstance(box, NameBox)
        parts = window.parts
        for field in (rename, parts.finder.field, parts.sidebar.sessions.search, window.popover.system.system, box.field):
            said = field.property("text") or field.property("plainText")
            data = carried(notes)
            data.setText(QUrl.fromLocalFile(str(notes)).toString())  # as file managers add it
            clipboard.setMimeData(data)
            QTest.keyClick(field, Qt.Key.Key_V, Qt.KeyboardModifier.ControlModifier)
            target = field.viewport() if isinstance(field, QPlainTextEdit) else field
            if field is box.field:  # a box over the window accepts no drops
                assert not drop(target, [notes], data.text())
                asked -= 1
            else:
                assert drop(target, [notes], data.text())
            assert (field.property("text") or field.property("plainText")) == said
            asked += 2
            await until(all_are_read)
        clipboard.clear()

    in_window(scene)


def test_pasting_into_a_line_edit_works_with_an_empty_clipboard(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        search = window.parts.sidebar.sessions.search
        QApplication.clipboard().clear()
        QTest.keyClick(search, Qt.Key.Key_V, Qt.KeyboardModifier.ControlModifier)
        at = search.rect().center()
        QApplication.sendEvent(search, QContextMenuEvent(QContextMenuEvent.Reason.Mouse, at, search.mapToGlobal(at)))
        menu = QApplication.activePopupWidget()
        assert isinstance(menu, QMenu)
        menu.close()

    in_window(scene)
