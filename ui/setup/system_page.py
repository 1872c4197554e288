"""The system prompt of a session, and the files that are sent after it."""

from __future__ import annotations

from PySide6.QtCore import Signal

from ui.composer.file_chips import FileChips
from ui.port import SessionSetup
from ui.widgets.controls import Page, SourceField, button, row, words


class SystemPage(Page):
    """Shows `SessionSetup.system` and `files`."""

    system_wanted = Signal(str)
    files_wanted = Signal(object)  # tuple[TextFile, ...]

    def __init__(self) -> None:
        super().__init__()
        self.head(self.tr("System prompt"))
        self.system = SourceField(
            self.tr("System prompt"), self.tr("none: that of the model's template"), mono=False, height=220
        )
        self.column.addWidget(self.system)
        self.system_button = button(self.tr("Start a branch with this system prompt"))
        self.system_button.clicked.connect(lambda: self.system_wanted.emit(self.system.toPlainText()))
        self.column.addLayout(row(self.system_button, 1))
        self.column.addWidget(words(self.tr("the conversation so far stays as another branch"), "faint"))
        self.pinned_words = words(self.tr("pinned files, sent after the system prompt:"), "faint")
        self.pinned = FileChips(can_pin=False)
        self.pinned.dropped.connect(self.files_wanted)
        self.column.addWidget(self.pinned_words)
        self.column.addWidget(self.pinned)
        self.column.addStretch(1)
        self._said = ""
        self._session_id = 0
        self._drafts: dict[int, str] = {}  # of the sessions that are not shown
        self.system.textChanged.connect(self._offer)

    def show_setup(self, setup: SessionSetup) -> None:
        written = self.system.toPlainText()
        is_draft = written.strip() != self._said.strip()
        if setup.session_id != self._session_id:
            if is_draft:
                self._drafts[self._session_id] = written
            self._session_id = setup.session_id
            self.system.show_text(self._drafts.pop(setup.session_id, setup.system))
        elif not is_draft:
            self.system.show_text(setup.system)  # what is being written is not lost to news
        self._said = setup.system
        self._offer()
        self.pinned.show_files(setup.files)
        self.pinned_words.setVisible(bool(setup.files))

    def _offer(self) -> None:
        self.system_button.setEnabled(self.system.toPlainText().strip() != self._said)
