"""A model's chat template, an untrusted program, rendered in a child process that can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import psutil

from resources.processes import child_command
from runtime.errors import ForkedError, InvalidRequestError
from runtime.loading.model_folder import ModelFolder
from runtime.text.tokenizer import Tokenizer

_START_SECONDS = 30.0  # limit for the start of the interpreter and jinja2, on a busy machine
_MAX_ANSWER_BYTES = 64 << 20
MEMORY_ENFORCED = sys.platform != "darwin"  # the system enforces RLIMIT_AS; macOS accepts the call and does nothing
_CLOCK_SECONDS = 0.1  # between two readings of the clock, which detect a suspended machine
WATCH_SECONDS = 0.01  # between two readings of the child's memory without RLIMIT_AS; a loop allocates some MB meanwhile
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "TZ")  # variables of the child: for Python and the clock, no secrets


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """Limits of one render. Time in which the machine is suspended does not count."""

    seconds: float = 2.0
    memory_bytes: int = 512 << 20


class TemplateTimeoutError(Exception):
    """The child did not answer within `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class TemplateMemoryError(Exception):
    """The child exceeded its memory limit."""


class ChatTemplate:
    """A chat template in its own process, started at the first render. Thread-safe; one render runs at a time.

    Args:
        source: The jinja2 text.
        special_texts: Variables of the template: bos_token, eos_token and so on.
        limits: Time and memory of one render.
    """

    def __init__(
        self, source: str, special_texts: Mapping[str, str] | None = None, *, limits: TemplateLimits | None = None
    ) -> None:
        self.source = source
        self._special_texts = dict(special_texts or {})
        self.limits = limits or TemplateLimits()
        self._lock = threading.Lock()
        self._child: RenderChild | None = None
        self._closed = False
        self._pid = os.getpid()

    @classmethod
    def from_folder(cls, folder: ModelFolder, tokenizer: Tokenizer) -> Self | None:
        """The folder's template; None without one."""
        return None if folder.chat_template is None else cls(folder.chat_template, tokenizer.special_texts)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Renders the text of a prompt. Blocks; any thread.

        Raises:
            InvalidRequestError: The template refuses the messages, is broken, or exceeds its limits (its process is killed; the
                next render starts another).
            ForkedError: The template was made in another process.
        """
        self._check_process()
        variables: dict[str, Any] = {
            **self._special_texts,
            "messages": [_with_reasoning(message) for message in messages],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            request = json.dumps(variables).encode()
        except (TypeError, ValueError, RecursionError) as fault:
            raise InvalidRequestError(f"messages and tools must be plain JSON values: {fault}") from fault
        with self._lock:
            if self._closed:
                raise InvalidRequestError("the chat template is closed; load the model again")
            return self._exchange(request)

    def check(self) -> None:
        """Compiles the template in its child. Blocks; any thread.

        Raises:
            InvalidRequestError: It does not compile, or exceeds its limits.
            ForkedError: The template was made in another process.
        """
        self._check_process()
        with self._lock:
            if self._child is None:
                self._exchange(None)

    def close(self) -> None:
        """Ends the child. Idempotent; in a forked process it does nothing."""
        if os.getpid() == self._pid:
            with self._lock:
                self._closed = True
                self._drop()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:  # the socket is the other process's, and the lock may be held for ever
            raise ForkedError.of(self._pid)

    @property
    def takes_tools(self) -> bool:
        """Whether its source mentions tools; a template without them would drop them silently."""
        return re.search(r"\btools\b", self.source) is not None

    @property
    def child_pid(self) -> int | None:
        """Process id of the child; None without one."""
        return self._child.process.pid if self._child else None

    def _exchange(self, request: bytes | None) -> str:
        """The rendered text of a request; for None only starts the child, and returns an empty text."""
        for last in (False, True):
            try:
                if self._child is None:
                    self._child = self._start()
                if request is None:
                    return ""
                return _text(self._child.ask(request, self.limits.seconds, self._watched_bytes))
            except TemplateTimeoutError as fault:
                self._drop()
                raise InvalidRequestError(
                    f"the chat template ran longer than {fault.seconds:g} s and was stopped; choose another template"
                ) from None
            except TemplateMemoryError:
                self._drop()
                raise InvalidRequestError(
                    f"the chat template took more than {self.limits.memory_bytes >> 20:,} MiB of memory and was stopped; "
                    "choose another template"
                ) from None
            except (OSError, EOFError) as fault:  # the child died, perhaps between renders: restart it once
                self._drop()
                if last:
                    raise InvalidRequestError(
                        "the chat template's process died twice (most likely it needs more than "
                        f"{self.limits.memory_bytes >> 20:,} MiB); choose another template"
                    ) from fault
        raise AssertionError("unreachable: the second pass returns or raises")

    @property
    def _watched_bytes(self) -> int | None:
        """The memory limit that this process watches; None if the system enforces it."""
        return None if MEMORY_ENFORCED else self.limits.memory_bytes

    def _start(self) -> RenderChild:
        child = RenderChild.start()
        enforced = self.limits.memory_bytes if MEMORY_ENFORCED else None
        setup = {"source": self.source, "memory_bytes": enforced, "seconds": self.limits.seconds}
        try:
            _text(child.ask(json.dumps(setup).encode(), _START_SECONDS, self._watched_bytes))
        except BaseException:
            child.close()
            raise
        return child

    def _drop(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None


class RenderChild:
    """The child process and its socket, both closed with this object, or at exit.

    Args:
        process: The process that runs `template_child`.
        pipe: The socket that is its standard input, this process's end.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], pipe: socket.socket, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.process, self._socket, self._clock = process, pipe, clock
        self._deadline = 0.0  # of the awaited answer
        self.close = weakref.finalize(self, _end, process, pipe)

    @classmethod
    def start(cls) -> Self:
        pipe, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                child_command("runtime.text.template_child", isolated=True),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            )
        return cls(process, pipe)

    def ask(self, request: bytes, seconds: float, watched_bytes: int | None) -> dict[str, str]:
        """Sends a request as a frame, and waits for the answer.

        Args:
            request: The JSON of the request.
            seconds: Time limit of the answer.
            watched_bytes: Limit of the child's resident memory; None: not watched.

        Raises:
            TemplateTimeoutError: No complete answer after `seconds`.
            TemplateMemoryError: More than `watched_bytes` are resident.
            OSError: The child ended.
            EOFError: The child ended within an answer.
        """
        self._deadline = self._clock() + seconds
        try:
            self._socket.settimeout(seconds)
            self._socket.sendall(len(request).to_bytes(4, "little") + request)
            length = int.from_bytes(self._receive(4, watched_bytes), "little")
            if length > _MAX_ANSWER_BYTES:
                raise EOFError(f"an answer of {length:,} bytes")
            answer: dict[str, str] = json.loads(self._receive(length, watched_bytes))
        except TimeoutError as fault:
            raise TemplateTimeoutError(seconds) from fault
        return answer

    def _receive(self, n: int, watched_bytes: int | None) -> bytes:
        data = bytearray()
        while len(data) < n:
            began = self._clock()
            wait = min(max(self._deadline - began, 1e-3), _CLOCK_SECONDS if watched_bytes is None else WATCH_SECONDS)
            self._socket.settimeout(wait)
            try:
                part = self._socket.recv(min(n - len(data), 1 << 20))
            except TimeoutError:
                now = self._clock()
                if now - began > wait + _CLOCK_SECONDS:  # this process was suspended, and the child most likely too
                    self._deadline += now - began - wait
                if now >= self._deadline:
                    raise
                self._check_memory(watched_bytes)
                continue
            if not part:
                raise EOFError("the child closed its socket")
            data += part
        return bytes(data)

    def _check_memory(self, watched_bytes: int | None) -> None:
        if watched_bytes is None:
            return
        try:
            resident = psutil.Process(self.process.pid).memory_info().rss
        except psutil.Error:  # the child ended, which the socket reports next
            return
        if resident > watched_bytes:
            raise TemplateMemoryError


def _end(process: subprocess.Popen[bytes], pipe: socket.socket) -> None:
    pipe.close()
    process.kill()
    with contextlib.suppress(ChildProcessError):  # reaped elsewhere
        process.wait()


def _text(answer: Mapping[str, str]) -> str:
    if "error" in answer:
        raise InvalidRequestError(f"the chat template refused: {answer['error']}")
    return answer["text"]


def _with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its reasoning under every name that templates read, as in transformers."""
    names = ("reasoning_content", "thinking", "reasoning")
    reasoning = next((message[name] for name in names if message.get(name) is not None), None)
    if reasoning is None:
        return dict(message)
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}
