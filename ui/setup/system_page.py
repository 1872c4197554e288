"""The page of the system prompt, and of the files that are sent after it."""

from __future__ import annotations

from PySide6.QtCore import Signal

from ui.composer.file_chips import FileChips
from ui.port import SessionSetup
from ui.widgets.controls import Page, PageDrafts, SourceField, button, row, words


class SystemPage(Page):
    """Shows `SessionSetup.system` and `files`."""

    system_wanted = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.system = SourceField(
            self.tr("System prompt"), self.tr("empty: as in the model's template"), mono=False, height=220
        )
        self.system_button = button(self.tr("Start a branch with this system prompt"))
        self.system_button.clicked.connect(lambda: self.system_wanted.emit(self.system.toPlainText()))
        hint = words(self.tr("the conversation so far stays as another branch"), "faint")
        self.pinned_words = words(self.tr("pinned files, sent after the system prompt:"), "faint")
        self.pinned = FileChips(can_pin=False)
        begin = row(self.system_button, 1)
        self.section(self.tr("System prompt"), self.system, begin, hint, self.pinned_words, self.pinned, 1)
        self._system = ""  # in force
        self._drafts = PageDrafts[str]()
        self.system.textChanged.connect(self._offer)

    def show_setup(self, setup: SessionSetup) -> None:
        written = self.system.toPlainText()
        is_draft = written.strip() != self._system.strip()
        self.system.show_text(self._drafts.show(setup.session_id, written, setup.system, is_draft=is_draft))
        self._system = setup.system
        self._offer()
        self.pinned.show_files(setup.files)
        self.pinned_words.setVisible(bool(setup.files))

    def _offer(self) -> None:
        self.system_button.setEnabled(self.system.toPlainText().strip() != self._system)
