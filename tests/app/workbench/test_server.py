"""The model of the windows is served to other programs while the person has the server switched on."""

from __future__ import annotations

import asyncio
import socket

import httpx2
import pytest

from runtime import Priority
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene
from ui import Refusal


async def asked(address: str, path: str, **body: object) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=address, timeout=60, trust_env=False) as client:
        return await (client.post(path, json=body) if body else client.get(path))


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2].removesuffix("/v1"))


def test_programs_can_use_the_windows_model_while_the_server_is_on(play: Play) -> None:
    engine = Engine()

    async def scene(s: Scene) -> None:
        server = s.workbench.server
        assert server.address == ""
        model = await s.workbench.services.supervisor.model()
        address = await server.start(0)
        assert address.startswith("http://127.0.0.1:")
        assert s.workbench.status.serving == address  # the windows show it
        assert await server.start(0) == address  # it is on
        (card,) = (await asked(address, "models")).json()["data"]
        assert card["id"] == model.info.name
        answer = (await asked(address, "completions", prompt=[1, 2, 3], max_tokens=3, temperature=0, ignore_eos=True)).json()
        assert answer["usage"]["completion_tokens"] == 3
        assert engine.drawn_as == [Priority.BACKGROUND]  # the windows' own answers have priority
        refused = await asked(address, "completions", prompt=[1, 2, 3], max_tokens=1, priority=-1)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "priority")
        scored = await asked(address, "completions", prompt=[1, 2, 3], max_tokens=1, prompt_logprobs=1)
        assert len(scored.json()["choices"][0]["prompt_logprobs"]) == 3
        await s.workbench.models.reload()  # the server continues with the model of the windows
        assert (await asked(address, "models")).status_code == 200
        assert engine.starts == 2
        await server.stop()
        assert (server.address, s.workbench.status.serving) == ("", "")
        with pytest.raises(httpx2.ConnectError):
            await asked(address, "models")
        await server.stop()
        current = s.workbench.services.supervisor.running
        assert current is not None
        assert current.ended is None

    play(scene, engine=engine)


def test_the_server_ends_with_the_app(play: Play) -> None:
    ports: list[int] = []

    async def scene(s: Scene) -> None:
        ports.append(port_of(await s.workbench.server.start(0)))

    play(scene)
    with socket.socket() as one, pytest.raises(ConnectionRefusedError):
        one.connect(("127.0.0.1", ports[0]))


@pytest.mark.slow
def test_a_client_does_not_delay_the_end(play: Play) -> None:
    engine = Engine()
    clients: list[asyncio.Task[int]] = []

    async def read(address: str, begun: asyncio.Event) -> int:
        body = {"prompt": [1, 2, 3], "max_tokens": 4000, "ignore_eos": True, "stream": True}
        count = 0
        async with (
            httpx2.AsyncClient(base_url=address, timeout=60, trust_env=False) as client,
            client.stream("POST", "completions", json=body) as response,
        ):
            async for _ in response.aiter_lines():
                count += 1
                begun.set()
        return count

    async def scene(s: Scene) -> None:
        engine.gate = asyncio.Semaphore(3)  # without the end of the app it would wait for ever
        begun = asyncio.Event()
        clients.append(asyncio.create_task(read(await s.workbench.server.start(0), begun)))
        await begun.wait()
        await s.workbench.services.close()
        assert s.workbench.server.address == ""
        (ended,) = await asyncio.gather(*clients, return_exceptions=True)
        assert isinstance(ended, int | httpx2.HTTPError)
        assert engine.starts == 1  # nothing was restarted

    play(scene, engine=engine)


def test_a_port_in_use_is_refused_and_another_one_can_be_chosen(play: Play) -> None:
    async def scene(s: Scene) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            with pytest.raises(Refusal, match=f"port {port} cannot be used: .*; choose another one"):
                await s.workbench.server.start(port)
            assert s.workbench.server.address == ""
        assert await s.workbench.server.start(0)

    play(scene)


def test_a_disconnected_client_releases_the_model_for_the_windows(play: Play) -> None:
    async def scene(s: Scene) -> None:
        model = await s.workbench.services.supervisor.model()
        address = await s.workbench.server.start(0)
        body = {"prompt": [1, 2, 3], "max_tokens": 4000, "ignore_eos": True, "stream": True}
        async with (
            httpx2.AsyncClient(base_url=address, timeout=60, trust_env=False) as client,
            client.stream("POST", "completions", json=body) as response,
        ):
            assert (await anext(response.aiter_lines())).startswith("data: ")
            assert model.metrics().requests_active == 1
        for _ in range(600):
            if not model.metrics().requests_active:
                break
            await asyncio.sleep(0.1)
        assert model.metrics().requests_active == 0

    play(scene)
