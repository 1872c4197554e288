"""Reading the saved sessions for a command, while somebody else may write there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from app.cli.settings import Settings
from storage import SessionStore

T = TypeVar("T")


def with_store(settings: Settings, read: Callable[[SessionStore], Coroutine[Any, Any, T]]) -> T:
    """Runs `read` on the store, opened so that whoever writes there is not disturbed."""

    async def run() -> T:
        store = SessionStore.open(settings.data.sessions, read_only=True)
        try:
            return await read(store)
        finally:
            await store.close()

    return asyncio.run(run())
