"""Notes and counters of a turn: how it ended, its damage, how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.faults import STOPPED
from app.workbench.answers.provenance import CHANGED
from app.workbench.answers.provenance_text import repeat_note
from app.workbench.setup.beginning import as_text, left_out
from app.workbench.tree.tree import Tree
from storage import NodeRow
from ui import QT_TRANSLATE_NOOP, TurnStats, translate

NOTES = {
    "cancelled": QT_TRANSLATE_NOOP("Workbench", "stopped"),
    "length": QT_TRANSLATE_NOOP("Workbench", "reached the length limit"),
    "context": QT_TRANSLATE_NOOP("Workbench", "the context is full"),
    "engine_died": STOPPED,
    "app_ended": QT_TRANSLATE_NOOP("Workbench", "cut off when Elsewise ended"),
    "error": QT_TRANSLATE_NOOP("Workbench", "failed"),
    "edited": QT_TRANSLATE_NOOP("Workbench", "edited"),
}
CUT = QT_TRANSLATE_NOOP("Workbench", "a stop text ended it before it had the requested format")
UNSOUND = QT_TRANSLATE_NOOP(
    "Workbench",
    "read as JSON it is not what the schema describes: a name comes twice in an object, or a number is beyond what can be held",
)
DAMAGED = QT_TRANSLATE_NOOP(
    "Workbench", "some stored data of this turn is damaged; what could be read is shown, but no model can continue from it"
)


def note_of(tree: Tree, node: NodeRow, *, damaged: bool, recorded: bool) -> str:
    """The note under a turn that is not running.

    Args:
        tree: The tree of the session.
        node: The last node of the turn.
        damaged: Whether part of it could not be read.
        recorded: Whether it is part of the sample.
    """
    if damaged:
        return translate("Workbench", DAMAGED)
    if node.role != "assistant":
        return _not_seen(tree, node)
    message = node.stats.get("message")
    if isinstance(message, str):
        return message
    ended = ending_note(node.finish_reason or "", incomplete=node.status == "partial")
    origin = translate("Workbench", "recorded on another computer") if recorded else ""
    return " · ".join(note for note in (origin, repeat_note(node.stats), changed_note(node.stats), ended) if note)


def ending_note(finish: str, *, incomplete: bool) -> str:
    """How an answer ended, in words; "" for an ordinary end."""
    ended = {"stop": CUT, "eos": UNSOUND, "grammar": UNSOUND}.get(finish) if incomplete else None
    note = ended or NOTES.get(finish, "")
    return translate("Workbench", note) if note else ""


def changed_note(stats: Mapping[str, Any]) -> str:
    """The options that were changed when an answer was continued, in words."""
    changed = stats.get(CHANGED)
    if not isinstance(changed, list) or not changed:
        return ""
    return translate("Workbench", "continued with {0}").format(", ".join(map(str, changed)))


def _not_seen(tree: Tree, node: NodeRow) -> str:
    """The note of a first turn whose root leaves out earlier turns, or is a copy as text."""
    root = tree.nodes.get(node.parent_id) if node.parent_id is not None else None
    if root is None or root.role != "system":  # only a system prompt records it
        return ""
    count = left_out(root.stats)
    if as_text(root.stats):
        return translate("Workbench", "opened as text; the original, with its tokens and numbers, is another branch")
    if not count:
        return ""
    if count == 1:
        return translate("Workbench", "1 earlier turn is not seen by the model; the whole conversation is another branch")
    words = translate("Workbench", "{0:,} earlier turns are not seen by the model; the whole conversation is another branch")
    return words.format(count)


def stored_stats(node: NodeRow) -> TurnStats | None:
    """Counters of a stored answer; None if it has none."""
    return turn_stats(node.stats) if "generated" in node.stats or "reused" in node.stats else None


_COUNTERS: Final[Mapping[str, Any]] = {  # the kind of each stored counter
    **dict.fromkeys(("reused", "computed"), int),  # missing if the prompt was not read
    **dict.fromkeys(("drafted", "accepted"), int),  # missing in older answers
    **dict.fromkeys(("first_token_seconds", "tokens_per_second", "logprob"), int | float),
}


def turn_stats(stats: Mapping[str, Any]) -> TurnStats:
    """Counters of an answer, from its stored statistics; an imported session may have anything."""
    valid = {name: stats[name] for name, kind in _COUNTERS.items() if isinstance(stats.get(name), kind)}
    return TurnStats(**{**dict.fromkeys(_COUNTERS), **valid})
