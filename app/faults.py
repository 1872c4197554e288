"""Faults of the engine in one line for the window; the log has the details."""

from __future__ import annotations

import re
from pathlib import Path

from resources.processes import was_moved
from runtime import BackendUnavailableError, ContextOverflowError, EngineDiedError, ModelMissingError, UnknownBackendError
from ui import QT_TRANSLATE_NOOP, in_window, translate

STOPPED = QT_TRANSLATE_NOOP("Workbench", "engine stopped; your text is kept. Send again to restart it")
MOVED = QT_TRANSLATE_NOOP(
    "Workbench",
    "Elsewise was moved or removed while it was running; your text is kept. Quit it, and open it from where it is now",
)
LONGEST_REASON = 60  # characters


def not_loaded(error: BaseException) -> str:
    """Why no engine was loaded: the event, at most one reason, and the way on."""
    if was_moved():
        return translate("Workbench", MOVED)
    if isinstance(error, EngineDiedError):
        reason = _first_reason(str(error))
        words = translate("Workbench", "engine stopped while loading{0}; your text is kept. Send again to restart it")
        return words.format(f" ({reason})" if reason else "")
    if isinstance(error, UnknownBackendError):
        return f"{str(error).partition(': ')[0]}; {_another_engine()}"
    if isinstance(error, BackendUnavailableError):
        return f"{in_window(str(error))}; {_another_engine()}"
    if isinstance(error, ModelMissingError) and error.source:  # its message names commands; a server's fault has no source
        name = Path(error.source).name or translate("Workbench", "the model")
        return translate("Workbench", "{0} is not on this computer").format(name)
    return in_window(str(error))


def too_long(error: ContextOverflowError, own: int) -> str:
    """The message for a prompt that does not fit; its last `own` tokens are the last message's."""
    tokens = error.resident + error.additional
    words = translate("Workbench", "{0:,} tokens do not fit into the context of {1:,} ({2:,} too many)")
    numbers = words.format(tokens, error.limit, tokens - error.limit)
    if tokens - own >= error.limit:
        return translate(
            "Workbench",
            "{0}: the conversation before your message fills it. Go back to an earlier turn, or start a new session",
        ).format(numbers)
    words = translate("Workbench", "{0}. Shorten your message, or write another one in its place")
    return words.format(numbers)


def _first_reason(words: str) -> str:
    """The first clause of the reason: "signal 9, SIGKILL"."""
    clause = re.split(r"[,;:]|\. ", words.partition(": ")[2], maxsplit=1)[0].strip()
    return re.sub(r" \((\w+)\)$", r", \1", clause)[:LONGEST_REASON]


def _another_engine() -> str:
    from runtime import available_backends, brings_text  # they look through every installed package

    names = [name for name, state in sorted(available_backends().items()) if state is True and not brings_text(name)]
    if not names:
        return translate(
            "Workbench", "no engine can run here: install Elsewise again, or connect to a server in Settings > Models"
        )
    words = translate("Workbench", "choose another engine in the model menu ({0}), then regenerate")
    return words.format(", ".join(names))
