"""`elsewise` without a command: one window, one store, one engine, on one event loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import logging.handlers
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from PySide6.QtCore import (
    QEvent,
    QFileSystemWatcher,
    QMessageLogContext,
    QSocketNotifier,
    Qt,
    QtMsgType,
    Signal,
    qInstallMessageHandler,
)
from PySide6.QtGui import QFileOpenEvent
from PySide6.QtWidgets import QApplication, QMessageBox
from qasync import QEventLoop

from app.faults import MOVED
from app.paths import DataFolder
from app.rescue import remedies, rescue
from app.sample import ensure_sample, first_sample
from app.supervisor import Supervisor
from app.windows import AppWindows, KeptWindows
from app.workbench import AppWorkbench, Services
from app.workbench.models.settings import blocks_in
from resources.processes import is_bundle, is_temporary_copy, was_moved
from storage import DataFolderLock, SessionStore, StoreDamagedError, StoreError, StoreReadOnlyError, read_focus, request_focus
from ui import QT_TRANSLATE_NOOP, AppSettings, Collector, MainWindow, Scheme, apply_theme, translate

log = logging.getLogger(__name__)
LOG_BYTES = 1 << 20
GIL_SECONDS = 0.001  # until a computing thread yields; with Python's 5 ms the window waits for the store's thread
DISPLAYS = ("WAYLAND_DISPLAY", "DISPLAY")
QUARANTINED = QT_TRANSLATE_NOOP(
    "Workbench",
    "macOS runs Elsewise from a temporary copy until it is moved: quit, drag it into Applications in the Finder, open it there",
)
COMPLETE = "the window stands with its first session after"  # in the log with `--verbose`; the benchmark waits for it


def open_window(data: DataFolder, model: str, backend: str, *, demo: bool = False, files: Sequence[Path] = ()) -> int:
    """Opens the window until it is closed; returns the exit code.

    If another process has a window on the data folder, that one comes to the front and opens the `files`.
    """
    lock = DataFolderLock(data.root, "window")
    try:
        if not lock.acquire():
            request_focus(data.root, files)
            return 0
        application = _application()
        data.make()
        _log_to(data.log)
        store = SessionStore.open(data.sessions)
    except (StoreError, OSError) as fault:
        instead = _after(fault, data)
        lock.release()
        return 1 if instead is None else open_window(instead, model, backend, demo=demo, files=files)
    try:
        with asyncio.Runner(loop_factory=lambda: QEventLoop(application)) as runner:
            runner.run(run_window(data, store, model, backend, demo=demo, files=files))
    finally:
        store.close_sync()
        lock.release()
    return 0


class Application(QApplication):
    """A QApplication that emits the files that macOS asks the app to open."""

    file_opened = Signal(Path)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QFileOpenEvent) and event.file():
            self.file_opened.emit(Path(event.file()))
            return True
        return super().event(event)


def _application() -> QApplication:
    """The QApplication; without a display the process ends here with a message, in place of Qt's abort."""
    said: list[str] = []

    def hear(kind: QtMsgType, _: QMessageLogContext, message: str | None) -> None:
        said.append((message or "").strip())
        if kind == QtMsgType.QtFatalMsg:
            sys.stderr.write(f"elsewise: no window can be opened here: {_no_display(said)}\n")
            sys.stderr.flush()
            os._exit(1)

    before = qInstallMessageHandler(hear)
    application = QApplication.instance() or Application(["elsewise"])
    qInstallMessageHandler(before)
    if said:
        sys.stderr.write("\n".join([*said, ""]))
    assert isinstance(application, QApplication)
    application.setApplicationName("Elsewise")
    application.setQuitOnLastWindowClosed(False)
    apply_theme(application, Scheme.SYSTEM)
    return application


def _no_display(said: Sequence[str]) -> str:
    """Why there is no display, from Qt's messages, and what to do."""
    if sys.platform == "linux" and not any(os.environ.get(name) for name in (*DISPLAYS, "QT_QPA_PLATFORM")):
        why = f"neither {' nor '.join(DISPLAYS)} is set"
    else:
        why = said[0]
    return f"{why}; start elsewise in a desktop session, or use its commands, such as elsewise ask (elsewise --help)"


def _after(fault: StoreError | OSError, data: DataFolder) -> DataFolder | None:
    """Prints why `data` cannot be opened; returns the folder that is chosen instead.

    A page shows the choice for damaged sessions, and in an installed app, which has no terminal.
    """
    damaged = isinstance(fault, StoreDamagedError)
    way_out = (
        f"\n{remedies(data)}" if damaged else "; choose another folder with --data-dir" * isinstance(fault, StoreReadOnlyError)
    )
    sys.stderr.write(f"elsewise: {fault}{way_out}\n")
    if not damaged and not is_bundle():
        return None
    application, collector = _application(), Collector()
    try:
        with asyncio.Runner(loop_factory=lambda: QEventLoop(application)) as runner:
            return runner.run(rescue(data, fault))
    finally:
        collector.stop()


async def run_window(
    data: DataFolder,
    store: SessionStore,
    model: str,
    backend: str,
    *,
    demo: bool = False,
    files: Sequence[Path] = (),
    on_shown: Callable[[MainWindow, AppWorkbench], None] | None = None,
) -> None:
    """Shows the windows until the last is closed; on return everything is saved and the engine has ended.

    `on_shown` is called when the first window shows its session (or why it cannot be opened), before the engine is loaded.
    """
    began = time.time_ns()
    sys.setswitchinterval(GIL_SECONDS)
    supervisor = Supervisor(model, backend, log_path=data.engine_log, blocks=blocks_in(data))
    workbench = AppWorkbench(Services(store, supervisor, reopens=True))
    kept = KeptWindows()
    windows = AppWindows(workbench, await kept.read(store))
    windows.remember = lambda state: workbench.services.tasks.start(_remember(kept, store, state), "remember the windows")
    settings = await workbench.settings.load()
    window = windows.open_first()
    if settings != AppSettings():  # else the defaults apply already
        window.apply(settings)
    filled = asyncio.Event()
    for settled in (window.controller.session_shown, window.controller.refused, window.closed):
        settled.connect(lambda *_: filled.set())
    window.show()
    sample = await (ensure_sample(store) if demo else first_sample(store))
    rows = [row for row in await store.sessions() if row.branches]
    known = [row.id for row in rows]
    latest = sample if demo else next((row.id for row in rows if not row.is_sample), sample)
    fresh = not demo and windows.opens_empty(known)
    window.start(None if fresh else latest if demo else windows.session(known) or latest, fresh=fresh)
    watcher = _watch_focus(data, windows, began)
    application = QApplication.instance()
    if isinstance(application, Application):
        application.file_opened.connect(windows.open_file)
    with _closing_on_signals(windows), _explaining_moved_app(windows):
        await filled.wait()
        window.repaint()  # now, before the engine uses the CPU
        log.info("%s %.3f s of processor time", COMPLETE, time.process_time())
        gc.freeze()  # permanent objects leave the collector, whose full passes would be visible as jerks
        windows.open_others(known)
        collector = Collector()
        if on_shown is not None:
            on_shown(window, workbench)
        if is_temporary_copy():
            window.parts.composer.notice.say(translate("Workbench", QUARANTINED))
        for path in files:
            windows.open_file(path)
        if not demo:
            workbench.models.warm_up()
        workbench.services.tidy_up()
        await windows.ended.wait()
    collector.stop()
    watcher.deleteLater()
    left = windows.left()
    if left is not None:
        await _keep(data, kept, left)
    if workbench.services.unsaved:
        await _tell_unsaved(workbench.services.unsaved)


async def _remember(kept: KeptWindows, store: SessionStore, state: dict[str, Any]) -> None:
    """Saves the state of the open windows, in case the process is killed."""
    try:
        await kept.write(store, state)
    except StoreError as fault:  # it is saved again when they are closed
        log.warning("how the windows stand could not be saved: %s", fault)


async def _tell_unsaved(unsaved: Sequence[str]) -> None:
    """Shows where unsaved answers are, after the windows were closed, until the message is closed."""
    sentences, _, texts = zip(*(words.partition("\n\n") for words in unsaved), strict=True)
    for words in sentences:
        log.warning("%s", words)
    box = QMessageBox(QMessageBox.Icon.Warning, "Elsewise", "\n\n".join(sentences))
    if any(texts):  # answers that no folder took
        box.setDetailedText("\n\n".join(filter(None, texts)))
        box.setStandardButtons(QMessageBox.StandardButton.Ok)
        box.setEscapeButton(QMessageBox.StandardButton.Ok)  # beside the one that shows the texts
    box.setTextFormat(Qt.TextFormat.PlainText)
    box.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard)
    read = asyncio.Event()
    box.finished.connect(read.set)
    box.show()
    await read.wait()
    box.deleteLater()


async def _keep(data: DataFolder, kept: KeptWindows, left: dict[str, Any]) -> None:
    """The store is closed by now: where the windows stood is a small write of its own."""
    try:
        async with SessionStore.open(data.sessions) as store:
            await kept.write(store, left)
    except StoreError as fault:  # maybe a full disk: unsaved answers are reported anyway
        log.warning("how the windows stood could not be saved: %s", fault)


@contextmanager
def _closing_on_signals(windows: AppWindows) -> Iterator[None]:
    """Ctrl-C and SIGTERM close all windows like Quit; Qt's loop must be woken for Python to see a signal."""
    ours, pythons = socket.socketpair()
    with ours, pythons:
        for end in (ours, pythons):
            end.setblocking(False)
        before = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
        notifier = QSocketNotifier(ours.fileno(), QSocketNotifier.Type.Read)
        notifier.activated.connect(lambda: ours.recv(64))
        handlers = {number: signal.signal(number, lambda *_: windows.close()) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            notifier.setEnabled(False)
            signal.set_wakeup_fd(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)


@contextmanager
def _explaining_moved_app(windows: AppWindows) -> Iterator[None]:
    """Explains exceptions outside commands if the app bundle was moved, which makes its files missing."""
    before = sys.excepthook

    def hear(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if was_moved() and windows.front is not None:
            windows.front.parts.composer.notice.say(translate("Workbench", MOVED))

    sys.excepthook = hear
    try:
        yield
    finally:
        sys.excepthook = before


def _watch_focus(data: DataFolder, windows: AppWindows, since: int) -> QFileSystemWatcher:
    """Watches the file that a second start of the app writes: comes to the front, and opens its files.

    Args:
        data: The data folder.
        windows: Open the files.
        since: `time.time_ns` of the start; a request after it, before there was a window, is handled now.
    """
    watcher, focus = QFileSystemWatcher(), data.focus
    known = read_focus(data.root)
    if focus.exists():
        watcher.addPath(str(focus))
    if known is not None and known.stamp >= since:
        for name in known.files:
            windows.open_file(Path(name))

    def come_forward() -> None:
        nonlocal known
        windows.come_forward()
        asked = read_focus(data.root)
        if asked is not None and asked != known:  # one write may be reported more than once
            known = asked
            for name in asked.files:
                windows.open_file(Path(name))
        if str(focus) not in watcher.files() and focus.exists():
            watcher.addPath(str(focus))

    watcher.fileChanged.connect(come_forward)
    return watcher


def _log_to(path: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    path.chmod(0o600)
    logging.getLogger().addHandler(handler)
