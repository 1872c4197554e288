"""What is refused, in the words the window shows."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from app.supervisor import Supervisor
from runtime import EngineDiedError, GrammarError, LanguageModel, RuntimeFault
from storage import StoreDamagedError, StoreError
from ui import QT_TRANSLATE_NOOP, Refusal, lacking, translate

log = logging.getLogger(__name__)
T = TypeVar("T")

GONE = QT_TRANSLATE_NOOP("Workbench", "that turn is not part of this session any more")


def form_refused(fault: GrammarError) -> str:
    """That the form of a session's answers does not go with what an answer was to begin with."""
    words = translate(
        "Workbench", "the output format here does not allow that ({0}); choose another place or token, or change the format"
    )
    return words.format(fault)


def check_has(model: LanguageModel | None, control: str) -> None:
    """Refuses what a control needs and the model does not have, in the words that stand beside the control.

    Where none runs, nothing is known of it yet.

    Raises:
        Refusal: It lacks it.
    """
    words = "" if model is None else lacking(control, model.info.name, model.lacks)
    if words:
        raise Refusal(words)


async def stored(work: Coroutine[Any, Any, T]) -> T:
    """What the store answers; its errors as refusals."""
    try:
        return await work
    except StoreError as fault:
        raise Refusal(str(fault)) from fault


async def intact(work: Coroutine[Any, Any, T | None]) -> T | None:
    """What the store answers of something that is saved again in time, or can be done without; None where that is damaged."""
    try:
        return await work
    except StoreDamagedError as fault:
        log.warning("%s", fault)
        return None


async def refused(work: Awaitable[T]) -> T:
    """What the runtime answers; what it says no to as refusals."""
    try:
        return await work
    except RuntimeFault as fault:
        raise Refusal(str(fault)) from fault


@asynccontextmanager
async def refusing(supervisor: Supervisor, model: LanguageModel) -> AsyncIterator[None]:
    """Faults of requests to a model as refusals; where its engine ended, the supervisor is told."""
    try:
        yield
    except EngineDiedError as fault:
        await supervisor.died(model)
        raise Refusal(str(fault)) from fault
    except RuntimeFault as fault:
        raise Refusal(str(fault)) from fault
