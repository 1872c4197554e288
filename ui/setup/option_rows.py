"""The generation options of a session: its own values, else those in force with their source."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QObject, Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QLineEdit, QWidget

from ui.port import EngineState, OptionView, StatusView, translate
from ui.setup.option_names import LABELS, MORE, Bytes, is_no_number, text_of, unknown, value_of
from ui.theme.fonts import interface_font
from ui.theme.text_size import fix_width
from ui.widgets.controls import LINE_PX, button, column_in, grid, line_edit, row, words
from ui.widgets.dials import DIALS, DialSlider
from ui.widgets.labels import IconButton, Label, plain_tooltip, set_kind

SHORT = 20  # characters that fit into a field
NUMBER_PX = 52  # a field beside a slider
SETTLE_MS = 250  # from the last move of a slider to the change
_DIALS = {dial.setting: dial for dial in DIALS}


class OptionRows(QWidget):
    """A line per option. A field has the session's own value; if it is empty, the placeholder is the value in force.

    Sampler settings with a scale also have a slider, which shows the value in force and sets the option once it rests. Rarely
    needed options are folded under a button; a line whose option the session sets is never hidden.
    """

    wanted = Signal(str, object)  # name, value or None
    refused = Signal(str)  # why a typed value is not accepted

    def __init__(self) -> None:
        super().__init__()
        self._grid = grid(8, 4)
        self._grid.setColumnStretch(1, 1)
        self.fields: dict[str, QLineEdit] = {}
        self.sliders: dict[str, DialSlider] = {}
        self.sources: dict[str, Label] = {}
        self.clears: dict[str, IconButton] = {}
        self._captions: dict[str, Label] = {}
        self._own: dict[str, object] = {}
        self._moved: dict[str, object] = {}  # values of sliders that are being moved
        self._settle = QTimer(self, singleShot=True, interval=SETTLE_MS)
        self._settle.timeout.connect(self.flush)
        self._status = StatusView(EngineState.NONE)
        self.lacking = words()  # the settings that the running model does not have
        self.bytes_of: Bytes = unknown  # to show the text of token ids
        self.more = button("", "link")
        self.more.setCheckable(True)
        self.more.toggled.connect(self._fold)
        column_in(self, self.lacking, self._grid, row(self.more, 1), spacing=6)
        self._fold()

    def show_options(self, options: Sequence[OptionView]) -> None:
        """Shows the values in force; a field being edited and a slider being moved are not touched."""
        for option in options:
            if option.name not in self.fields:
                self._add(option.name)
            field, source = self.fields[option.name], self.sources[option.name]
            self._own[option.name] = option.own
            shown = self._text(option.name, option.own if option.own is not None else option.value)
            field.setPlaceholderText(self._text(option.name, option.value) or self._unsaid(option.name))
            whole = [shown] if len(shown) > SHORT else []
            field.setToolTip(plain_tooltip("\n".join([field.accessibleDescription(), *whole])))
            if not (field.hasFocus() and field.isModified()) and option.name not in self._moved:
                field.setText(self._text(option.name, option.own))
                if (slider := self.sliders.get(option.name)) is not None:
                    holds = option.own if option.own is not None else option.value
                    slider.show_setting(holds if isinstance(holds, int | float) else slider.dial.off)
            source.setText(option.source)
            set_kind(source, "accent" if option.own is not None else "faint")
        self._fold()
        self._show_lacking()

    def show_status(self, status: StatusView) -> None:
        """Disables the settings that the model does not have; the session's own values can still be cleared."""
        self._status = status
        self._show_lacking()

    def flush(self) -> None:
        """Emits the pending values of sliders at once."""
        self._settle.stop()
        moved, self._moved = self._moved, {}
        for name, value in moved.items():
            self.wanted.emit(name, value)

    def forget_drafts(self) -> None:
        """Marks all fields as unedited, when another session is shown: the next values replace their text."""
        for field in self.fields.values():
            field.setModified(False)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and isinstance(watched, QLineEdit) and watched.isModified():
            escape = event.key() == Qt.Key.Key_Escape
            if escape and event.type() is QEvent.Type.ShortcutOverride:
                event.accept()  # else the key would close the popover
                return True
            if escape and event.type() is QEvent.Type.KeyPress:
                name = next(name for name, field in self.fields.items() if field is watched)
                watched.setText(self._text(name, self._own[name]))
                return True
        return super().eventFilter(watched, event)

    def _add(self, name: str) -> None:
        label, hint = (translate("Options", words) for words in LABELS.get(name) or MORE.get(name, (name, "")))
        line = len(self.fields)
        caption = Label(label, "soft", interface_font(LINE_PX))
        field = line_edit(label)
        field.setAccessibleDescription(hint)
        caption.setToolTip(plain_tooltip(hint))
        field.editingFinished.connect(lambda: self._finished(name))
        field.installEventFilter(self)
        source = Label("", "faint", interface_font(11.5))
        source.setMinimumWidth(52)
        clear = IconButton("x", self.tr("Use the preset for {0}").format(label))
        clear.clicked.connect(lambda: self.wanted.emit(name, None))
        self._grid.addWidget(caption, line, 0)
        if name in _DIALS:
            slider = self.sliders[name] = DialSlider(_DIALS[name])
            slider.setAccessibleName(label)
            slider.setToolTip(plain_tooltip(hint))
            slider.moved.connect(lambda value: self._move(name, value))
            fix_width(field, NUMBER_PX)
            self._grid.addWidget(slider, line, 1)
            self._grid.addWidget(field, line, 2)
            self.setTabOrder(slider, field)
        else:
            self._grid.addWidget(field, line, 1, 1, 2)
        self._grid.addWidget(source, line, 3)
        self._grid.addWidget(clear, line, 4)
        self.fields[name], self.sources[name], self.clears[name] = field, source, clear
        self._captions[name] = caption

    def _text(self, name: str, value: object) -> str:
        return text_of(name, value, self.bytes_of)

    def _unsaid(self, name: str) -> str:
        return self.tr("fresh") if name == "seed" else self.tr("none")

    def _fold(self) -> None:
        """Shows or hides the folded options."""
        unfolded = self.more.isChecked()
        self.more.setText(self.tr("Fewer") if unfolded else self.tr("More: order of stages, biases, bans…"))
        self.more.setVisible(any(name in MORE for name in self.fields))
        for name in self.fields:
            shown = unfolded or name not in MORE or self._own[name] is not None
            for part in (self._captions[name], self.sliders.get(name), self.fields[name], self.sources[name]):
                if part is not None:
                    part.setVisible(shown)
            clear = self.clears[name]
            policy = clear.sizePolicy()
            policy.setRetainSizeWhenHidden(shown)  # a folded line takes no height
            clear.setSizePolicy(policy)
            clear.setVisible(shown and self._own[name] is not None)

    def _show_lacking(self) -> None:
        missing = [name for name in self.fields if name in self._status.lacks]
        for name, field in self.fields.items():
            for part in (self._captions[name], self.sliders.get(name), field):
                if part is not None:
                    part.setEnabled(name not in missing)
        shown = [self._captions[name].text() for name in missing if name not in MORE or self._own[name] is not None]
        said = [self.tr("{0} has no {1}.").format(self._status.model, ", ".join(shown))] if shown else []
        if any(self._own[name] is not None for name in missing):
            said.append(self.tr("It cannot answer while they are set here: clear them (×)."))
        self.lacking.setText(" ".join(said))
        self.lacking.setVisible(bool(said))

    def _move(self, name: str, value: object) -> None:
        self.fields[name].setText(self._text(name, value))
        self._moved[name] = value
        self._settle.start()

    def _finished(self, name: str) -> None:
        field = self.fields[name]
        if not field.isModified():
            return
        field.setModified(False)
        value = value_of(name, field.text())
        if is_no_number(name, value):
            label = self._captions[name].text()
            self.refused.emit(self.tr("{0} must be a number").format(label[:1].upper() + label[1:]))
            field.setText(self._text(name, self._own[name]))
            return
        if value != self._own[name]:
            self.wanted.emit(name, value)
