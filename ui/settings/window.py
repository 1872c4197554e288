"""The settings window: non-modal, one page for each subject, every row stored when it is changed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import (
    QButtonGroup,
    QFileDialog,
    QFrame,
    QHBoxLayout,
    QPushButton,
    QScrollArea,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from ui.desk import Desk
from ui.models.page import ModelsPage
from ui.port import AppSettings, SettingsView, Workbench, translate
from ui.settings.data_page import DataPage
from ui.settings.rows import Rows
from ui.transcript.measure import Measure
from ui.widgets.controls import Page, tab, take_focus
from ui.widgets.labels import Notice, plain_tooltip
from ui.window.legend import name_of

MEGABYTE = 1_000_000
MODELS, ENGINE, MEMORY, GENERATION, APPEARANCE, DATA = range(6)  # pages
OWN_TEMPLATE = "choose-a-file"  # among the chat formats: no format has that name
MOST_CONTEXT, MOST_THREADS, MOST_KV = 10_000_000, 1024, 10_000_000


class SettingsWindow(QWidget):
    """Shows a `SettingsView` and asks for changes.

    Args:
        desk: Keeps the tasks.
        workbench: The use cases.
        parent: The window it belongs to.
    """

    shown = Signal(object)  # SettingsView: what holds now, for whoever looks like it
    colours_wanted = Signal(object)  # Measure

    def __init__(self, desk: Desk, workbench: Workbench, parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Window)
        self.setObjectName("settings")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setWindowTitle(self.tr("Settings"))
        self.resize(720, 620)
        self.setMinimumSize(420, 320)
        self._desk, self._workbench = desk, workbench
        self.notice = Notice()
        self.reload = Notice()
        self.reload.acted.connect(lambda: self._run(self._reload()))
        self.models = ModelsPage(desk.shelf)
        self.engine, self.memory, self.generation = self._engine(), self._memory(), self._generation()
        self.appearance = self._appearance()
        self.data = DataPage(workbench, self._run)
        self.data.refused.connect(self.notice.say)
        self._stack = QStackedWidget()
        self._tabs = QButtonGroup(self)
        self.tabs: list[QPushButton] = []
        self._lay_out()

    def open(self, page: int | None = None) -> None:
        """Opens, or comes to the front, at a page or at the one that was shown last."""
        self.notice.clear()
        self._run(self._show(None))
        self.show()
        self.raise_()
        self.activateWindow()
        if page is not None:
            self.show_page(page)
        self.tabs[self._stack.currentIndex()].setFocus()
        self.models.open(get=False)

    def open_models(self, *, get: bool = False) -> None:
        """Opens at the models; with `get` the keyboard is where more are asked for."""
        self.open(MODELS)
        self.models.open(get=get)

    def show_page(self, page: int) -> None:
        """Brings a page to the front."""
        self.tabs[page].setChecked(True)
        self._stack.setCurrentIndex(page)
        take_focus(self.tabs, self.tabs[page])

    def show_settings(self, view: SettingsView) -> None:
        """Shows what holds."""
        values, choices = view.values, view.choices
        for name in ("backend", "device", "dtype", "weights", "draft_model"):
            self.engine.show_choice(name, choices.get(name, ()), getattr(values, name), self._title)
        self._show_format(values, choices.get("chat_format", ()))
        places = {"none": self.tr("in memory"), "disk": self.tr("on disk, where they do not fit")}
        self.engine.show_choice("offload", choices.get("offload", ()), values.offload, lambda name: places.get(name, name))
        self.engine.show_number("context_length", values.context_length or 0)
        self.engine.show_number("threads", values.threads or 0)
        self.memory.show_number("kv_cache_bytes", round((values.kv_cache_bytes or 0) / MEGABYTE))
        self.memory.show_number("disk_bytes", round((values.disk_bytes or 0) / MEGABYTE))
        self.generation.show_choice(
            "preset", choices.get("preset", ()), values.preset, lambda name: translate("Presets", name or "Elsewise's own")
        )
        names = {"system": self.tr("as the system"), "light": self.tr("light"), "dark": self.tr("dark")}
        names |= {"normal": self.tr("normal"), "high": self.tr("high"), "reduced": self.tr("reduced")}
        for row, looks in (
            ("scheme", ("system", "light", "dark")),
            ("contrast", ("system", "normal", "high")),
            ("motion", ("system", "reduced")),
        ):
            self.appearance.show_choice(row, looks, getattr(values, row), lambda name: names.get(name, name))
        self.appearance.show_number("text_percent", values.text_percent)
        if view.data is not None:
            self.data.show_data(view.data)
        if view.needs_reload:
            self.reload.say(self.tr("The model that runs was loaded with other settings."), self.tr("Reload now"))
        else:
            self.reload.clear()
        if view.notes:
            self.notice.say("\n".join(view.notes))

    def _show_format(self, values: AppSettings, choices: Sequence[str]) -> None:
        file = values.chat_template_file
        titles = {"auto": self.tr("the model's own"), "none": self.tr("none: continue text")}
        titles |= {file: self.tr("your template: {0}").format(Path(file).name)} if file else {}
        titles |= {OWN_TEMPLATE: self.tr("a template of your own…")}
        offered = (*choices, *([file] if file else []), OWN_TEMPLATE)
        self.engine.show_choice("chat_format", offered, file or values.chat_format, lambda name: titles.get(name, name))
        self.engine.combos["chat_format"].setToolTip(plain_tooltip(file))

    def show_colours(self, measure: Measure) -> None:
        """What the colours of tokens show."""
        self.appearance.show_choice("colours", [m.value for m in Measure], measure.value, lambda m: name_of(Measure(m)))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.close()
        else:
            super().keyPressEvent(event)

    # ---- pages --------------------------------------------------------------------------------------------------------

    def _rows(self) -> Rows:
        return Rows(self._change, self.tr("now"), self.tr("after reload"))

    def _engine(self) -> Rows:
        rows = self._rows()
        rows.add_choice("backend", self.tr("Engine"), now=False)
        rows.add_choice("device", self.tr("Device"), now=False)
        rows.add_choice("dtype", self.tr("Precision"), now=False)
        hint = self.tr(
            "Fewer bits make a processor faster (hf) and the numbers others; what that costs is said beside the model."
        )
        rows.add_choice("weights", self.tr("Weights in"), now=False, hint=hint)
        hint = self.tr(
            "For models that came without one, or in place of it. A template of your own runs in a sandbox, with limits."
        )
        rows.add_choice("chat_format", self.tr("Chat format"), now=False, hint=hint)
        hint = self.tr("Layers on disk are read again for every token: slow, for models larger than memory (hf).")
        rows.add_choice("offload", self.tr("Weights"), now=False, hint=hint)
        own, auto = self.tr("the model's own"), self.tr("automatic")
        rows.add_number(
            "context_length", self.tr("Context"), most=MOST_CONTEXT, auto=own, unit=self.tr("tokens"), now=False, step=1024
        )
        rows.add_number("threads", self.tr("Threads"), most=MOST_THREADS, auto=auto, now=False)
        hint = self.tr("Guesses ahead where a session asks for it; it needs the same vocabulary.")
        rows.add_choice("draft_model", self.tr("Draft model"), now=False, hint=hint)
        return rows

    def _memory(self) -> Rows:
        rows = self._rows()
        rows.add_number(
            "kv_cache_bytes", self.tr("KV in memory"), most=MOST_KV, auto=self.tr("automatic"), unit="MB", now=True, step=256,
            hint=self.tr("What was read stays warm within this. Less drops what was used least at once."),
        )  # fmt: skip
        rows.add_number(
            "disk_bytes", self.tr("KV on disk"), most=MOST_KV, auto=self.tr("automatic"), unit="MB", now=False, step=256,
            hint=self.tr("What lets a session reopen warm. What was used least goes first; conversations are never touched."),
        )  # fmt: skip
        return rows

    def _generation(self) -> Rows:
        rows = self._rows()
        hint = self.tr("For sessions that chose none. Presets are saved where a session's sampling is set.")
        rows.add_choice("preset", self.tr("Preset"), now=True, hint=hint)
        return rows

    def _appearance(self) -> Rows:
        rows = self._rows()
        rows.add_choice("scheme", self.tr("Colours"), now=True)
        rows.add_choice("contrast", self.tr("Contrast"), now=True)
        rows.add_choice("motion", self.tr("Motion"), now=True, hint=self.tr("Reduced: nothing fades."))
        rows.add_number("text_percent", self.tr("Text size"), least=80, most=200, unit="%", now=True, step=10)
        rows.add_choice("colours", self.tr("Colour tokens by"), now=True)
        return rows

    def _page(self, title: str, rows: Rows) -> Page:
        page = Page()
        page.head(title)
        page.column.addWidget(rows)
        page.column.addStretch(1)
        return page

    def _lay_out(self) -> None:
        tabs = QWidget()
        tabs.setObjectName("tabs")
        line = QHBoxLayout(tabs)
        line.setContentsMargins(16, 12, 16, 0)
        line.setSpacing(18)
        pages = (
            (self.tr("Models"), self.models),
            (self.tr("Engine"), self._page(self.tr("Engine and device"), self.engine)),
            (self.tr("Memory"), self._page(self.tr("Memory"), self.memory)),
            (self.tr("Generation"), self._page(self.tr("Generation"), self.generation)),
            (self.tr("Appearance"), self._page(self.tr("Appearance"), self.appearance)),
            (self.tr("Data"), self.data),
        )
        for place, (title, page) in enumerate(pages):
            head = tab(title)
            head.clicked.connect(partial(self.show_page, place))
            self._tabs.addButton(head, place)
            self.tabs.append(head)
            line.addWidget(head)
            area = QScrollArea()
            area.setWidgetResizable(True)
            area.setFrameShape(QFrame.Shape.NoFrame)
            area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
            area.setWidget(page)
            self._stack.addWidget(area)
        line.addStretch(1)
        foot = QVBoxLayout()
        foot.setContentsMargins(12, 0, 12, 12)
        foot.addWidget(self.reload)
        foot.addWidget(self.notice)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(tabs)
        column.addWidget(self._stack, 1)
        column.addLayout(foot)
        self.tabs[0].setChecked(True)

    # ---- what is asked ------------------------------------------------------------------------------------------------

    def _title(self, choice: str) -> str:
        return {"": self.tr("none"), "auto": self.tr("automatic")}.get(choice, choice)

    def _choose_template(self) -> None:
        """A file; until one is chosen, the row shows what holds."""
        self._run(self._show(None))
        dialog = QFileDialog(self, self.tr("Choose a chat template (jinja2)"))
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(lambda path: self._change("chat_template_file", path))
        dialog.open()

    def _change(self, name: str, value: object) -> None:
        if name == "chat_format" and value == OWN_TEMPLATE:
            self._choose_template()
            return
        if name == "chat_format" and Path(str(value)).is_absolute():
            name = "chat_template_file"
        if name == "colours":
            self.colours_wanted.emit(Measure(str(value)))
            return
        if name in ("context_length", "threads", "kv_cache_bytes", "disk_bytes"):
            value = None if not value else int(str(value)) * (MEGABYTE if name.endswith("bytes") else 1)
        self.notice.clear()
        self._run(self._show((name, value)))

    def _run(self, work: object) -> None:
        self._desk.tasks.run(work, self.notice.say)  # type: ignore[arg-type]  # the coroutines below

    async def _show(self, change: tuple[str, object] | None) -> None:
        try:
            view = await (self._workbench.settings() if change is None else self._workbench.change_setting(*change))
        except Exception:
            self.show_settings(await self._workbench.settings())  # the fields go back to what holds
            raise
        self.show_settings(view)
        self.shown.emit(view)

    async def _reload(self) -> None:
        self.show_settings(await self._workbench.reload_model())
