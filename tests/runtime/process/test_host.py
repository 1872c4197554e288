"""The engine process itself: when it ends, and with which exit code."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import msgspec
import pytest

from runtime.transport.frames import encode_group
from runtime.transport.messages import (
    EXIT_PROTOCOL,
    Beat,
    ChunkMessage,
    Loaded,
    encode,
)
from tests.runtime.process.conftest import LOADER, eventually, is_running
from tests.runtime.process.peer import LOAD, call, engine_process, hear, ids, say, told


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"E\xff\xff\xff\xff",
        b"E\x00\x00\x00\x03abc",
        b"E\x00\x00\x00\x00",
        b"".join(encode_group([encode({"type": "load"})])),
    ],
    ids=["http", "4 GiB", "no msgpack", "empty", "fields missing"],
)
def test_garbage_on_the_pipe_ends_the_process_with_the_protocol_exit_code(data: bytes) -> None:
    with engine_process() as (process, pipe):
        pipe.sendall(data)
        assert process.wait(30) == EXIT_PROTOCOL


@pytest.mark.sampled(1)
@pytest.mark.parametrize("busy", ["idle", "streaming", "step", "loading", "stubborn", "truncated"])
def test_the_process_ends_when_its_pipe_is_closed(busy: str) -> None:
    with engine_process() as (process, pipe):
        if busy == "loading":
            say(pipe, msgspec.structs.replace(LOAD, source="hang"))
            assert hear(pipe, Beat).phase == "loading"
        else:
            say(pipe, LOAD)
            hear(pipe, Loaded)
        if busy == "streaming":
            say(pipe, call(1, "generate", ids=ids(3), options={}))
            hear(pipe, ChunkMessage)
        elif busy in ("step", "stubborn"):
            say(pipe, told(1, busy))
            hear(pipe, Beat)
        elif busy == "truncated":
            pipe.sendall(b"E\x00\x00\x10\x00abc")
        pipe.close()
        assert process.wait(30) == 0


@pytest.mark.slow
def test_the_process_ends_when_its_parent_is_killed() -> None:
    """Given a program with an engine, when the program is killed, then the engine ends too."""
    program = (
        "import asyncio; from runtime import spawn\n"
        f"client = asyncio.run(spawn('ready', loader={LOADER!r}))\n"
        "print(client.pid, flush=True)\n"
        "for record in client.generate_sync([3]): pass\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        engine = int(parent.stdout.readline())
        assert is_running(engine)
        parent.send_signal(signal.SIGKILL)
        parent.wait(30)
    asyncio.run(eventually(lambda: not is_running(engine)))


def test_started_by_hand_the_module_explains_how_it_is_started() -> None:
    done = subprocess.run([sys.executable, "-m", "runtime.transport"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "started by runtime.spawn" in done.stderr
