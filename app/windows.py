"""The windows of the app on the screen: opened, closed one by one or all at once, saved and restored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_type_hints

from msgspec import ValidationError, convert

from app.workbench import AppWorkbench
from app.workbench.refusals import intact
from storage import SessionStore
from ui import MainWindow, WindowState

WINDOW_SETTING = "window"
FILES_SETTING = "draft files"
STEP = 32  # pixels between a window and the one that was opened from it


class KeptWindows:
    """The saved state of the windows; the files of drafts are a setting of their own, written only when they change."""

    def __init__(self) -> None:
        self._files: list[list[Any]] = []  # as last written: session id, then name and text of each file

    async def read(self, store: SessionStore) -> object:
        """The saved state, for `AppWindows`."""
        kept, files = [await intact(store.setting(key)) for key in (WINDOW_SETTING, FILES_SETTING)]
        if not isinstance(kept, Mapping):
            return None
        self._files = _rows(files)
        held = {key: rest for key, *rest in self._files}
        drafts = [row if row[2:] else [*row, *held.get(row[0], ())] for row in _rows(kept.get("drafts"))]
        return {**kept, "drafts": drafts}

    async def write(self, store: SessionStore, state: Mapping[str, Any]) -> None:
        files = [[key, *rest] for key, _text, *rest in state["drafts"] if rest]
        if files != self._files:
            await store.set_setting(FILES_SETTING, files)
            self._files = files
        await store.set_setting(WINDOW_SETTING, {**state, "drafts": [row[:2] for row in state["drafts"]]})


class AppWindows:
    """Owns the windows, each until the work asked for in it has ended."""

    def __init__(self, workbench: AppWorkbench, kept: object) -> None:
        self._workbench = workbench
        self.first, self.others = _states(kept)
        self._open: list[tuple[MainWindow, AppWorkbench]] = []
        self._left: list[WindowState] = []
        self._quitting = False
        self.ended = asyncio.Event()
        # called with the state of the windows after changes
        self.remember: Callable[[dict[str, Any]], None] = lambda _state: None

    def open_first(self) -> MainWindow:
        """Makes the first window; the caller shows and starts it."""
        return self._add(self._workbench, self.first, None)

    def session(self, known: Sequence[int]) -> int | None:
        """The session that the first window showed last, if it is among `known`."""
        held = self.first.session if self.first is not None else None
        return held if held in known else None

    def opens_empty(self, known: Sequence[int]) -> bool:
        """Whether the first window showed an empty session, which was not kept, though its draft was."""
        return self.first is not None and self.first.session is not None and self.first.session not in known

    def open_others(self, known: Sequence[int]) -> None:
        """Restores the other windows whose session is still `known`."""
        for state in self.others:
            if state.session in known:
                self._open_beside(self._open[0][0], state, state.session)

    @property
    def front(self) -> MainWindow | None:
        """The active window, else the one that was opened last."""
        visible = [window for window, _ in self._open if window.isVisible()]
        return next((window for window in visible if window.isActiveWindow()), visible[-1] if visible else None)

    def come_forward(self) -> None:
        """Raises the front window, when the app is started once more."""
        if self.front is not None:
            self.front.come_forward()

    def open_file(self, path: Path) -> None:
        """Opens a file from the desktop or the command line in the front window."""
        if self.front is not None:
            self.front.open_file(path)

    def close(self) -> None:
        """Closes all windows: the app ends."""
        if self._open and not self._quitting:
            self._quitting, self._left = True, []
        for window, _ in list(self._open):
            window.close()

    def left(self) -> dict[str, Any] | None:
        """The state of the closed windows, for the next start; None if none was closed.

        The windows share their drafts, which come from the last one closed.
        """
        if not self._left:
            return None
        return _together(self._left, self._left[-1].drafts)

    def _tell_state(self) -> None:
        """Saves the state after a change, so that a crash loses nothing."""
        if self._open and not self._quitting:
            drafts = self._open[0][0].parts.composer.drafts()  # they are shared
            self.remember(_together([window.state() for window, _ in self._open], drafts))

    def _add(self, workbench: AppWorkbench, state: WindowState | None, beside: MainWindow | None) -> MainWindow:
        window = MainWindow(workbench, state=state, keep_state=lambda state: self._keep(window, state), beside=beside)
        self._open.append((window, workbench))
        window.window_wanted.connect(lambda session_id: self._open_wanted(window, workbench, session_id))
        window.quit_wanted.connect(self.close)
        window.controller.other_shown.connect(lambda _session_id: self._tell_state())
        window.parts.composer.settled.connect(lambda _text, _replaces: self._tell_state())
        window.parts.cards.settled.connect(self._tell_state)
        window.closed.connect(lambda: self._forget(window))
        return window

    def _open_wanted(self, window: MainWindow, workbench: AppWorkbench, session_id: int | None) -> None:
        if session_id is None or not workbench.sessions.bring_forward(session_id):
            self._open_beside(window, None, session_id)

    def _open_beside(self, window: MainWindow, state: WindowState | None, session_id: int | None) -> None:
        """Opens a window at its saved place, or a step from `window` and like it."""
        workbench = AppWorkbench(self._workbench.services)
        other = self._add(workbench, state or replace(window.state(), geometry="", unwritten=(), results=()), window)
        if state is None:
            _step_aside(other, window)
        other.show()
        other.start(session_id, fresh=True)

    def _keep(self, window: MainWindow, state: WindowState) -> None:
        if not self._quitting:
            self._left = []  # of windows closed one by one, only the last is restored
            rest = next((each for each, _ in self._open if each is not window and each.isEnabled()), None)
            if rest is not None:  # another window takes over what was typed
                rest.parts.pinned.remember(state.unwritten)
                rest.parts.cards.remember(state.results)
        self._left.append(state)

    def _forget(self, window: MainWindow) -> None:
        self._open = [(each, workbench) for each, workbench in self._open if each is not window]
        window.deleteLater()
        if not self._open:
            self.ended.set()


def _step_aside(other: MainWindow, window: MainWindow) -> None:
    """Moves a window a step from another one of the same size, inside the screen."""
    screen = window.screen().availableGeometry()
    framed = window.frameGeometry().translated(STEP, STEP)
    if window.isMaximized() or window.isFullScreen():
        framed = screen.adjusted(STEP, STEP, 0, 0)
    elif framed.width() <= screen.width() and framed.height() <= screen.height():
        framed.moveLeft(max(screen.left(), min(framed.left(), screen.right() + 1 - framed.width())))
        framed.moveTop(max(screen.top(), min(framed.top(), screen.bottom() + 1 - framed.height())))
    other.resize(framed.size() - (window.frameGeometry().size() - window.size()))
    other.move(framed.topLeft())


def _together(states: Sequence[WindowState], drafts: Sequence[Sequence[int | str]]) -> dict[str, Any]:
    """The state to be saved; the drafts are those of the first window."""
    first, *others = states
    return asdict(replace(first, drafts=drafts)) | {"others": [asdict(replace(state, drafts=())) for state in others]}


def _states(kept: object) -> tuple[WindowState | None, list[WindowState]]:
    """The state of the first window and of the others; unknown parts are ignored."""
    if not isinstance(kept, Mapping):
        return None, []
    others = kept.get("others")
    found = [_state(each) for each in others] if isinstance(others, list) else []
    first = _state({name: value for name, value in kept.items() if name != "others"})
    return first, [state for state in found if state is not None]


def _state(kept: object) -> WindowState | None:
    """The state of a window; invalid fields get their defaults."""
    if not isinstance(kept, Mapping):
        return None
    whole: dict[str, Any] = {}
    for name, kind in get_type_hints(WindowState).items():
        with suppress(ValidationError):
            whole |= {name: convert(kept[name], kind)} if name in kept else {}
    return WindowState(**whole)


def _rows(kept: object) -> list[list[Any]]:
    """The valid rows: a session id and texts."""
    rows = kept if isinstance(kept, list) else []
    return [row for row in rows if isinstance(row, list) and row[1:] and [*map(type, row)] == [int] + [str] * (len(row) - 1)]
