"""The text files attached to a message: name, tokens, and buttons to preview, pin or remove each."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QSizePolicy, QToolTip, QWidget

from ui.port import TextFile
from ui.theme.fonts import interface_font
from ui.widgets.controls import button, column_in, drop, row_in
from ui.widgets.labels import ElidedLabel, IconButton, plain_tooltip
from ui.widgets.numbers import count
from ui.widgets.visible import one_line

PREVIEW = 500  # characters of a file in its tool tip


class FileChips(QWidget):
    """The files attached to the draft, or (`can_pin` is False) the pinned files."""

    changed = Signal()
    dropped = Signal(object)  # tuple[TextFile, ...]: the remaining files, after the user removed one
    pin_wanted = Signal(object)  # TextFile

    def __init__(self, *, can_pin: bool = True) -> None:
        super().__init__()
        self._can_pin = can_pin
        self._column = column_in(self, spacing=4)
        self.files: tuple[TextFile, ...] = ()
        self.chips: list[FileChip] = []
        self.hide()

    def show_files(self, files: Sequence[TextFile]) -> None:
        if tuple(files) == self.files and len(self.chips) == len(files):
            return
        for old in self.chips:
            drop(self._column, old)
        self.files = tuple(files)
        self.chips = [FileChip(file) for file in self.files]
        for place, chip in enumerate(self.chips):
            chip.remove.clicked.connect(lambda _checked=False, place=place: self._drop(place))
            chip.pin.clicked.connect(lambda _checked=False, file=chip.file: self.pin_wanted.emit(file))
            chip.pin.setVisible(self._can_pin)
            self._column.addWidget(chip)
        self.setVisible(bool(self.chips))
        self.changed.emit()

    def show_tokens(self, tokens: Sequence[int]) -> None:
        for chip, count_of_it in zip(self.chips, tokens, strict=False):  # files attached since are counted next
            chip.show_tokens(count_of_it)

    def _drop(self, place: int) -> None:
        self.show_files([file for at, file in enumerate(self.files) if at != place])
        self.dropped.emit(self.files)


class FileChip(QFrame):
    """A file that goes with the message: name, size, tokens, preview, and a button that removes it."""

    def __init__(self, file: TextFile) -> None:
        super().__init__()
        self.file = file
        self.setProperty("kind", "card")
        self.setMinimumHeight(30)
        name = one_line(file.name)
        self.setToolTip(plain_tooltip(file.text[:PREVIEW]))
        self.size_label = ElidedLabel(self.tr("{0} characters").format(count(len(file.text))), "faint", interface_font(11.5))
        self.size_label.setSizePolicy(QSizePolicy.Policy.Minimum, QSizePolicy.Policy.Preferred)  # the name gives way
        self.preview = button(self.tr("preview"), "link")
        self.preview.setAccessibleName(self.tr("Preview {0}").format(name))
        self.preview.setAccessibleDescription(file.text[:PREVIEW])
        self.preview.setEnabled(bool(file.text.strip()))
        self.preview.clicked.connect(self._show_preview)
        self.pin = button(self.tr("pin as context"), "link")
        self.pin.setAccessibleName(self.tr("Pin {0} as context").format(name))
        self.remove = IconButton("x", self.tr("Remove {0}").format(name))
        title = ElidedLabel(name, "", interface_font(12.5))
        row_in(self, title, (self.size_label, 1), self.preview, self.pin, self.remove, spacing=10, margins=(10, 3, 4, 3))

    def _show_preview(self) -> None:
        below = self.preview.mapToGlobal(self.preview.rect().bottomLeft())
        QToolTip.showText(below, self.toolTip(), self.preview)

    def show_tokens(self, tokens: int) -> None:
        """Shows the file's tokens in place of its characters."""
        self.size_label.setText(self.tr("1 token") if tokens == 1 else self.tr("{0} tokens").format(count(tokens)))
