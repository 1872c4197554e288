"""The engine process's main: see `runtime.transport.server`."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import signal
import socket
import sys

from runtime.transport.server import serve


def main() -> None:
    """Serves until the pipe closes, then ends the process."""
    if len(sys.argv) != 2 or not sys.argv[1].isdecimal():
        sys.exit("the engine process is started by runtime.spawn, which gives it a socket: python -m runtime.transport FD")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C in a terminal
    faulthandler.enable()  # a native crash leaves a trace in the log
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    pipe = socket.socket(fileno=int(sys.argv[1]))
    pipe.set_inheritable(False)  # a child of this process must not hold the pipe open
    asyncio.run(serve(pipe))


if __name__ == "__main__":
    main()
