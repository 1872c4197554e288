"""``python -m runtime.hub.child``: the only process that connects to a hub.

It reads one line, an `Order`, from standard input and writes a `Reply` per line to standard output. It ends when its standard
input closes; received bytes are kept.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec

from runtime.errors import DownloadError
from runtime.hub.child_protocol import DownloadProgress, HubId, Order, Reply
from runtime.hub.download import RepositoryDownload
from runtime.hub.responses import limit_answers, token_to_send
from runtime.hub.search import owner_of_token, search
from runtime.loading.child_process import end_with_parent

_PAUSE_SECONDS = 0.5  # between two reports while waiting


def main() -> int:
    """Returns the exit code. 0: done; 1: refused; 2: a bug; 3: no order."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 3
    order = msgspec.json.decode(line, type=Order)
    end_with_parent()
    os.umask(0o077)
    limit_answers()
    token = ""
    try:
        token = token_to_send(order.token)
        run_order(order, token)
    except DownloadError as fault:
        _reply(error=_masked(token, str(fault)), reason=fault.reason, kept=fault.kept)
        return 1
    except Exception:  # noqa: BLE001  # the border of the process; its caller reports the last line
        sys.stderr.write(_masked(token, traceback.format_exc()))
        return 2
    return 0


def run_order(order: Order, token: str) -> None:
    """Carries out an order and writes its replies."""
    if order.what == "search":
        _reply(found=search(order.query, order.limit, _wait, token=token))
    elif order.what == "whoami":
        _reply(name=owner_of_token(token, _wait))
    else:
        download = RepositoryDownload(
            HubId.parse(order.repository), lambda progress: _reply(progress=progress), wanted=order.kind, token=token
        )
        if order.what == "plan":
            with tempfile.TemporaryDirectory(prefix="elsewise-") as scratch:
                _reply(plan=download.plan(Path(scratch)))
        else:
            _reply(name=download.fetch(lambda plan: _reply(plan=plan)))


def _masked(token: str, text: str) -> str:
    """Masks the token in a text, because a hub may quote it."""
    return text.replace(token, "(token)") if token else text


def _wait(seconds: float, why: str) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        _reply(progress=DownloadProgress(state="wait", note=why))
        time.sleep(min(left, _PAUSE_SECONDS))


def _reply(**fields: Any) -> None:
    """Writes a `Reply` as a line."""
    sys.stdout.buffer.write(msgspec.json.encode(Reply(**fields)) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
