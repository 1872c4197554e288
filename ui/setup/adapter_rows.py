"""The adapters of a session: those in use with their scales, and the field that adds one."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from PySide6.QtCore import QSignalBlocker, Qt, QTimer, Signal
from PySide6.QtWidgets import QDoubleSpinBox, QSlider, QWidget

from ui.models.bars import ThinBar
from ui.port import AdapterChoice, AdapterLine, DownloadState, DownloadView
from ui.theme.fonts import interface_font
from ui.theme.text_size import fix_width
from ui.widgets.controls import LINE_PX, Check, button, column_in, drop, line_edit, row, words
from ui.widgets.labels import ElidedLabel, IconButton, plain_tooltip
from ui.widgets.visible import one_line

SETTLE_MS = 250  # from the last move of a slider to the change
MOST_SCALE = 100.0
SLIDER_STEPS = 200  # 0 to 2
DECIMALS = 4  # of a scale that is typed


class AdapterRows(QWidget):
    """Shows a stack of adapters and emits changes of it."""

    wanted = Signal(object)  # list[AdapterChoice]

    def __init__(self) -> None:
        super().__init__()
        self._column = column_in(self, spacing=10)
        self.rows: list[AdapterRow] = []
        self._settle = QTimer(self, singleShot=True, interval=SETTLE_MS)
        self._settle.timeout.connect(self._emit)

    def show_stack(self, lines: Sequence[AdapterLine]) -> None:
        """Shows the stack in force; rows that stay keep the focus. Does nothing while a slider is being moved."""
        if self._settle.isActive():
            return
        if [each.choice.folder for each in self.rows] != [line.choice.folder for line in lines]:
            for old in self.rows:
                drop(self._column, old)
            self.rows = [AdapterRow(line.choice) for line in lines]
            for place, made in enumerate(self.rows):
                self._connect(made, place)
                self._column.addWidget(made)
        for place, (each, line) in enumerate(zip(self.rows, lines, strict=True)):
            each.show_line(line, first=place == 0, last=place == len(lines) - 1)
        self.setVisible(bool(self.rows))

    @property
    def stack(self) -> list[AdapterChoice]:
        return [each.choice for each in self.rows]

    def _connect(self, made: AdapterRow, place: int) -> None:
        made.changed.connect(self._settle.start)
        made.up.clicked.connect(lambda: self._move(place, place - 1))
        made.down.clicked.connect(lambda: self._move(place, place + 1))
        made.remove.clicked.connect(lambda: self.wanted.emit([c for i, c in enumerate(self.stack) if i != place]))

    def _move(self, place: int, to: int) -> None:
        stack = self.stack
        stack.insert(to, stack.pop(place))
        self.wanted.emit(stack)

    def flush(self) -> None:
        """Emits a pending change at once."""
        if self._settle.isActive():
            self._settle.stop()
            self._emit()

    def _emit(self) -> None:
        self.wanted.emit(self.stack)


class ScaleBox(QDoubleSpinBox):
    """A spin box that shows as many decimals as the scale has, two at least."""

    def textFromValue(self, value: float) -> str:
        places = next((n for n in (2, 3) if round(value, n) == round(value, DECIMALS)), DECIMALS)
        return self.locale().toString(float(value), "f", places)


class AdapterRow(QWidget):
    """One adapter: on or off, its scale as a slider and as a number, and its place in the stack."""

    changed = Signal()

    def __init__(self, choice: AdapterChoice) -> None:
        super().__init__()
        self._choice, self._moved = choice, False
        name = one_line(choice.name)
        self.on = Check(name.replace("&", "&&"))
        self.on.setFont(interface_font(13))
        self.on.setToolTip(plain_tooltip(choice.folder))
        self.on.setAccessibleName(self.tr("Adapter {0}").format(name))
        self.detail = ElidedLabel("", "faint", interface_font(11.5))
        self.up = IconButton("chevron-up", self.tr("Move up"))
        self.down = IconButton("chevron-down", self.tr("Move down"))
        self.remove = IconButton("x", self.tr("Remove {0}").format(name))
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setRange(0, SLIDER_STEPS)
        self.slider.setPageStep(10)
        self.slider.setAccessibleName(self.tr("Scale of {0}").format(name))
        self.scale = ScaleBox()
        self.scale.setDecimals(DECIMALS)
        self.scale.setRange(-MOST_SCALE, MOST_SCALE)
        self.scale.setSingleStep(0.05)
        self.scale.setFont(interface_font(LINE_PX))
        fix_width(self.scale, 76)
        self.scale.lineEdit().setTextMargins(5, 0, 0, 0)
        self.scale.setAccessibleName(self.tr("Scale of {0}, as a number").format(name))
        column_in(
            self,
            row(self.on, 1, self.up, self.down, self.remove, spacing=2),
            row(self.slider, self.scale),
            self.detail,
            spacing=2,
        )
        self.on.toggled.connect(self.changed)
        self.slider.valueChanged.connect(lambda value: self.scale.setValue(value / 100))
        self.scale.valueChanged.connect(self._scaled)

    @property
    def choice(self) -> AdapterChoice:
        scale = self.scale.value() if self._moved else self._choice.scale  # may have more digits than are shown
        return replace(self._choice, scale=scale, on=self.on.isChecked())

    def show_line(self, line: AdapterLine, *, first: bool, last: bool) -> None:
        """Shows an adapter; emits nothing."""
        self._choice, self._moved = line.choice, False
        with QSignalBlocker(self.on), QSignalBlocker(self.slider), QSignalBlocker(self.scale):
            self.on.setChecked(line.choice.on)
            self.slider.setValue(round(line.choice.scale * 100))
            self.scale.setValue(line.choice.scale)
        self.detail.setText(line.detail or self.tr("loads with the next answer"))
        self.up.setEnabled(not first)
        self.down.setEnabled(not last)

    def _scaled(self, value: float) -> None:
        self._moved = True
        with QSignalBlocker(self.slider):
            self.slider.setValue(round(value * 100))
        self.changed.emit()


class AdapterField(QWidget):
    """Takes ORG/NAME[@REVISION]; no request is sent before *Get* or Return is pressed."""

    wanted = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self._getting = ""
        self.field = line_edit(self.tr("Adapter by its name"), "org/name, org/name@revision")
        self.get_button = button(self.tr("Get"))
        self.get_button.setAccessibleName(self.tr("Get the adapter"))
        self.bar, self.state = ThinBar(self.tr("Download of the adapter")), words()
        column_in(self, row(self.field, self.get_button), self.bar, self.state, spacing=5)
        self.get_button.clicked.connect(self._get)
        self.field.returnPressed.connect(self._get)
        self.field.textEdited.connect(lambda _text: self.state.setVisible(bool(self._getting)))
        for part in (self.bar, self.state):
            part.hide()

    def show_downloads(self, downloads: Sequence[DownloadView]) -> None:
        """Shows the progress of the requested adapter."""
        repository = self._getting.partition("@")[0]
        view = next((each for each in downloads if each.repository == repository), None)
        if view is not None and view.state is DownloadState.RUNNING and self._getting:
            self.bar.show_share(view.done, view.total)
            self.bar.show()

    def end(self, wanted: str, *, got: bool) -> None:
        """Ends a request; the field is cleared if it was successful, and `refuse` shows why not."""
        if wanted == self._getting:
            self._getting = ""
            self.get_button.setEnabled(True)
            self.bar.hide()
            self.state.hide()
            if got and self.field.text().strip() == wanted:
                self.field.clear()

    def refuse(self, why: str) -> None:
        """Shows why the adapter was not added."""
        self.state.setText(why)
        self.state.show()

    def _get(self) -> None:
        wanted = self.field.text().strip()
        if not wanted or self._getting:
            return
        self._getting = wanted
        self.get_button.setEnabled(False)
        self.state.setText(self.tr("getting {0}…").format(wanted))
        self.state.show()
        self.wanted.emit(wanted)
