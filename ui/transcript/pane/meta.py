"""The line under a turn: variants, numbers, notes, and actions while the mouse is over the turn."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from itertools import pairwise

from msgspec import Struct
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QFont, QFontMetricsF, QPainter

from ui.port import QT_TRANSLATE_NOOP, TurnStatus, TurnView, translate
from ui.transcript.path import has_own_words
from ui.transcript.text.faces import TURN_GAP_PX, Faces
from ui.transcript.text.ink import Ink
from ui.widgets import numbers

_GAP_PX = 14
_ACTION_GAP_PX = 12
_ROW_PX = 17
_TOP_PX = 4
_BELOW_PX = TURN_GAP_PX + 1  # the actions of a turn without a line appear in the gap to the next turn
READING = QT_TRANSLATE_NOOP("Transcript", "reading the prompt…")


class Action(StrEnum):
    """What a click on a part of the line requests."""

    NONE = "none"
    PREVIOUS = "previous"
    NEXT = "next"
    EDIT = QT_TRANSLATE_NOOP("Transcript", "edit")
    COPY = QT_TRANSLATE_NOOP("Transcript", "copy")
    SIMILAR = QT_TRANSLATE_NOOP("Transcript", "similar")
    REGENERATE = QT_TRANSLATE_NOOP("Transcript", "regenerate")
    REPEAT = QT_TRANSLATE_NOOP("Transcript", "regenerate exactly")
    CONTINUE = QT_TRANSLATE_NOOP("Transcript", "continue")
    AS_TEXT = QT_TRANSLATE_NOOP("Transcript", "open as text")
    MODEL = QT_TRANSLATE_NOOP("Transcript", "choose the model")


class Tone(StrEnum):
    """How a part of the line is drawn."""

    FAINT = "faint"
    SOFT = "soft"
    ACCENT = "accent"


class MetaPart(Struct, frozen=True):
    """A word or number of the line, placed relative to its top left."""

    text: str
    tone: Tone
    action: Action
    box: QRectF


class _Wanted(Struct, frozen=True):
    text: str
    tone: Tone = Tone.FAINT
    action: Action = Action.NONE
    gap: float = _GAP_PX  # before the part
    gives_way: bool = False  # left out first if there is not enough room


class MetaLine:
    """The line under one turn, laid out for a width. Parts flow into as many rows as they need.

    Args:
        view: The turn.
        faces: Its fonts.
        width: Pixels.
        developer: Whether to show the counts of reused, computed and drafted tokens.
    """

    def __init__(self, view: TurnView, faces: Faces, width: float, *, developer: bool = False) -> None:
        self._faces = faces
        self._width = width
        self._wanted = _permanent_parts(view, developer=developer)
        self._permanent = self._flow(self._wanted)
        rows = 1 + max((self._row(p) for p in self._permanent), default=0)
        self.is_waiting = view.status is TurnStatus.WAITING
        self._actions = _actions(view)
        self.reach = round((_TOP_PX + rows * _ROW_PX) * faces.scale)  # height of the drawn area, pixels
        shown = bool(self._permanent) or view.role == "assistant"
        self.height = self.reach if shown else max(self.reach - _BELOW_PX, 0)
        self._hovered: list[MetaPart] | None = None  # laid out when the mouse first enters

    def parts(self, *, hovered: bool) -> list[MetaPart]:
        if not hovered or not self._actions:
            return self._permanent
        if self._hovered is None:
            self._hovered = self._with_actions(self._actions)
        return self._hovered

    def action_at(self, point: QPointF, *, hovered: bool) -> Action:
        """The action at a point relative to the line's top left."""
        for part in self.parts(hovered=hovered):
            if part.action is not Action.NONE and part.box.adjusted(-4, -3, 4, 3).contains(point):
                return part.action
        return Action.NONE

    def paint(self, painter: QPainter, ink: Ink, *, hovered: bool, pointed: Action, disabled: Collection[Action] = ()) -> None:
        """Draws the line; the painter's origin is its top left. `pointed` is the action under the mouse."""
        colours = {Tone.FAINT: ink.faint, Tone.SOFT: ink.soft, Tone.ACCENT: ink.accent}
        for part in self.parts(hovered=hovered):
            under = part.action is not Action.NONE and part.action is pointed
            painter.setFont(self._font(part.tone))
            tone = Tone.FAINT if part.action in disabled else part.tone
            painter.setPen(ink.text if under and tone is not Tone.ACCENT else colours[tone])
            painter.drawText(part.box, Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextDontClip, part.text)

    def _flow(self, wanted: list[_Wanted]) -> list[MetaPart]:
        parts: list[MetaPart] = []
        x, row, height = 0.0, 0, _ROW_PX * self._faces.scale
        for want in wanted:
            metrics, text = QFontMetricsF(self._font(want.tone)), want.text
            width = metrics.horizontalAdvance(text)
            if width > self._width:  # a very narrow column
                text = metrics.elidedText(text, Qt.TextElideMode.ElideRight, self._width)
                width = self._width
            gap = want.gap * self._faces.scale if x else 0.0
            if x and x + gap + width > self._width:
                x, gap, row = 0.0, 0.0, row + 1
            box = QRectF(x + gap, _TOP_PX * self._faces.scale + row * height, width, height)
            parts.append(MetaPart(text, want.tone, want.action, box))
            x += gap + width
        return parts

    def _with_actions(self, actions: list[_Wanted]) -> list[MetaPart]:
        """The permanent parts followed by the actions.

        Without enough room, the last numbers are left out, then actions that the menu has too; a note keeps its place.
        """
        wanted = list(self._wanted)
        has_note = any(number.gives_way and not after.gives_way for number, after in pairwise(wanted))
        while True:
            flowed = self._flow(wanted + actions)
            numbers_left = [i for i, want in enumerate(wanted) if want.gives_way]
            in_menu = [action for action in actions if action.gives_way]
            if flowed[-1].box.bottom() <= self.reach + 1 or not (numbers_left or in_menu):
                return flowed
            if in_menu and (has_note or not numbers_left):
                actions = [action for action in actions if action is not in_menu[-1]]
            else:
                del wanted[numbers_left[-1]]

    def _row(self, part: MetaPart) -> int:
        return round((part.box.top() / self._faces.scale - _TOP_PX) / _ROW_PX)

    def _font(self, tone: Tone) -> QFont:
        return self._faces.meta_bold if tone is Tone.ACCENT else self._faces.meta


def usual_height(view: TurnView, faces: Faces) -> int:
    """The estimated height of the line under a turn: one row, as most turns have. Lays out nothing."""
    reach = round((_TOP_PX + _ROW_PX) * faces.scale)
    return reach if view.role == "assistant" or len(view.variants) > 1 or view.note else max(reach - _BELOW_PX, 0)


def failed_to_begin(view: TurnView) -> bool:
    """Whether an answer ended before its first word: it cannot be copied or continued, only retried."""
    return view.role == "assistant" and view.status is TurnStatus.PARTIAL and not has_own_words(view.run)


def failed_to_go_on(view: TurnView) -> bool:
    """Whether an answer that begins with a chosen token was never continued by a model."""
    nothing_made = view.stats is not None and view.stats.first_token_seconds is None
    return view.role == "assistant" and view.status is TurnStatus.PARTIAL and nothing_made


def _permanent_parts(view: TurnView, *, developer: bool) -> list[_Wanted]:
    wanted: list[_Wanted] = []
    if len(view.variants) > 1:
        here = view.variant
        wanted.append(_Wanted("‹", Tone.ACCENT if here else Tone.FAINT, Action.PREVIOUS if here else Action.NONE))
        wanted.append(_Wanted(f" {here + 1} / {len(view.variants)} ", Tone.ACCENT, gap=0))
        more = here + 1 < len(view.variants)
        wanted.append(_Wanted("›", Tone.ACCENT if more else Tone.FAINT, Action.NEXT if more else Action.NONE, gap=0))
    stats = view.stats
    if stats is not None and view.role == "assistant":
        if stats.tokens_per_second is not None:
            wanted.append(_Wanted(numbers.rate(stats.tokens_per_second), gives_way=True))
        if developer and stats.drafted is not None and stats.accepted is not None:
            wanted.append(_Wanted(_speculation(stats.drafted, stats.accepted), gives_way=True))
        if developer and stats.reused is not None and stats.computed is not None and stats.reused + stats.computed:
            made = translate("Transcript", "reused {0}, computed {1}")
            counts = numbers.count(stats.reused), numbers.count(stats.computed)
            wanted.append(_Wanted(made.format(*counts), gives_way=True))
        if stats.logprob is not None:
            wanted.append(_Wanted(numbers.nats(stats.logprob), gives_way=True))
    if failed_to_begin(view):
        wanted += [_Wanted(words, Tone.ACCENT, action) for words, action in _ways_on(view)]
    elif failed_to_go_on(view) and view.needs_model:
        wanted.append(_Wanted(translate("Transcript", "choose a model"), Tone.ACCENT, Action.MODEL))
    elif failed_to_go_on(view) and view.can_retry:
        wanted.append(_Wanted(translate("Transcript", "retry"), Tone.ACCENT, Action.CONTINUE))
    note = view.note or (translate("Transcript", READING) if view.status is TurnStatus.WAITING else "")
    if note:
        words = note.split()
        wanted += [_Wanted(word, Tone.SOFT, gap=_GAP_PX if i == 0 else 3) for i, word in enumerate(words)]
    return wanted


def _speculation(drafted: int, accepted: int) -> str:
    """The words about speculation."""
    if drafted <= 0:
        return translate("Transcript", "drafted nothing")
    words = translate("Transcript", "drafted {0}, accepted {1} ({2} %)")
    return words.format(numbers.count(drafted), numbers.count(accepted), 100 * accepted // drafted)


def _ways_on(view: TurnView) -> list[tuple[str, Action]]:
    """The actions that can help an answer that failed to begin."""
    if view.is_foreign:
        return [
            (translate("Transcript", "open as text"), Action.AS_TEXT),
            (translate("Transcript", "choose the model"), Action.MODEL),
        ]
    if view.needs_model:
        return [(translate("Transcript", "choose a model"), Action.MODEL)]
    return [(translate("Transcript", "retry"), Action.REGENERATE)] if view.can_retry else []


NEEDS = {Action.SIMILAR: "similar"}  # of the model, as `ui.port.engine.NEEDS` names it
IN_MENU = (Action.REPEAT, Action.SIMILAR)  # left out of the line without room: the context menu has them too


def actions_of(view: TurnView) -> list[Action]:
    """The actions of a turn."""
    wanted: list[Action] = []
    if view.role == "user":
        wanted = [Action.EDIT, Action.COPY, Action.SIMILAR]
    elif view.role == "assistant" and not (view.status in (TurnStatus.WAITING, TurnStatus.STREAMING) or failed_to_begin(view)):
        wanted = [Action.EDIT] if has_own_words(view.run) else []
        wanted += [Action.COPY, Action.REGENERATE]
        wanted += [Action.REPEAT] if view.can_repeat else []
        wanted += [Action.CONTINUE] if view.status is TurnStatus.PARTIAL else []
        wanted += [Action.SIMILAR]
    return wanted


def _actions(view: TurnView) -> list[_Wanted]:
    return [
        _Wanted(translate("Transcript", action.value), Tone.SOFT, action, _ACTION_GAP_PX, gives_way=action in IN_MENU)
        for action in actions_of(view)
    ]
