"""``python -m runtime.hub.child``: the only process that connects to a hub.

Standard input: one line, an `Order`; standard output: a `Reply` per line. The process ends when its standard input closes;
received bytes are kept.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

from runtime.errors import DownloadError
from runtime.hub.child_protocol import DownloadPlan, DownloadProgress, HubId, Order, Reply
from runtime.hub.download import Download
from runtime.hub.responses import limit_answers, token_to_send
from runtime.hub.search import owner_of_token, search
from runtime.loading.child_process import end_with_parent

_PAUSE_SECONDS = 0.5  # between two reports while waiting


def main() -> int:
    """Exit code 0: done; 1: refused; 2: a bug; 3: no order."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 3
    asked = msgspec.json.decode(line, type=Order)
    end_with_parent()
    os.umask(0o077)
    limit_answers()
    token = ""
    try:
        token = token_to_send(asked.token)
        _do(asked, token)
    except DownloadError as fault:
        _say(Reply(error=_without(token, str(fault)), reason=fault.reason, kept=fault.kept))
        return 1
    except Exception:  # noqa: BLE001  # the border of the process; its caller reports the last line
        sys.stderr.write(_without(token, traceback.format_exc()))
        return 2
    return 0


def _do(asked: Order, token: str) -> None:
    if asked.what == "search":
        _say(Reply(found=search(asked.query, asked.limit, _wait, token=token)))
    elif asked.what == "who":
        _say(Reply(name=owner_of_token(token, _wait)))
    else:
        tell: Callable[[DownloadProgress], None] = lambda progress: _say(Reply(progress=progress))  # noqa: E731
        download = Download(HubId.parse(asked.repository), tell, wanted=asked.kind, token=token)
        if asked.what == "plan":
            with tempfile.TemporaryDirectory(prefix="elsewise-") as scratch:
                _say(Reply(plan=download.plan(Path(scratch))))
        else:
            _say(Reply(name=download.fetch(_say_plan)))


def _without(token: str, text: str) -> str:
    """Masks the token, which a hub may quote."""
    return text.replace(token, "(token)") if token else text


def _wait(seconds: float, why: str) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        _say(Reply(progress=DownloadProgress(state="wait", note=why)))
        time.sleep(min(left, _PAUSE_SECONDS))


def _say_plan(plan: DownloadPlan) -> None:
    _say(Reply(plan=plan))


def _say(said: Reply) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
