"""A server in this process, on a free port, over a tiny model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import msgspec
import pytest

from app.serve import Access, ServedModel, bind, serve
from runtime import LanguageModel, load
from tests.app.cli.conftest import data, elsewise, environment_as_it_was  # noqa: F401  # the command line as a fixture
from tests.tiny_models import TEMPLATE, tiny_path

PATIENCE_SECONDS = 60
Post = Callable[..., dict[str, Any]]
PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "double", "parameters": PARAMETERS}}]
CALL = '<tool_call>{"name": "double", "arguments": {"x": 21}}</tool_call>'
TOOL_TEMPLATE = "{% if tools %}{{ tools | tojson }}\n{% endif %}" + TEMPLATE.replace(
    "message['content'] + ", "message['content'] + (message['tool_calls'] | tojson if message['tool_calls'] else '') + "
)


@dataclass(frozen=True)
class Served:
    """A running server."""

    engine: ServedModel
    url: str
    client: httpx2.Client

    @property
    def model(self) -> LanguageModel:
        loaded = self.engine.loaded
        assert loaded is not None
        return loaded

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """A whole answer."""
        response = self.client.post(path, json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The chunks of a stream, which must end properly."""
        response = self.client.post(path, json={**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        events = response.text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        return [msgspec.json.decode(event.removeprefix("data: ")) for event in events[:-2]]


@contextmanager
def serving(start: Callable[[], Awaitable[LanguageModel]], access: Access | None = None) -> Iterator[Served]:
    """Runs a server on a thread of its own."""
    engine, bound, ready, stop = ServedModel(start), bind("127.0.0.1", 0), threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        await serve(engine, access or Access(), bound, on_ready=ready.set, stop=stop)

    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    thread = threading.Thread(target=lambda: asyncio.run(run()), name="server")
    thread.start()
    try:
        assert ready.wait(PATIENCE_SECONDS)
        with httpx2.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as client:
            yield Served(engine, url, client)
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def tiny(name: str = "llama", **options: Any) -> Callable[[], Awaitable[LanguageModel]]:
    """Loads a tiny model into this process."""

    async def start() -> LanguageModel:
        return load(tiny_path(name), "hf", **options)

    return start


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """A server shared by tests that do not change it."""
    with serving(tiny()) as one:
        yield one


@pytest.fixture(scope="session")
def tooled() -> Iterator[Served]:
    """A server whose template supports tools."""
    with serving(tiny(chat_template=TOOL_TEMPLATE)) as one:
        yield one


@pytest.fixture(autouse=True)
def no_thread_is_left() -> None:
    """The shared server's loop grows its own executor; `serving` checks that its thread, which joins them, has ended."""
