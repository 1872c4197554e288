"""Pictures of the window with a model on a server: ``python -m tests.tools.server_scenes FOLDER NAME URL``."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.workbench import AppWorkbench
from runtime.loading.paths import models_dir
from tests.tools.more_scenes import keep, new_session, said, settled, until
from tests.tools.screenshots import answers, pin, surprising, take
from ui import MainWindow, Scheme
from ui.controller.setup import FORM, MODEL, SAMPLING
from ui.theme import current_theme

QUESTION = "Why is the sky blue? Answer in two sentences."


@contextmanager
def shelf_of_links() -> Iterator[None]:
    """The models of this machine without its connections: connections made for the pictures are not saved."""
    with tempfile.TemporaryDirectory() as scratch:
        for entry in models_dir().iterdir():
            if entry.is_dir():
                (Path(scratch) / entry.name).symlink_to(entry)
        with patch.dict(os.environ, {"ELSEWISE_MODELS": scratch}):
            yield


async def connecting(server: str, url: str, window: MainWindow, workbench: AppWorkbench, folder: Path, name: str) -> None:
    """The form during the request to the server, and the list with the model of the server."""
    await workbench.settings.change("scheme", "dark" if current_theme().palette.dark else "light")
    window.settings.open_models()
    page = window.settings.models
    await until(lambda: bool(page.models))
    page.server_button.click()
    await settled(window)
    page.server_form.url.setText(url)
    page.server_form.name.setText(server)
    page.server_form.connect_button.click()
    keep(window.settings, folder / f"{name}-asking.png")
    await until(lambda: server in page.models)
    await settled(window)
    keep(window.settings, folder / f"{name}-listed.png")


async def chat(window: MainWindow, _: AppWorkbench, folder: Path, name: str) -> None:
    """A coloured answer, a branch of it, why its token was drawn, and the features that a server lacks."""
    await new_session(window, max_tokens=60, seed=3)
    await said(window, QUESTION)
    turn = answers(window)[-1]
    pin(window, turn.node_id, surprising(turn))
    await settled(window)
    keep(window, folder / f"{name}-chat.png")
    inspector = window.parts.inspector
    taken = next(each for each in inspector.token.alternatives.buttons if each.isEnabled())
    QTest.mouseClick(taken, Qt.MouseButton.LeftButton)
    await until(lambda: answers(window)[-1].node_id != turn.node_id and not window.controller.running)
    await settled(window)
    keep(window, folder / f"{name}-branch.png")
    branch = answers(window)[-1]
    pin(window, branch.node_id, surprising(branch))
    QTest.mouseClick(inspector.tabs[3], Qt.MouseButton.LeftButton)
    await settled(window)
    keep(window, folder / f"{name}-why.png")
    for place, tab in enumerate(inspector.tabs):
        if place not in (0, 3) and tab.isVisible():
            QTest.mouseClick(tab, Qt.MouseButton.LeftButton)
            await settled(window)
            keep(window, folder / f"{name}-tab{place}.png")


async def lacking(window: MainWindow, workbench: AppWorkbench, folder: Path, name: str) -> None:
    """The settings of a session, with notes on the features that the server lacks."""
    await until(lambda: bool(workbench.status.model))
    window.acts.setup.trigger()
    await until(lambda: window.popover.model.name.text() == workbench.status.model)
    for page in (MODEL, SAMPLING, FORM):
        window.popover.show_page(page)
        await settled(window)
        keep(window, folder / f"{name}-lacks{page}.png")


def main() -> None:
    """Writes the pictures into the given folder."""
    folder, server, url = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    folder.mkdir(parents=True, exist_ok=True)
    application = QApplication(["elsewise"])
    application.setQuitOnLastWindowClosed(False)
    for scheme in (Scheme.LIGHT, Scheme.DARK):
        name = f"{server}-{scheme.value}"
        with shelf_of_links():
            take(application, folder, name, scheme, partial(connecting, server, url), demo=False)
            take(application, folder, name, scheme, chat, lacking, model=server, demo=False)


if __name__ == "__main__":
    main()
