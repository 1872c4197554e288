"""Copies KV blocks between the block file of a data folder and a portable session file.

As a program it makes one such copy for the window, which opens no block file itself: the request comes on stdin, the result
goes to stdout, each as one JSON object.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from resources.processes import child_command
from storage import open_blocks

log = logging.getLogger(__name__)
UNBOUNDED: Final = 1 << 62  # bytes: the block file drops nothing


def put_into(file: Path, blocks: Path, keys: Sequence[bytes]) -> int:
    """Copies the blocks that exist into a portable file; returns their number. Blocking.

    Raises:
        OSError: The block file is in use, or the portable file cannot be written; it is unchanged then.
    """
    if not blocks.exists():
        return 0
    with closing(open_blocks(blocks, UNBOUNDED)) as held:
        return held.copy_to(file, keys)


def take_from(file: Path, blocks: Path, keys: Sequence[bytes], budget: int) -> int:
    """Copies the blocks in a portable file into the block file of `budget` bytes; returns their number. Blocking.

    Each is verified.

    Raises:
        OSError: The file has no blocks, or the block file cannot be written; it is unchanged then.
    """
    with closing(open_blocks(blocks, budget)) as held:
        return held.take_from(file, keys)


def apart(file: Path, blocks: Path, keys: Sequence[bytes], *, budget: int | None = None) -> int:
    """`take_from`, or without a budget `put_into`, in a process of its own, which a malicious file may crash. Blocking.

    Raises:
        OSError: As those, or the process ended without a result.
    """
    asked = {"file": str(file), "blocks": str(blocks), "keys": [key.hex() for key in keys], "budget": budget}
    done = subprocess.run(
        child_command("app.block_files"), input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    for line in done.stderr.splitlines():
        log.info("%s", line)
    if done.returncode:
        raise OSError(f"{blocks.name}: the process that reads it has ended ({done.returncode}); the file is as it was")
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise OSError(answer["errno"], answer["error"], answer["file"])
    return int(answer["count"])


def main() -> None:
    """Runs the request on stdin."""
    asked = json.load(sys.stdin)
    file, blocks, keys = Path(asked["file"]), Path(asked["blocks"]), [bytes.fromhex(key) for key in asked["keys"]]
    try:
        count = put_into(file, blocks, keys) if asked["budget"] is None else take_from(file, blocks, keys, asked["budget"])
    except OSError as fault:
        json.dump({"error": fault.strerror or str(fault), "errno": fault.errno, "file": fault.filename}, sys.stdout)
    else:
        json.dump({"count": count}, sys.stdout)


if __name__ == "__main__":
    main()
