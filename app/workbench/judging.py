"""Why a piece of work ended, in words for the window."""

from __future__ import annotations

import logging

from app.faults import not_loaded, too_long
from app.workbench.answer import Answer, last_message
from app.workbench.prompt import OtherTokenizerError
from app.workbench.refusals import form_refused
from runtime import (
    BackendUnavailableError,
    ContextOverflowError,
    EngineDiedError,
    GrammarError,
    ModelLoadError,
    RuntimeFault,
    UnknownBackendError,
)
from storage import StoreError
from ui import Refusal, translate

log = logging.getLogger(__name__)


def judge(answer: Answer) -> None:
    """Writes into an answer whose task is done how that ended."""
    task = answer.task
    assert task is not None
    if task.cancelled():
        answer.finish = "cancelled"
        return
    error = task.exception()
    if error is None:
        return
    answer.finish, answer.message = "error", str(error)
    answer.unloaded = isinstance(error, ModelLoadError | UnknownBackendError | BackendUnavailableError)
    if isinstance(error, EngineDiedError):
        answer.finish = "engine_died"
        log.warning("the engine died: %s", error)
        answer.message = "" if answer.model is not None else not_loaded(error)
    elif isinstance(error, GrammarError) and answer.back is not None and not answer.made:
        answer.message = answer.refused = form_refused(error)
    elif isinstance(error, OtherTokenizerError):
        answer.message = _another_tokenizer(error)
        answer.foreign = True
    elif isinstance(error, UnknownBackendError | BackendUnavailableError):
        answer.message, answer.hopeless = not_loaded(error), True
    elif isinstance(error, ModelLoadError):
        answer.message = not_loaded(error)
    elif isinstance(error, ContextOverflowError):
        answer.message = too_long(error, last_message(answer))
        answer.overflow = answer.hopeless = True
    elif not isinstance(error, RuntimeFault | StoreError | Refusal):
        log.error("an answer failed", exc_info=error)
        words = translate("Workbench", "something went wrong ({0}); your text is kept. The details are in the log")
        answer.message = words.format(error)


def _another_tokenizer(fault: OtherTokenizerError) -> str:
    """That a path's tokens mean something else to the model in use, and the ways on."""
    if fault.name:
        words = translate(
            "Workbench",
            "{0}. Its text can be taken; its tokens, their numbers and its KV cannot. Choose the model it was written with, "
            "{1}, or open it as text",
        )
        return words.format(fault.what, fault.name)
    words = translate(
        "Workbench",
        "{0}. Its text can be taken; its tokens, their numbers and its KV cannot. Choose the model it was written with, "
        "or open it as text",
    )
    return words.format(fault.what)
