"""``python -m tests.runtime.shelf.killed import FILE | fetch ORG/NAME``: kill -9 before every change of a shelf.

Each time in a process of its own, over an empty shelf (ELSEWISE_MODELS): every model listed afterwards must be complete, and
repeating the work must succeed and leave nothing else behind. Prints the number of changes.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from runtime.hub.child_protocol import HubId
from runtime.hub.download import RepositoryDownload
from runtime.loading.paths import models_dir
from runtime.shelf.importing import import_model
from runtime.shelf.model_shelf import ModelShelf

CHANGES = ("os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate")
STAYS = (".lock", ".used", ".digests", ".measured")  # not models themselves


def killed_before(change: int, work: Callable[[], object]) -> bool:
    """Does the work in a process that ends by SIGKILL before the given change; returns whether it came that far."""
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"the work failed, {change}"
        return os.WIFSIGNALED(status)
    left, shelf = change, str(models_dir())

    def look(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        inside = any(isinstance(each, str | Path) and str(each).startswith(shelf) for each in arguments[:2])
        if (writes or event in CHANGES) and inside:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    try:
        sys.addaudithook(look)
        work()
        code = 0
    except BaseException:  # noqa: BLE001  # reported by the traceback and the exit code
        traceback.print_exc()
    finally:
        os._exit(code)


def check_listed() -> None:
    """Every model listed as ready can be opened and equals the original."""
    shelf = ModelShelf()
    for entry in shelf.models():
        assert entry.complete, entry
        shelf.open(entry.name)
        shelf.verify(entry.name)


def main() -> None:
    what, source = sys.argv[1:]
    work: Callable[[], object] = (
        (lambda: import_model(source))
        if what == "import"
        else RepositoryDownload(HubId.parse(source), lambda _progress: None).fetch
    )
    change = 1
    while True:
        shutil.rmtree(models_dir(), ignore_errors=True)
        if not killed_before(change, work):
            break
        check_listed()
        assert not killed_before(1 << 30, work)  # again, without a kill
        check_listed()
        [entry] = ModelShelf().models()
        found = {path.name for path in models_dir().iterdir()} - set(STAYS) - {entry.path.name}
        left = {name for name in found if any((models_dir() / name).iterdir())}
        assert not left, (change, left)
        change += 1
    sys.stdout.write(f"{change - 1}\n")


if __name__ == "__main__":
    main()
