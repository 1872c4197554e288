"""The adapters of a session's stack in the engine: registered and loaded when an answer needs them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.workbench.prompt.speaker import Stack
from runtime import AdapterInfo, LanguageModel
from ui import AdapterChoice, AdapterLine, translate

if TYPE_CHECKING:
    from app.workbench.tree.session import OpenSession


def engine_name(choice: AdapterChoice) -> str:
    """What the engine calls it: two folders of one name are two adapters."""
    return f"{choice.name}-{_mark_of(choice.folder)}"


def _mark_of(folder: str) -> str:
    return hashlib.sha256(folder.encode()).hexdigest()[:8]


def in_words(stack: Stack, known: Sequence[AdapterInfo]) -> str:
    """Adapters by the digests of their numbers, as people know them: "pirate × 0.5 + judge × 1"; empty for none."""
    names = {info.digest: info.name.removesuffix(f"-{_mark_of(info.folder)}") for info in known if info.digest is not None}
    return " + ".join(f"{names.get(digest, digest[:8])} × {scale:g}" for digest, scale in stack)


def stack_of(choices: Sequence[AdapterChoice] | None) -> Stack | None:
    """What a request asks for, () for the base alone; None where the session says nothing of adapters."""
    return None if choices is None else tuple((engine_name(c), c.scale) for c in choices if c.on)


def stack_of_session(session: OpenSession) -> Stack | None:
    """What requests on behalf of a session ask for."""
    return stack_of(session.values.adapters or None) if session.values is not None else None


async def bring(model: LanguageModel, choices: Sequence[AdapterChoice] | None) -> Stack | None:
    """The stack, with every adapter on it in place.

    Raises:
        RuntimeFault: One of them cannot be used; it is named.
    """
    known = {adapter.name: adapter for adapter in model.info.adapters}
    for choice in choices or ():
        if not choice.on:
            continue
        name = engine_name(choice)
        if name not in known:
            await model.add_adapter_async(choice.folder, name)
        if name not in known or not known[name].loaded:
            await model.load_adapter_async(name)
    return stack_of(choices)


def lines(model: LanguageModel | None, choices: Sequence[AdapterChoice]) -> list[AdapterLine]:
    """The stack as it is shown."""
    known = {adapter.name: adapter for adapter in model.info.adapters} if model is not None else {}
    return [_line(choice, known.get(engine_name(choice))) for choice in choices]


def _line(choice: AdapterChoice, info: AdapterInfo | None) -> AdapterLine:
    if info is None:
        return AdapterLine(choice)
    words = translate("Workbench", "{0}, rank {1}, {2} modules").format(info.kind, info.rank, info.modules)
    if info.loaded:
        words += translate("Workbench", ", {0:,.1f} MB").format(info.bytes / 1e6)
    return AdapterLine(choice, words, info.loaded)
