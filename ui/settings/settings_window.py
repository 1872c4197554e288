"""The settings window: non-modal, a page per subject, every change stored at once."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QComboBox, QSpinBox, QWidget

from ui.controller import Controller
from ui.models.page import ModelsPage
from ui.port import SettingsView
from ui.settings.data_page import DataPage
from ui.settings.rows import COLOURS, OWN_TEMPLATE, PAGES, SettingRows
from ui.settings.server_page import ServerPage
from ui.transcript.measure import Measure
from ui.widgets.controls import Page, column_in
from ui.widgets.fields import ask_for_file
from ui.widgets.labels import Notice
from ui.widgets.tabs import Tabs

MODELS, ENGINE, MEMORY, GENERATION, APPEARANCE, DATA, SERVER = range(7)  # pages


class SettingsWindow(QWidget):
    """Shows a `SettingsView` and asks for changes.

    Args:
        controller: Runs the tasks.
        parent: The window it belongs to.
    """

    shown = Signal(object)  # SettingsView now in force
    colours_wanted = Signal(object)  # Measure

    def __init__(self, controller: Controller, parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Window)
        self.setObjectName("settings")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setWindowTitle(self.tr("Settings"))
        self.resize(720, 620)
        self.setMinimumSize(420, 320)
        self._controller, self._workbench = controller, controller.workbench
        self.notice = Notice()
        self.reload = Notice()
        self._needs_reload = False  # as last shown
        self.reload.acted.connect(lambda: self._run(self._reload()))
        self.models = ModelsPage(controller.shelf)
        self.engine, self.memory, self.generation, self.appearance = (SettingRows(page, self._change) for page in PAGES)
        self.data = DataPage(self._workbench, self._run)
        self.data.refused.connect(self.notice.say)
        self.server = ServerPage(self._workbench, self._run)
        controller.status_changed.connect(self.server.show_state)
        self._pages = Tabs((16, 12, 16, 0), 18)
        self.tabs, self.show_page = self._pages.buttons, self._pages.show_page
        self._lay_out()

    def open(self, page: int | None = None) -> None:
        """Opens the window or brings it to the front, at a page or at the last one."""
        self.notice.clear()
        self._needs_reload = False
        self._run(self._show(None))
        self.show()
        self.raise_()
        self.activateWindow()
        if page is not None:
            self.show_page(page)
        self.tabs[self._pages.stack.currentIndex()].setFocus()
        self.models.open(get=False)

    def open_models(self, *, get: bool = False) -> None:
        """Opens the page of models; with `get` the field for new models has the focus."""
        self.open(MODELS)
        self.models.open(get=get)

    def show_settings(self, view: SettingsView, *, keep: QWidget | None = None) -> None:
        """Shows the settings in force; the field `keep` is not touched."""
        for rows in (self.engine, self.memory, self.generation, self.appearance):
            rows.show_settings(view, keep=keep)
        self.server.show_state()
        if view.data is not None:
            self.data.show_data(view.data)
        if view.needs_reload and not self._needs_reload:  # once, for it may be dismissed
            self.reload.say(self.tr("The model that runs was loaded with other settings."), self.tr("Reload now"))
        elif not view.needs_reload:
            self.reload.clear()
        self._needs_reload = view.needs_reload

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.close()
        else:
            super().keyPressEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        """Reads the settings again, for another window may have changed them."""
        super().changeEvent(event)
        if event.type() is QEvent.Type.ActivationChange and self.isActiveWindow():
            self._run(self._follow())

    # ---- pages --------------------------------------------------------------------------------------------------------

    def _page(self, title: str, rows: SettingRows) -> Page:
        page = Page()
        page.section(title, rows, 1)
        return page

    def _lay_out(self) -> None:
        for title, page in (
            (self.tr("Models"), self.models),
            (self.tr("Engine"), self._page(self.tr("Engine and device"), self.engine)),
            (self.tr("Memory"), self._page(self.tr("Memory"), self.memory)),
            (self.tr("Generation"), self._page(self.tr("Generation"), self.generation)),
            (self.tr("Appearance"), self._page(self.tr("Appearance"), self.appearance)),
            (self.tr("Data"), self.data),
            (self.tr("Server"), self.server),
        ):
            self._pages.add(title, page)
        column_in(self, self._pages, (self._pages.stack, 1), self.reload, self.notice, spacing=0)

    # ---- changes ------------------------------------------------------------------------------------------------------

    def _choose_template(self) -> None:
        """Opens the dialogue for a template file; the row shows the setting in force until one is chosen."""
        self._run(self._show(None))
        title = self.tr("Choose a chat template (jinja2)")
        ask_for_file(self, title, lambda path: self._change("chat_template_file", path))

    def _change(self, name: str, value: object) -> None:
        if name == "chat_format" and value == OWN_TEMPLATE:
            self._choose_template()
            return
        if name == "chat_format" and Path(str(value)).is_absolute():
            name = "chat_template_file"
        if name == COLOURS:
            self.colours_wanted.emit(Measure(str(value)))
            return
        self.notice.clear()
        self._run(self._show((name, value)))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._controller.tasks.run(work, self.notice.say)

    async def _show(self, change: tuple[str, object] | None) -> None:
        try:
            view = await (self._workbench.settings.view() if change is None else self._workbench.settings.change(*change))
        except Exception:
            self.show_settings(await self._workbench.settings.view())  # the fields go back to the settings in force
            raise
        self.show_settings(view)
        if view.notes:
            self.notice.say("\n".join(view.notes))
        self.shown.emit(view)

    async def _follow(self) -> None:
        """Shows changes by other windows, except in a field that is being edited."""
        view = await self._workbench.settings.view()
        field = self.focusWidget()
        typed = isinstance(field, QSpinBox) and field.lineEdit().isModified()
        opened = isinstance(field, QComboBox) and field.view().isVisible()
        self.show_settings(view, keep=field if typed or opened else None)

    async def _reload(self) -> None:
        await self._workbench.models.reload()
        self.show_settings(await self._workbench.settings.view())
