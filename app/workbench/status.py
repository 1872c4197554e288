"""The status bar, and a model in a few words."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from app.supervisor import Supervisor
from app.workbench.tree.session import OpenSession
from ui import BackendChoice, StatusView, translate

if TYPE_CHECKING:
    from runtime import ShelfEntry


def status_of(supervisor: Supervisor, session: OpenSession | None) -> StatusView:
    """What the engine does, and how the last answer of the shown session was made."""
    status = StatusView(supervisor.state, supervisor.reason)
    model = supervisor.running
    if model is not None:
        metrics = model.metrics()
        status = replace(status, kv_bytes=metrics.kv_bytes, kv_budget=metrics.kv_budget)
    if session is None:
        return status
    status = replace(status, tiers=session.tiers())
    last = session.last_stats()
    if last is None:
        return status
    return replace(
        status,
        tokens_per_second=last.tokens_per_second,
        first_token_seconds=last.first_token_seconds,
        reused=last.reused,
        computed=last.computed,
    )


def backend_choices(asked: str) -> list[BackendChoice]:
    """Every engine that runs real models, in the order of their names; `asked` may be "auto"."""
    from runtime import available_backends, brings_text, default_backend  # they look through every installed package

    chosen = default_backend() if asked == "auto" else asked
    return [
        BackendChoice(name, "" if state is True else str(state), name == chosen)
        for name, state in sorted(available_backends().items())
        if name == chosen or not brings_text(name)
    ]


def parameters_of(count: int) -> str:
    """How large a model is, in words."""
    return translate("Workbench", "{0:,.0f} M parameters").format(count / 1e6)


def detail_of(entry: ShelfEntry) -> str:
    """A model's size and format in a few words."""
    parameters = parameters_of(entry.parameters) + " · " if entry.parameters else ""
    return entry.problem or f"{parameters}{entry.bytes / 1e6:,.0f} MB · {entry.format}"
