"""The page of tools that the model may call: definitions as JSON. Calls are shown, never executed."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QTimer, Signal

from ui.port import SessionSetup
from ui.widgets.controls import Page, PageDrafts, SourceField, button, row, words
from ui.widgets.labels import set_kind
from ui.widgets.visible import one_line

CHECK_DELAY_MS = 300
EXAMPLE = """[{"name": "weather",
  "description": "the weather of a place",
  "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"]}}]"""


class ToolsPage(Page):
    """Shows `SessionSetup.tools`."""

    tools_wanted = Signal(str)
    check_wanted = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.source = SourceField(self.tr("Definitions of tools, as JSON"), EXAMPLE, height=210)
        self.source.textChanged.connect(self._typed)
        self.state = words()
        self.offer_button = button(self.tr("Start a branch with these tools"))
        self.offer_button.clicked.connect(lambda: self.tools_wanted.emit(self.source.toPlainText()))
        hint = self.tr(
            "Tools are part of the system prompt, so this starts a branch. A call is shown under its answer and "
            "waits for a result that you type; nothing is executed."
        )
        self.section(self.tr("Tools"), self.source, self.state, row(self.offer_button, 1), words(hint, "faint"), 1)
        self._held = ""
        self._drafts = PageDrafts[str]()
        self._checked: tuple[Sequence[str], str] | None = ((), "")  # names and problem of the draft; None while it is checked
        self._delay = QTimer(self, singleShot=True, interval=CHECK_DELAY_MS)
        self._delay.timeout.connect(lambda: self.check_wanted.emit(self.source.toPlainText()))
        self._refresh()

    def show_setup(self, setup: SessionSetup) -> None:
        """Shows the tools in force, unless a draft is being written."""
        written = self.source.toPlainText()
        is_draft = written.strip() != self._held
        self._held = setup.tools.strip()
        self.source.show_text(self._drafts.show(setup.session_id, written, setup.tools, is_draft=is_draft))
        self._refresh()

    def show_checked(self, source: str, names: Sequence[str], problem: str) -> None:
        """Shows the result of a check, unless the draft has changed since."""
        if source == self.source.toPlainText():
            self._checked = (names, problem)
            self._refresh()

    def _typed(self) -> None:
        self._checked = None
        self._delay.start()
        self._refresh()

    def _refresh(self) -> None:
        problem = self._checked[1] if self._checked is not None else ""
        names = self._checked[0] if self._checked is not None else ()
        changed = self.source.toPlainText().strip() != self._held
        self.offer_button.setEnabled(changed and self._checked is not None and not problem)
        if self._checked is None:
            said = self.tr("checking…")
        elif problem:
            said = problem
        elif names:
            said = self.tr("defines {0}").format(", ".join(one_line(name) for name in names))
        else:
            said = self.tr("none")
        self.state.setText(said)
        set_kind(self.state, "warm" if problem else "soft")
