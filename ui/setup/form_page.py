"""The output format: free text, a JSON schema, a regex or a Lark grammar; checked as it is typed."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, QTimer, Signal

from ui.port import AnswerFormat, FormatKind, SessionSetup, StatusView
from ui.widgets.controls import Choice, Page, PageDrafts, SourceField, button, row, words
from ui.widgets.labels import set_kind

CHECK_DELAY_MS = 400
KINDS = (FormatKind.FREE, FormatKind.JSON_SCHEMA, FormatKind.REGEX, FormatKind.LARK)
EXAMPLES = {
    FormatKind.FREE: "",
    FormatKind.JSON_SCHEMA: '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}',
    FormatKind.REGEX: r"(yes|no)(, because [^.]+)?\.",
    FormatKind.LARK: 'start: "Answer: " NUMBER\nNUMBER: /[0-9]+/',
}


class FormPage(Page):
    """Shows `SessionSetup.answer_format`."""

    format_wanted = Signal(object)  # AnswerFormat
    check_wanted = Signal(object)  # AnswerFormat

    def __init__(self) -> None:
        super().__init__()
        kinds = self.tr("free text"), self.tr("JSON schema"), self.tr("regex"), self.tr("Lark")
        self.kinds = Choice(self.tr("Output format"), kinds)
        self.kinds.show_choice(0)
        self.kinds.chosen.connect(self._choose)
        self.lacking = words()
        self.lacking.hide()
        self.source = SourceField(self.tr("Schema, pattern or grammar"), "", height=190)
        self.source.textChanged.connect(self._typed)
        self.state = words()
        self.use_button = button(self.tr("Use this format"))
        self.use_button.clicked.connect(lambda: self.format_wanted.emit(self.written))
        use = row(self.use_button, 1)
        self.section(self.tr("Output format"), row(self.kinds, 1), self.lacking, self.source, self.state, use, 1)
        self._held = AnswerFormat()
        self._drafts = PageDrafts[AnswerFormat]()
        self._sources: dict[tuple[int, FormatKind], str] = {}  # drafts by session and kind
        self._problem: str | None = ""  # of the draft; None while it is checked
        self._delay = QTimer(self, singleShot=True, interval=CHECK_DELAY_MS)
        self._delay.timeout.connect(lambda: self.check_wanted.emit(self.written))
        self._refresh()

    @property
    def written(self) -> AnswerFormat:
        kind = KINDS[self.kinds.place]
        return AnswerFormat(kind, "" if kind is FormatKind.FREE else self.source.toPlainText())

    def show_setup(self, setup: SessionSetup) -> None:
        """Shows the format in force, unless a draft is being written."""
        written, is_draft = self.written, self.written != self._held
        self._held = setup.answer_format
        shown = self._drafts.show(setup.session_id, written, self._held, is_draft=is_draft)
        if shown != written:
            self._show(shown)
        self._refresh()

    def show_status(self, status: StatusView) -> None:
        """Disables the kinds that the running model does not enforce."""
        missing = []
        for kind, part in zip(KINDS, self.kinds.buttons, strict=True):
            part.setEnabled(kind.value not in status.lacks)
            missing += [] if part.isEnabled() else [part.text()]
        self.lacking.setText(self.tr("{0} enforces no {1}.").format(status.model, ", ".join(missing)))
        self.lacking.setVisible(bool(missing))

    def show_checked(self, asked: AnswerFormat, problem: str) -> None:
        """Shows the result of a check, unless the draft has changed since."""
        if asked == self.written:
            self._problem = problem
            self._refresh()

    def _show(self, answer_format: AnswerFormat) -> None:
        self.kinds.show_choice(KINDS.index(answer_format.kind))
        with QSignalBlocker(self.source):
            self.source.show_text(answer_format.source)
        self._check()

    def _choose(self, place: int) -> None:
        kind = KINDS[place]
        if kind is FormatKind.FREE:
            self._delay.stop()
            self._refresh()
            if self._held.kind is not FormatKind.FREE:
                self.format_wanted.emit(AnswerFormat())
            return
        held = self._held.source if self._held.kind is kind else ""
        self.source.setPlaceholderText(EXAMPLES[kind])
        self.source.show_text(self._sources.get((self._drafts.session_id, kind), held))
        self._typed()
        self.source.setFocus()

    def _typed(self) -> None:
        written = self.written
        self._sources[self._drafts.session_id, written.kind] = written.source
        self._check()
        self._refresh()

    def _check(self) -> None:
        """Schedules a check of the draft, unless it is the format in force."""
        written = self.written
        asks = bool(written.source.strip()) and written != self._held
        self._problem = None if asks else ""
        self._delay.start() if asks else self._delay.stop()

    def _refresh(self) -> None:
        written = self.written
        free, used = written.kind is FormatKind.FREE, written == self._held
        self.source.setVisible(not free)
        self.use_button.setVisible(not free)
        self.source.setPlaceholderText(EXAMPLES[written.kind])
        ready = not free and not used and bool(written.source.strip()) and self._problem == ""
        self.use_button.setEnabled(ready)
        if free:
            said = self.tr("the model may write anything")
        elif used:
            said = self.tr("every answer has this format from now on")
        elif not written.source.strip():
            said = self.tr("type or paste it; it is checked as you type")
        elif self._problem is None:
            said = self.tr("checking…")
        else:
            said = self._problem or self.tr("valid")
        self.state.setText(said)
        set_kind(self.state, "soft" if not self._problem else "warm")
