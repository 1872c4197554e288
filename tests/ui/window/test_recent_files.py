"""Import Recent: files that were imported or exported, in the menu and over a restart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from PySide6.QtGui import QAction

from app.workbench.transfer.exports import EXPORTS
from tests.ui.conftest import Scene, until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import MainWindow, WindowState
from ui.commands.menu import known_paths
from ui.window.transfers import MOST_RECENT

Play = Callable[[Scene], None]


def is_first(window: MainWindow, path: Path) -> bool:
    return window.transfers.recent[:1] == [path]


def opened(window: MainWindow) -> list[QAction]:
    window.acts.recent.aboutToShow.emit()
    return [action for action in window.acts.recent.actions() if not action.isSeparator()]


def test_a_file_is_imported_again_from_the_menu(in_window: Play, bench: FakeWorkbench, tmp_path: Path) -> None:
    first, second = tmp_path / "a & b.json", tmp_path / "gone.json"
    first.write_text("[]")

    async def scene(window: MainWindow) -> None:
        assert [(action.text(), action.isEnabled()) for action in opened(window)] == [("No recent files", False)]
        for path in (first, second):
            window.transfers.take(path)
            await until(partial(is_first, window, path))
            await until(lambda: not window.parts.status.transfer.isVisible())
        # then the last file is first, a missing file cannot be chosen, and no letter is a mnemonic
        gone, here, clear = opened(window)
        assert (gone.isEnabled(), here.isEnabled()) == (False, True)
        assert here.text().startswith("a && b.json – ")
        here.trigger()
        await until(lambda: len(bench.asked("import_file")) == 3)
        await until(lambda: window.transfers.recent == [first, second])
        # and the saved window state contains them
        assert window.state().recent == (str(first), str(second))
        clear.trigger()
        assert [action.text() for action in opened(window)] == ["No recent files"]
        await until(lambda: not window.parts.status.transfer.isVisible())

    in_window(scene)


@pytest.mark.slow
def test_exports_in_importable_formats_are_listed_as_recent(in_window: Play, tmp_path: Path) -> None:
    async def scene(window: MainWindow) -> None:
        for form in (exporter.format for exporter in EXPORTS):
            window.transfers.export(TRIP, form, tmp_path / f"x.{form.ending}")
            await until(lambda: not window.parts.status.transfer.isVisible())
        names = [path.name for path in window.transfers.recent]
        assert names == ["x.kv.elsewise", "x.elsewise", "x.json"]
        for number in range(2 * MOST_RECENT):
            window.transfers.take(tmp_path / f"{number}.json")
            await until(lambda: not window.parts.status.transfer.isVisible())
        assert len(window.transfers.recent) == MOST_RECENT

    in_window(scene)


@pytest.mark.parametrize(("held", "known"), [(["/a", 3, "/b"], ["/a", "/b"]), (None, []), ("/a", []), ((), [])])
def test_recent_files_that_another_version_saved_in_another_form_are_ignored(held: object, known: list[str]) -> None:
    assert known_paths(held) == [Path(each) for each in known]
    assert WindowState().recent == ()
