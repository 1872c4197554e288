"""Processes that render chat templates, kept for the next model of the same template: a start takes a tenth of a second."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from typing import ClassVar

from runtime.text.template import RenderChild


class WarmChild:
    """Replaces `RenderChild`. A child that was closed in good health serves the next model with the same first frame."""

    _idle: ClassVar[defaultdict[bytes, list[RenderChild]]] = defaultdict(list)

    def __init__(self) -> None:
        self._child: RenderChild | None = None
        self._settings = b""  # the first frame
        self._healthy = False

    @classmethod
    def start(cls) -> WarmChild:
        """Starts no process before the first frame."""
        return cls()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process, from the first frame on."""
        assert self._child is not None
        return self._child.process

    def ask(self, request: bytes, seconds: float, watched_bytes: int | None) -> dict[str, str]:
        """As `RenderChild.ask`."""
        first = self._child is None
        if self._child is None:
            self._settings = request
            if self._idle[request]:
                self._child, self._healthy = self._idle[request].pop(), True
                return {"text": "ready"}
            self._child = RenderChild.start()
        self._healthy = False
        answer = self._child.ask(request, seconds, watched_bytes)
        self._healthy = not first or "error" not in answer  # it ends where the template does not compile
        return answer

    def close(self) -> None:
        """Keeps the process, or ends it."""
        if self._child is not None:
            if self._healthy and self._child.process.poll() is None:
                self._idle[self._settings].append(self._child)
            else:
                self._child.close()
            self._child = None
