"""Exports, imports and scoring: dialogues, progress and results, without blocking the window."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QApplication, QFileDialog, QLineEdit, QPlainTextEdit, QWidget

from ui.controller import Controller
from ui.core.tasks import StoppableTasks
from ui.port import ExportFormat, ImportResult, translate
from ui.widgets.fields import ask_for_file
from ui.widgets.labels import Notice
from ui.window.status import StatusBar
from ui.window.toast import Toast

T = TypeVar("T")
_UNSAFE = re.compile(r'[\x00-\x1f/\\:*?"<>|]+')
LONGEST_NAME = 60  # characters
MOST_RECENT = 8  # files
TRANSFER = "transfer"  # one key for all, so that one runs at a time
Offer = tuple[tuple[int, ...], Path]  # imported sessions, and the file with their KV


class TransferQueue(QObject):
    """Runs one transfer at a time; imports wait in a queue, which is dropped by `stop`.

    Args:
        controller: Runs the tasks, and opens imported sessions.
        status: Shows the progress.
        notice: Shows refusals and decisions to make.
        toast: Shows results.
        window: Owns the dialogues.
    """

    opening = Signal()  # an imported session is opened: the search of the list is to be cleared

    def __init__(self, controller: Controller, status: StatusBar, notice: Notice, toast: Toast, window: QWidget) -> None:
        super().__init__(window)
        self._controller, self._workbench = controller, controller.workbench
        self.formats = self._workbench.transfers.formats
        self._status = status
        self._notice, self._toast = notice, toast
        self._window = window
        self._running = StoppableTasks(controller.tasks)
        self._closing = False
        self._scoring: int | None = None  # the session being scored, which is locked
        controller.watch(lambda session_id: session_id == self._scoring)
        self.recent: list[Path] = []  # imported and exported files, the last one first
        self._waiting: list[Callable[[], None]] = []  # the queue
        self._dropped = 0  # queued transfers that the last stop dropped
        self._offered: dict[str, Offer] = {}  # KV to be accepted, by the line of the notice
        notice.acted.connect(self._take_offered)
        status.transfer.stop_button.clicked.connect(self.stop)

    def ask_export(self, form: ExportFormat) -> None:
        """Asks for a file, then exports the session shown to it."""
        shown = self._controller.shown
        if shown is None:
            return
        dialog = QFileDialog(self._window, self.tr("Export Session"))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setNameFilter(translate("Exports", form.files))
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix(form.ending)
        name = file_name(shown.view.title) or self.tr("session")
        dialog.selectFile(f"{name}.{form.ending}")
        session_id = shown.session_id
        dialog.fileSelected.connect(lambda name: self.export(session_id, form, Path(name)))
        dialog.open()

    def ask_import(self) -> None:
        names = self.tr("Sessions and messages (*.json *.jsonl *.elsewise);;All files (*)")
        ask_for_file(self._window, self.tr("Import Sessions"), lambda name: self.take(Path(name)), names=names)

    def export(self, session_id: int, form: ExportFormat, path: Path) -> None:
        work = partial(self._workbench.transfers.export, session_id, form.name, path, self._status.transfer.show_progress)
        self._begin(self.tr("exporting"), work, partial(self._exported, form, path))

    def take(self, path: Path) -> None:
        """Imports a file and shows its first session, once the running transfers have ended."""
        if TRANSFER in self._running:
            self._waiting.append(partial(self._import, path, after_another=True))
        else:
            self._import(path)

    def _import(self, path: Path, *, after_another: bool = False) -> None:
        work = partial(self._workbench.transfers.import_file, path, self._status.transfer.show_progress)
        self._begin(self.tr("importing"), work, partial(self._imported, path), keep_notice=after_another)

    def score(self) -> None:
        """Scores the tokens of the session shown that have no scores."""
        shown = self._controller.shown
        if shown is not None:
            self._begin(self.tr("scoring"), partial(self._score, shown.session_id), self._scored)

    async def _score(self, session_id: int) -> int:
        self._scoring = session_id
        self._controller.activity_changed.emit()
        try:
            return await self._workbench.answers.score(session_id, self._status.transfer.show_progress)
        finally:
            self._scoring = None
            self._controller.activity_changed.emit()

    def stop(self) -> None:
        """Stops the running transfer, and drops the queue."""
        self._dropped += len(self._waiting)
        self._waiting.clear()
        self._running.stop(TRANSFER)

    async def close(self) -> None:
        """Cancels the running transfer and waits until it has ended; to be called before the store is closed."""
        self._closing = True
        await self._running.cancel()

    def _begin(
        self,
        words: str,
        work: Callable[[], Coroutine[Any, Any, T]],
        done: Callable[[T], None],
        *,
        keep_notice: bool = False,
    ) -> None:
        if TRANSFER in self._running:
            self._notice.say(self.tr("another import, export or scoring is running; stop it or wait for it"))
            return
        if not keep_notice:
            self._notice.clear()
            self._offered = {}
        self._dropped = 0
        self._status.transfer.begin(words)
        self._running.begin(
            TRANSFER,
            work,
            done=partial(self._end, done),
            stopped=partial(self._end, self._stopped),
            refused=partial(self._end, self._say),
        )

    def _end(self, show: Callable[..., None], *result: object) -> None:
        self._status.transfer.hide()
        show(*result)
        if self._waiting and not self._closing and TRANSFER not in self._running:
            self._waiting.pop(0)()

    def _say(self, words: str) -> None:
        """Appends a line to the notice; offers whose line was dismissed are dropped."""
        said = self._notice.words
        self._offered = {each: offer for each, offer in self._offered.items() if each in (*said.splitlines(), words)}
        action = self.tr("Accept KV") if self._offered else ""
        self._notice.say("\n".join(filter(None, [said, words])), action)

    def _stopped(self) -> None:
        if self._closing:
            return
        words = self.tr("stopped; nothing was kept, and {0:,} more were not begun") if self._dropped else ""
        self._toast.say(words.format(self._dropped) or self.tr("stopped; nothing was kept"))

    def _scored(self, count: int) -> None:
        words = self.tr("{0:,} tokens were scored") if count else self.tr("every token has its numbers already")
        self._toast.say(words.format(count))

    def _exported(self, form: ExportFormat, path: Path, without: str) -> None:
        if form.comes_back:
            self._remember(path)
        said = self.tr("exported to {0}").format(path)
        self._toast.say(said) if not without else self._notice.say(f"{said}; {without}")

    def _imported(self, path: Path, result: ImportResult) -> None:
        self._remember(path)
        if result.carries_kv:
            words = self.tr("{0}. It contains KV, which cannot be verified: accept it only from people you trust")
            said = words.format(self._told(result, path))
            self._offered[said] = result.sessions, path
            self._say(said)
        elif result.notes:
            self._say(self._told(result, path))
        else:
            self._toast.say(self._told(result, path))
        if result.sessions and not is_typing():
            self.opening.emit()
            self._controller.sessions.search("")
            self._controller.open(result.sessions[0])

    def _remember(self, path: Path) -> None:
        self.recent[:] = [path, *(each for each in self.recent if each != path)][:MOST_RECENT]

    def _take_offered(self) -> None:
        offered, self._offered = list(self._offered.values()), {}
        if offered and TRANSFER in self._running:
            self._waiting.insert(0, partial(self._accept, offered))
        elif offered:
            self._accept(offered)

    def _accept(self, offered: Sequence[Offer]) -> None:
        names = ", ".join(path.name for _, path in offered)
        done = partial(self._kv_taken, names)
        self._begin(self.tr("importing KV"), partial(self._take_kv, offered), done, keep_notice=True)

    async def _take_kv(self, offered: Sequence[Offer]) -> int:
        show, take_kv = self._status.transfer.show_progress, self._workbench.transfers.take_kv
        return sum([await take_kv(session_ids, path, show) for session_ids, path in offered])

    def _kv_taken(self, names: str, blocks: int) -> None:
        self._toast.say(self.tr("{0:,} KV blocks were imported from {1}").format(blocks, names))

    def _told(self, result: ImportResult, path: Path) -> str:
        count = len(result.sessions)
        words = self.tr("imported {0}") if count == 1 else self.tr("imported {1:,} sessions from {0}")
        return "; ".join((words.format(path.name, count), *result.notes))


def is_typing() -> bool:
    """Whether the focus is in a field with text, for which the keys are meant."""
    field = QApplication.focusWidget()
    text = field.text() if isinstance(field, QLineEdit) else field.toPlainText() if isinstance(field, QPlainTextEdit) else ""
    return bool(text.strip())


def file_name(title: str) -> str:
    """A title as the name of a file, without the characters that some system forbids."""
    return _UNSAFE.sub(" ", title).strip(" .")[:LONGEST_NAME].strip(" .")


SESSION_MARK = b'"elsewise.session"'  # in the first bytes of a session exported as JSON
_HEAD_BYTES = 200
PICTURES = frozenset(["avif", "bmp", "gif", "heic", "ico", "jpeg", "jpg", "png", "tif", "tiff", "webp"])


class DroppedFiles(QObject):
    """Sorts dropped files by their kind."""

    text_wanted = Signal(str)  # path of a file to attach to the message
    session_wanted = Signal(object)  # Path of a file to import
    model_wanted = Signal(object)  # Path of a GGUF file, or of a folder with a model
    refused = Signal(str)

    def take(self, paths: Sequence[Path]) -> None:
        """Emits a signal for each file; pictures are refused by name."""
        pictures = []
        for path in paths:
            kind = path.suffix.lower().removeprefix(".")
            if path.is_dir() or kind == "gguf":
                self.model_wanted.emit(path)
            elif kind == "elsewise" or (kind == "json" and _is_session(path)):
                self.session_wanted.emit(path)
            elif kind in PICTURES:
                pictures.append(path.name)
            else:
                self.text_wanted.emit(str(path))
        if pictures:
            self.refuse_pictures(", ".join(pictures))

    def refuse_pictures(self, names: str) -> None:
        words = translate("DroppedFiles", "{0}: models here read text, not pictures")
        self.refused.emit(words.format(names or translate("DroppedFiles", "a picture")))


def _is_session(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return SESSION_MARK in file.read(_HEAD_BYTES)
    except OSError:
        return False  # the error is shown when it is read as a text file
