"""The status bar: engine, speed, transfers, downloads and the legend."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QFrame, QWidget

from ui.inspector.tab import FactGrid
from ui.models.bars import ThinBar
from ui.models.downloads import DownloadsLink
from ui.port import DownloadView, EngineState, StatusView, Tier
from ui.theme.fonts import interface_font, scaled, text_scale
from ui.theme.scheme import current_theme
from ui.theme.text_size import fix_height, fix_width, panel_width
from ui.widgets.controls import button, column_in, fill, row_in
from ui.widgets.labels import Caption, ElidedLabel, IconButton, Label, plain_tooltip
from ui.widgets.numbers import count, rate, size
from ui.window.legend import Legend

HEIGHT = 26
MARGIN = 16
GAP = 22  # before each fact
DOT = 8  # pixels, at 100 % text
FIGURES_WIDTH = 260
FIGURES_GAP = 4  # above the button


class StatusBar(QWidget):
    """Shows a `StatusView`: the engine's state and speed; other figures in a popup."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("status")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        fix_height(self, HEIGHT)
        font = interface_font(11.5)
        self._dot = EngineDot()
        self.engine = ElidedLabel("", "soft", font)
        self.choose = button(self.tr("Choose a model"), "link")
        self.choose.setFont(font)
        self.choose.hide()
        self.loading = LoadBar()
        self.speed, self.disk = Label("", "soft", font), Label(self.tr("KV on disk is full"), "soft", font)
        self.figures = Figures(self)
        self.figures_button = IconButton("chevron-up", self.tr("Figures of the last answer"))
        self.server = button(self.tr("Server on"), "link")
        self.server.setFont(font)
        self.server.hide()
        self.transfer, self.downloads = TransferBar(), DownloadsLink()
        for small in (self.figures_button, self.loading.stop_button, self.transfer.stop_button):
            fix_height(small, 20)
            fix_width(small, 20)
        self.figures_button.clicked.connect(lambda: self.figures.open(self.figures_button))
        self.legend = Legend()
        row = row_in(self, self._dot, spacing=0, margins=(MARGIN, 0, MARGIN, 0))
        row.addSpacing(6)
        fill(row, self.engine, self.choose, self.loading, self.figures_button)
        for fact in (self.speed, self.disk):
            fact.setIndent(GAP)
            row.addWidget(fact)
        row.addWidget(self.transfer)
        row.addSpacing(GAP)
        fill(row, self.downloads, self.server, 1, self.legend)
        self._is_full = False
        current_theme().scaled.connect(self._fit)

    def show_status(self, status: StatusView) -> None:
        self._dot.show_state(status.engine)
        self.engine.setText(status.reason or self._word(status.engine))
        self.choose.setVisible(status.lacks_model)
        self.engine.setContentsMargins(0, 0, GAP if status.lacks_model else 0, 0)
        self.loading.show_status(status)
        self.engine.setAccessibleName(self.tr("Engine: {0}").format(self.engine.text()))
        answers = status.engine is EngineState.BUSY and status.tokens_per_second is not None
        self.speed.setText(rate(status.tokens_per_second) if answers and status.tokens_per_second is not None else "")
        self._is_full = bool(status.disk_note)
        self.disk.setToolTip(plain_tooltip(status.disk_note))
        self.disk.setAccessibleDescription(status.disk_note)
        self.figures.show_status(status)
        self._show_server(status.serving)
        self._fit()

    def _show_server(self, address: str) -> None:
        words = self.tr("Other programs on this computer can ask the model, at {0}. Shows the settings of the server.")
        self.server.setToolTip(plain_tooltip(words.format(address)))
        self.server.setAccessibleDescription(words.format(address))
        self.server.setVisible(bool(address))

    def show_downloads(self, downloads: Sequence[DownloadView]) -> None:
        self.downloads.show_downloads(downloads)
        self._fit()

    def show_legend(self, show: bool) -> None:  # a state, not an option
        """Shows the legend, or hides it in Read mode."""
        self.legend.setVisible(show)
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        """Hides the facts that do not fit; the engine's state is always shown."""
        self.figures_button.setVisible(self.figures.has_any)
        room = self.width() - 2 * MARGIN - self._dot.width() - self.engine.sizeHint().width() - 6
        for part in (self.choose, self.loading, self.figures_button, self.legend, self.downloads, self.server):
            room -= 0 if part.isHidden() else part.sizeHint().width() + GAP
        for label, wanted in ((self.disk, self._is_full), (self.speed, bool(self.speed.text()))):
            room -= label.sizeHint().width() if wanted else 0
            label.setVisible(wanted and room >= 0)

    def _word(self, state: EngineState) -> str:
        return {
            EngineState.NONE: self.tr("no model"),
            EngineState.STARTING: self.tr("starting"),
            EngineState.READY: self.tr("ready"),
            EngineState.BUSY: self.tr("answering"),
            EngineState.DIED: self.tr("engine stopped"),
        }[state]


class LoadBar(QWidget):
    """The progress of loading a model, with a stop button; hidden while none is loading."""

    def __init__(self) -> None:
        super().__init__()
        self.bar = ThinBar(self.tr("Weights read"))
        self.stop_button = IconButton("x", self.tr("Stop loading"))
        row_in(self, self.bar, self.stop_button, spacing=4, margins=(10, 0, 0, 0))
        fix_width(self.bar, 84)
        self.hide()

    def show_status(self, status: StatusView) -> None:
        self.bar.show_share(round(1000 * status.load_share), 1000)
        starts = status.engine is EngineState.STARTING
        if not starts and self.stop_button.hasFocus():
            self.focusNextChild()  # the focus is not lost with the button
        self.setVisible(starts)


class EngineDot(QWidget):
    """The engine's state, as the words beside it: a ring while it does not run yet, a warm colour if it stopped."""

    def __init__(self) -> None:
        super().__init__()
        self._state = EngineState.NONE
        self._theme = current_theme()
        self._theme.scaled.connect(self._resize)
        self._resize()

    def _resize(self) -> None:
        self.setFixedSize(scaled(DOT), scaled(DOT))

    def show_state(self, state: EngineState) -> None:
        self._state = state
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        palette = self._theme.palette
        colour = QColor(palette.accent)
        if self._state is EngineState.DIED:
            colour = QColor(palette.surprise[5])
        elif self._state is EngineState.NONE:
            colour = QColor(palette.faint)
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        hollow = self._state in (EngineState.STARTING, EngineState.NONE)
        painter.setPen(QPen(colour, 1.5 * text_scale()) if hollow else Qt.PenStyle.NoPen)
        painter.setBrush(Qt.BrushStyle.NoBrush if hollow else colour)
        inset = (1.0 if hollow else 0.5) * text_scale()
        painter.drawEllipse(self.rect().toRectF().adjusted(inset, inset, -inset, -inset))
        painter.end()


class TransferBar(QWidget):
    """The progress of a transfer; hidden while there is none."""

    def __init__(self) -> None:
        super().__init__()
        self._words = ""
        self.label = Label("", "accent", interface_font(11.5))
        self.stop_button = IconButton("x", self.tr("Stop the transfer"))
        row_in(self, self.label, self.stop_button, spacing=2, margins=(22, 0, 0, 0))
        self.hide()

    def begin(self, words: str) -> None:
        self._words = words
        self.label.setText(f"{words}…")
        self.label.setAccessibleName(words)
        self.show()

    def show_progress(self, done: int, total: int) -> None:
        self.label.setText(f"{self._words} {100 * done // max(total, 1)} %")


class Figures(QFrame):
    """Figures of the last answer and of the path's KV, each with its meaning; unknown ones are left out.

    Opens above its button; a click elsewhere or Escape closes it.
    """

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Popup)
        self.setObjectName("popover")
        self.setAccessibleName(self.tr("Figures of the last answer"))
        self.answer, self.held = FactGrid(columns=1), FactGrid(columns=1)
        self._answer_head, self._held_head = Caption(self.tr("Last answer")), Caption(self.tr("Memory"))
        column = column_in(self, spacing=6, margins=(14, 12, 14, 12))
        for part in (self._answer_head, self.answer, self._held_head, self.held):
            column.addWidget(part)

    @property
    def has_any(self) -> bool:
        return bool(self.answer.texts or self.held.texts)

    def open(self, button: QWidget) -> None:
        """Opens the popup above `button`."""
        self.setFixedWidth(panel_width(FIGURES_WIDTH))
        self.adjustSize()
        left = button.width() - self.width() if button.isRightToLeft() else 0
        self.move(button.mapToGlobal(QPoint(left, -self.height() - FIGURES_GAP)))
        self.show()

    def show_status(self, status: StatusView) -> None:
        for head, facts, rows in (
            (self._answer_head, self.answer, self._of_answer(status)),
            (self._held_head, self.held, self._of_memory(status)),
        ):
            facts.show_facts({name: value for name, value, _ in rows}, {name: meaning for name, _, meaning in rows})
            head.setVisible(bool(rows))
            facts.setVisible(bool(rows))
        if self.isVisible():
            self.adjustSize()

    def _of_answer(self, status: StatusView) -> list[tuple[str, str, str]]:
        rows = []
        if status.tokens_per_second is not None:
            meaning = self.tr("Tokens per second after the first token")
            rows.append((self.tr("speed"), rate(status.tokens_per_second), meaning))
        if status.first_token_seconds is not None:
            meaning = self.tr("Time from sending the message to the first token of the answer")
            rows.append((self.tr("first token"), self.tr("{0:.2f} s").format(status.first_token_seconds), meaning))
        if status.reused is not None and status.computed is not None and status.reused + status.computed:
            whole = count(status.reused + status.computed)
            meaning = self.tr("Tokens before the answer that the model had already read")
            rows.append((self.tr("reused"), self.tr("{0} of {1}").format(count(status.reused), whole), meaning))
            meaning = self.tr("Tokens before the answer that the model had to read; before sending they are “to compute”")
            rows.append((self.tr("computed"), self.tr("{0} of {1}").format(count(status.computed), whole), meaning))
        return rows

    def _of_memory(self, status: StatusView) -> list[tuple[str, str, str]]:
        rows = []
        if status.kv_budget:
            meaning = self.tr("What the model has read is held in memory (KV), up to a limit in the settings")
            rows.append((self.tr("KV"), self.tr("{0} of {1}").format(size(status.kv_bytes), size(status.kv_budget)), meaning))
        names = {
            Tier.WARM: (self.tr("turns in memory"), self.tr("The model can continue from them at once")),
            Tier.DISK: (self.tr("turns on disk"), self.tr("They are loaded from the disk before the model continues")),
            Tier.COLD: (self.tr("turns to compute"), self.tr("The model reads them again before it continues")),
            Tier.SERVER: (self.tr("turns on the server"), self.tr("The server decides what it holds of them")),
        }
        for tier, (name, meaning) in names.items():
            if status.tiers.get(tier):
                rows.append((name, count(status.tiers[tier]), meaning))
        return rows
