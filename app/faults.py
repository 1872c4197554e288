"""What keeps an engine from answering, in one line for the window; the whole of it stands in the log."""

from __future__ import annotations

import re
from pathlib import Path

from runtime import BackendUnavailableError, ContextOverflowError, EngineDiedError, ModelMissingError, UnknownBackendError

STOPPED = "engine stopped; your text is kept. Send again to restart it"
LONGEST_REASON = 60  # characters


def not_loaded(error: BaseException) -> str:
    """Why no engine came: what happened, at most one reason, what to do."""
    if isinstance(error, EngineDiedError):
        reason = _first_reason(str(error))
        return STOPPED.replace("stopped", f"stopped while loading ({reason})" if reason else "stopped while loading", 1)
    if isinstance(error, UnknownBackendError):
        return f"{str(error).partition(': ')[0]}; {_another_engine()}"
    if isinstance(error, BackendUnavailableError):
        return f"{error}; or {_another_engine()}"
    if isinstance(error, ModelMissingError):  # its message names commands; the window has an action beside this
        return f"{Path(error.source).name or error.source} is not on this computer"
    return str(error)


def too_long(error: ContextOverflowError, own: int) -> str:
    """A prompt that does not fit; `own` of its tokens are the last message's, the others stand before it."""
    tokens = error.resident + error.additional
    numbers = f"{tokens:,} tokens do not fit into the context of {error.limit:,} ({tokens - error.limit:,} too many)"
    if tokens - own >= error.limit:
        return f"{numbers}: the conversation before your message fills it. Go back to an earlier turn, or start a new session"
    return f"{numbers}. Edit your message to shorten it, or write another one: it goes into its place"


def _first_reason(words: str) -> str:
    """The first clause after what ended: "signal 9, SIGKILL"."""
    clause = re.split(r"[,;:]|\. ", words.partition(": ")[2], maxsplit=1)[0].strip()
    return re.sub(r" \((\w+)\)$", r", \1", clause)[:LONGEST_REASON]


def _another_engine() -> str:
    from runtime import available_backends, brings_text  # they look through every installed package

    names = [name for name, state in sorted(available_backends().items()) if state is True and not brings_text(name)]
    if not names:
        return "no engine can run here: see `elsewise doctor`"
    return f"choose another engine in the model menu ({', '.join(names)}), then regenerate"
