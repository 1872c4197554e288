"""Faults of the store and the runtime as refusals, in the words that the window shows."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from app.faults import not_loaded
from app.supervisor import Supervisor
from runtime import EngineDiedError, GrammarError, LanguageModel, RuntimeFault
from storage import StoreDamagedError, StoreError
from ui import QT_TRANSLATE_NOOP, Refusal, lacking, translate

log = logging.getLogger(__name__)
T = TypeVar("T")

GONE = QT_TRANSLATE_NOOP("Workbench", "that turn is not part of this session any more")


def form_refused(fault: GrammarError) -> str:
    """The message for a place or token that the session's output format does not allow."""
    words = translate(
        "Workbench", "the output format here does not allow that ({0}); choose another place or token, or change the format"
    )
    return words.format(fault)


def check_has(model: LanguageModel | None, control: str) -> None:
    """Refuses a control that the model does not support, in the words shown beside the control; passes if no model runs.

    Raises:
        Refusal: The model does not support it.
    """
    words = "" if model is None else lacking(control, model.info.name, model.lacks)
    if words:
        raise Refusal(words)


async def stored(work: Coroutine[Any, Any, T]) -> T:
    """Awaits the store, and turns its errors into refusals."""
    try:
        return await work
    except StoreError as fault:
        raise Refusal(str(fault)) from fault


async def intact(work: Coroutine[Any, Any, T | None]) -> T | None:
    """Awaits the store for dispensable data; None, with a warning, if they are damaged."""
    try:
        return await work
    except StoreDamagedError as fault:
        log.warning("%s", fault)
        return None


async def refused(work: Awaitable[T]) -> T:
    """Awaits the runtime, and turns its errors into refusals."""
    try:
        return await work
    except RuntimeFault as fault:
        raise Refusal(str(fault)) from fault


async def loaded_model(supervisor: Supervisor) -> LanguageModel:
    """The model; loads it if none runs.

    Raises:
        Refusal: It cannot be loaded.
    """
    try:
        return await supervisor.model()
    except RuntimeFault as fault:
        raise Refusal(not_loaded(fault)) from fault


@asynccontextmanager
async def refusing(supervisor: Supervisor, model: LanguageModel) -> AsyncIterator[None]:
    """Turns faults of requests to a model into refusals, and reports a dead engine to the supervisor."""
    try:
        yield
    except EngineDiedError as fault:
        await supervisor.died(model)
        raise Refusal(str(fault)) from fault
    except RuntimeFault as fault:
        raise Refusal(str(fault)) from fault
