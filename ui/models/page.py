"""The page of models: downloads, the shelf, and the section for new models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QScrollArea, QWidget

from ui.controller.models import ShelfController
from ui.models.bars import ImportBar, ThinBar
from ui.models.downloads import DownloadRow
from ui.models.getting import GetSection
from ui.models.server_form import ServerForm
from ui.models.shelf_row import ShelfRow
from ui.port import DownloadView, GgufPlan, LoadPlan, ShelfModel
from ui.widgets.controls import Page, button, column_of, drop, fill, row, words
from ui.widgets.fields import ask_for_file
from ui.widgets.labels import Caption, Notice
from ui.widgets.numbers import size


class ModelsPage(Page):
    """Shows the shelf and asks the controller.

    Args:
        controller: The shelf.
    """

    def __init__(self, controller: ShelfController) -> None:
        super().__init__()
        self._controller = controller
        self.notice = Notice()
        self._head_downloads = Caption(self.tr("Downloads"))
        self.downloads: dict[str, DownloadRow] = {}  # by repository
        self._early: tuple[str, LoadPlan] | None = None  # a plan that came before its model's row
        self.models: dict[str, ShelfRow] = {}  # by name
        self.empty = words(self.tr("No model is here yet. Get one below, or add a folder that has one."))
        self.add_button = button(self.tr("Add folder…"))
        self.import_button = button(self.tr("Import GGUF…"))
        self.server_button = button(self.tr("Connect to a server…"))
        self.server_form = ServerForm(self.server_button)
        self.import_form = ImportBar(self.import_button)
        self.importing, self.import_words = ThinBar(self.tr("Importing")), words()
        self.stop_import_button = button(self.tr("Stop"), "plain")
        self.get = GetSection(controller)
        self._download_rows, self._model_rows = column_of(spacing=9), column_of(spacing=9)
        self._lay_out()
        self._connect()

    def minimumSizeHint(self) -> QSize:
        """No minimum height, so that the scroll area uses the height for its width."""
        return QSize(super().minimumSizeHint().width(), 0)

    # ---- what is shown ------------------------------------------------------------------------------------------------

    def open(self, *, get: bool) -> None:
        """Reads the shelf; with `get` the field for new models has the focus."""
        self._controller.ask()
        if get:
            self.get.field.setFocus(Qt.FocusReason.OtherFocusReason)
            self._see(self.get.field)

    def show_models(self, models: Sequence[ShelfModel]) -> None:
        """Shows the shelf; rows that stay keep the focus and their messages."""
        wanted = {model.name for model in models}
        for name in [name for name in self.models if name not in wanted]:
            gone, focused = self.models.pop(name), self.window().focusWidget()
            if focused is not None and gone.isAncestorOf(focused):
                self.add_button.setFocus(Qt.FocusReason.OtherFocusReason)  # the focus is not lost with the row
            drop(self._model_rows, gone)
        for place, model in enumerate(models):
            held = self.models.get(model.name)
            if held is None:
                held = self.models[model.name] = self._model_row(model)
                self._model_rows.insertWidget(place, held)
            held.show_model(model)
        self.models = {model.name: self.models[model.name] for model in models}
        if self._early is not None and self._early[0] in wanted:
            self._show_load(*self._early)
        self.empty.setVisible(not models)
        self._chain()

    def show_downloads(self, downloads: Sequence[DownloadView]) -> None:
        """Shows the downloads, running or not."""
        wanted = {view.repository for view in downloads}
        gone = [repository for repository in self.downloads if repository not in wanted]
        for repository in gone:
            drop(self._download_rows, self.downloads.pop(repository))
        new = False
        for view in downloads:
            held = self.downloads.get(view.repository)
            if held is None:
                held, new = self._download_row(view), True
                self.downloads[view.repository] = held
                self._download_rows.addWidget(held)
            held.show_download(view)
        self._head_downloads.setVisible(bool(downloads))
        if new or gone:
            self._chain()
            self.get.show_busy(list(self.downloads))

    def _show_import(self, done: int, total: int) -> None:
        share = f" {100 * done // total} %" if total else ""
        self.import_words.setText(self.tr("converting…{0}").format(share))
        self.importing.show_share(done, total)
        self._set_importing(True)

    def _end_import(self, name: str) -> None:
        self._set_importing(False)
        if name:
            self._say_installed(name)

    def _say_installed(self, name: str) -> None:
        self.notice.tell(self.tr("{0} is installed").format(name))

    def _set_importing(self, running: bool) -> None:  # a state, not an option
        for part in (self.importing, self.import_words, self.stop_import_button):
            part.setVisible(running)
        self.import_button.setEnabled(not running)

    def _say_removed(self, _name: str, freed: int) -> None:
        free = self.tr("removed; {0} freed").format(size(freed))
        self.notice.tell(free if freed else self.tr("removed from the list"))

    # ---- what is asked ------------------------------------------------------------------------------------------------

    def _ask_folder(self) -> None:
        self.notice.clear()
        add, title = self._controller.add_folder, self.tr("Add a model's folder")
        ask_for_file(self.window(), title, lambda path: add(Path(path)), folder=True)

    def ask_gguf(self) -> None:
        """Opens the dialogue for a GGUF file."""
        self.notice.clear()
        plan, title, names = self._controller.plan_import, self.tr("Import a GGUF file"), self.tr("GGUF files (*.gguf)")
        ask_for_file(self.window(), title, lambda path: plan(Path(path)), names=names)

    def _ask_form(self, plan: GgufPlan) -> None:
        self.import_form.ask_form(plan)
        if not self.import_form.isHidden():
            self._see(self.import_form)

    def _ask_server(self) -> None:
        self.notice.clear()
        self.server_form.ask()
        self._see(self.server_form)

    def _say_connected(self, words: str) -> None:
        self.server_form.leave()
        self.notice.tell(words)

    # ---- how ----------------------------------------------------------------------------------------------------------

    def _model_row(self, model: ShelfModel) -> ShelfRow:
        made, controller = ShelfRow(model), self._controller
        made.plan_wanted.connect(controller.plan_load)
        made.open_wanted.connect(controller.open_with)
        made.quantise_wanted.connect(controller.quantise)
        made.stop_quantise_wanted.connect(controller.stop_quantising)
        made.verify_wanted.connect(controller.verify)
        made.stop_wanted.connect(controller.stop_verifying)
        made.remove_wanted.connect(controller.remove)
        made.refused.connect(self.notice.say)
        return made

    def _download_row(self, view: DownloadView) -> DownloadRow:
        made, controller = DownloadRow(view), self._controller
        made.pause_wanted.connect(controller.pause)
        made.go_on_wanted.connect(controller.download)
        made.cancel_wanted.connect(controller.cancel)
        made.open_wanted.connect(controller.open)
        return made

    def _connect(self) -> None:
        controller = self._controller
        controller.listed.connect(self.show_models)
        controller.downloads_changed.connect(self.show_downloads)
        controller.verifying.connect(lambda name, done, total: self._in_row(name, lambda each: each.show_progress(done, total)))
        controller.verified.connect(lambda name, problem: self._in_row(name, lambda each: each.show_verified(problem)))
        controller.load_planned.connect(self._show_load)
        controller.load_replanned.connect(lambda name, plan: self._in_row(name, lambda each: each.show_load_again(plan)))
        controller.quantising.connect(
            lambda name, done, total: self._in_row(name, lambda each: each.show_quantising(done, total))
        )
        controller.quantised.connect(lambda name, made: self._in_row(name, lambda each: each.show_quantised(made)))
        controller.quantise_ended.connect(lambda name, why: self._in_row(name, lambda each: each.show_not_quantised(why)))
        controller.verify_stopped.connect(lambda name: self._in_row(name, ShelfRow.show_stopped))
        controller.import_planned.connect(self._ask_form)
        self.import_form.wanted.connect(controller.import_gguf)
        controller.importing.connect(self._show_import)
        controller.import_ended.connect(self._end_import)
        controller.folder_added.connect(self._say_installed)
        controller.server_connected.connect(self._say_connected)
        controller.server_refused.connect(self.server_form.show_refused)
        self.server_form.wanted.connect(controller.connect_server)
        self.server_form.dropped.connect(controller.drop_connecting)
        self.server_button.clicked.connect(self._ask_server)
        controller.removed.connect(self._say_removed)
        controller.refused.connect(self.notice.say)
        self.get.seen_wanted.connect(self._see)
        self.get.changed.connect(self._chain)
        self.add_button.clicked.connect(self._ask_folder)
        self.import_button.clicked.connect(self.ask_gguf)
        self.stop_import_button.clicked.connect(controller.stop_import)

    def _show_load(self, name: str, plan: LoadPlan) -> None:
        held = self.models.get(name)
        self._early = (name, plan) if held is None else None
        if held is not None:
            fresh = held.card.isHidden()
            held.show_load(plan)
            if fresh:
                self._see(held.card)

    def _in_row(self, name: str, show: Callable[[ShelfRow], None]) -> None:
        held = self.models.get(name)
        if held is not None:
            show(held)

    def _see(self, part: QWidget) -> None:
        """Scrolls to a widget, after the layout has placed it."""
        viewport = self.parentWidget()
        area = viewport.parentWidget() if viewport is not None else None
        if isinstance(area, QScrollArea):
            self.column.activate()
            area.ensureWidgetVisible(part)

    def _chain(self) -> None:
        """Sets the tab order from top to bottom, whenever the rows were made."""
        parts: list[QWidget] = []
        for download in self.downloads.values():
            parts += download.buttons
        for model in self.models.values():
            parts += model.buttons
        form = self.import_form.buttons
        parts += [self.add_button, self.import_button, self.server_button, *form, self.stop_import_button]
        parts += [*self.server_form.buttons, *self.get.buttons]
        for first, second in pairwise(parts):
            QWidget.setTabOrder(first, second)

    def _lay_out(self) -> None:
        fill(self.column, self.notice, self._head_downloads, self._download_rows)
        ways = row(self.add_button, self.import_button, self.server_button, 1)
        shelf = self.empty, self._model_rows, ways, self.server_form, self.import_form, self.importing
        progress = row((self.import_words, 1), self.stop_import_button)
        self.section(self.tr("On this machine"), *shelf, progress)
        self.section(self.tr("Get a model"), self.get, 1)
        self._head_downloads.hide()
        self._set_importing(False)
