"""Long work in a child process that reports its progress as one JSON object per line: code for both processes."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from resources.processes import child_command
from runtime.errors import ModelLoadError
from runtime.loading.progress import OnProgress, Progress

POLL_SECONDS = 1.0  # longest time between two reports, even if the child is silent


class Child:
    """A child process that runs a Python module; it is killed at the end of the `with` block.

    Args:
        module: Name of the module; it must end when its standard input closes (`end_with_parent`).
        arguments: Command-line arguments.
        cwd: Working directory.
        environment: Variables in addition to this process's own.
        order: Written to its standard input at the start; at most 64 KB (the size of a pipe).
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        order: bytes = b"",
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the child
        self._process = subprocess.Popen(
            child_command(module, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # a Ctrl-C in the terminal is for this process
        )
        if order:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # the child ended at once; `last_error` has the reason
                self._process.stdin.write(order)
                self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # from the flush of an unread order
                    pipe.close()
        self._errors.close()

    def lines(self) -> Iterator[bytes | None]:
        """Lines of its standard output; None after each `POLL_SECONDS` of silence."""
        assert self._process.stdout is not None
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                if not selector.select(timeout=POLL_SECONDS):
                    yield None
                    continue
                data = self._process.stdout.read1(1 << 16)  # type: ignore[attr-defined]  # a BufferedReader, which typeshed calls IO
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                yield from lines

    def last_error(self) -> str:
        """The last line of its standard error, or its exit code. Call it after `lines` has ended."""
        code = self._process.wait()
        self._errors.seek(0)
        return (self._errors.read().decode(errors="replace").strip().splitlines() or [f"exit code {code}"])[-1][:200]


def run_converter(
    module: str,
    source: Path,
    target: Path,
    *options: str,
    stage: str,
    limit: float,
    progress: OnProgress,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Runs a converter in a child process, and kills it if it is cancelled, hangs or fails.

    Args:
        module: Name of the converter's module, which reports by `write_message`.
        source: Its first argument.
        target: Its second argument: an empty folder.
        options: Its further arguments.
        stage: `Progress.stage` of its reports.
        limit: Seconds after which the converter counts as hung.
        progress: Called at least once a second; may raise to cancel.
        environment: Variables in addition to this process's own.

    Returns:
        The number of parameters that the converter reports.

    Raises:
        ModelLoadError: The converter reports an error, hangs, or ends without an answer.
    """
    deadline, state = time.monotonic() + limit, Progress(stage, 0, 0)
    answer: dict[str, Any] = {}
    with Child(module, str(source), str(target), *options, cwd=target, environment=environment) as child:
        progress(state)
        for line in child.lines():
            if line is not None and line.startswith(b"{"):  # else a native library's own words
                answer = json.loads(line)
                if "done" in answer:
                    state = Progress(stage, answer["done"], answer["total"])
            progress(state)
            if time.monotonic() > deadline:
                raise ModelLoadError(f"the conversion took longer than {limit:,.0f} s and was stopped")
        if "parameters" in answer:
            return int(answer["parameters"])
        if "error" in answer:
            raise ModelLoadError(str(answer["error"]))
        raise ModelLoadError(f"{source}: the conversion ended without an answer ({child.last_error()})")


def write_message(**message: object) -> None:
    """Writes one JSON object as a line."""
    sys.__stdout__.write(json.dumps(message) + "\n")  # type: ignore[union-attr]  # a child has a standard output
    sys.__stdout__.flush()  # type: ignore[union-attr]  # likewise


def end_with_parent() -> None:
    """Ends this process when its standard input closes, which happens however the parent ends."""

    def wait() -> None:
        while os.read(0, 1):  # not through the buffer: its lock, held at exit, would abort the process
            pass
        os._exit(3)

    threading.Thread(target=wait, daemon=True, name="parent-watch").start()
