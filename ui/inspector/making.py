"""How the last answer was made: quiet rows, the options behind a button."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QVBoxLayout, QWidget

from ui.inspector.facts import Facts
from ui.parts import button
from ui.port import Made
from ui.widgets import Caption


class Making(QWidget):
    """The model, the seed, counts and times of one answer; every option, with who said so, on request."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.facts, self.settings = Facts(columns=1), Facts(columns=1)
        self.more = button("", "link")
        self.more.setCheckable(True)
        self.more.toggled.connect(self._open)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 20, 0, 0)
        column.setSpacing(6)
        column.addWidget(Caption(self.tr("How the last answer was made")))
        column.addWidget(self.facts)
        column.addWidget(self.more, 0, Qt.AlignmentFlag.AlignLeft)
        column.addWidget(self.settings)
        self._open(False)
        self.show_made(None)

    def show_made(self, made: Made | None) -> None:
        """Shows it; nothing where nobody kept how."""
        self.setVisible(made is not None)
        if made is None:
            return
        self.facts.show_facts(made.facts)
        said = {setting.name: f"{setting.value} · {setting.source}" for setting in made.settings}
        self.settings.show_facts({name.replace("_", " "): words for name, words in said.items()})

    def _open(self, on: bool) -> None:  # a state, not an option
        self.settings.setVisible(on)
        self.more.setText(self.tr("Hide options") if on else self.tr("Every option, and who chose it"))
