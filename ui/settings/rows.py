"""A row of the settings: what it is, its value, and when a change holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QSpinBox, QWidget

from ui.theme.fonts import interface_font
from ui.widgets.controls import LINE_PX, Combo, words
from ui.widgets.labels import Label
from ui.widgets.visible import one_line

Changed = Callable[[str, object], None]


class Rows(QWidget):
    """Rows in three columns: name, value, *now* or *after reload*; a line below may say more."""

    def __init__(self, changed: Changed, now: str, later: str) -> None:
        super().__init__()
        self._changed, self._now, self._later = changed, now, later
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(14)
        self._grid.setVerticalSpacing(7)
        self._grid.setColumnStretch(1, 1)
        self._line = 0
        self.when: dict[str, Label] = {}
        self.combos: dict[str, Combo] = {}
        self.numbers: dict[str, QSpinBox] = {}

    def add(self, name: str, label: str, editor: QWidget, *, now: bool, hint: str = "") -> None:
        """A row."""
        caption = Label(label, "", interface_font(13))
        caption.setBuddy(editor)
        self.when[name] = Label(self._now if now else self._later, "faint", interface_font(11.5))
        for column, part in enumerate((caption, editor, self.when[name])):
            self._grid.addWidget(part, self._line, column)
        self._line += 1
        if hint:
            self._grid.addWidget(words(hint, "faint"), self._line, 1, 1, 2)
            self._line += 1

    def add_choice(self, name: str, label: str, *, now: bool, hint: str = "") -> None:
        """One of several; what they are comes with `show_choice`."""
        combo = Combo(label)
        combo.activated.connect(lambda place: self._changed(name, combo.itemData(place)))
        self.combos[name] = combo
        self.add(name, label, combo, now=now, hint=hint)

    def show_choice(self, name: str, choices: Sequence[str], chosen: str, titles: Callable[[str], str]) -> None:
        """Shows what holds; one that is not among the choices (any more) stands there too."""
        combo = self.combos[name]
        combo.blockSignals(True)
        combo.clear()
        for choice in dict.fromkeys([*choices, chosen]):
            combo.addItem(one_line(titles(choice)), choice)
        combo.setCurrentIndex(combo.findData(chosen))
        combo.blockSignals(False)

    def add_number(
        self,
        name: str,
        label: str,
        *,
        most: int,
        now: bool,
        least: int = 0,
        auto: str = "",
        unit: str = "",
        step: int = 1,
        hint: str = "",
    ) -> None:
        """A whole number; its least value may be called `auto`: it leaves the choice to the engine."""
        field = QSpinBox()
        field.setRange(least, most)
        field.setSingleStep(step)
        field.setSpecialValueText(auto)
        field.setSuffix(f" {unit}" if unit else "")
        field.setGroupSeparatorShown(True)
        field.setKeyboardTracking(False)
        field.setFont(interface_font(LINE_PX))
        field.setAccessibleName(label)
        field.lineEdit().setTextMargins(5, 0, 0, 0)
        field.setFocusPolicy(Qt.FocusPolicy.StrongFocus)  # scrolling past it changes nothing
        field.valueChanged.connect(lambda value: self._changed(name, value))
        self.numbers[name] = field
        self.add(name, label, field, now=now, hint=hint)

    def show_number(self, name: str, value: int) -> None:
        """Shows what holds; nothing is told."""
        field = self.numbers[name]
        field.blockSignals(True)
        field.setValue(value)
        field.blockSignals(False)
