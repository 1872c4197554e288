"""A data folder that cannot be written, such as a mounted backup, or one on a full disk: it can still be read."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from storage import NewNode, SessionStore
from tests.app.cli.conftest import EACH

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 120
NAMESPACE = ["unshare", "-rm"]  # mounts that end with the process

needs_mounts = pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode != 0,
    reason="needs Linux, and the right to mount in a namespace of its own",
)
MOUNTS = {
    "read-only": 'mount --bind "$D" "$D" && mount -o remount,ro,bind "$D" "$D" &&',
    "of another user": 'chmod -R a=rX "$D" && setpriv --bounding-set=-all',  # without root's rights, which override permissions
    "full": 'cp -a "$D" "$D.copy" && mount -t tmpfs -o size=1m none "$D" && cp -a "$D.copy/." "$D" '
    '&& { head -c 2000000 /dev/zero > "$D/filler" 2>/dev/null; true; } &&',
}


def filled(folder: Path, *, journal: bool) -> Path:
    """A data folder after a clean end, or (`journal`) after a kill, with data in the write-ahead log."""
    path = folder / "writing" / "sessions.db"
    store = SessionStore.open(path)

    async def fill() -> None:
        session = await store.create_session("Trip")
        await store.add_node(NewNode(session, None, "user", "so it goes"), current=True)

    asyncio.run(fill())
    if not journal:
        store.close_sync()
    data = folder / "data"
    data.mkdir()
    for file in path.parent.glob("sessions.db*"):
        if not file.name.endswith("-shm"):  # which is not part of a copy
            shutil.copy(file, data)
    store.close_sync()
    assert (data / "sessions.db-wal").exists() == journal
    return data


def mounted(data: Path, mount: str, temporary: Path, *commands: list[str]) -> list[list[Any]]:
    """Exit code, stdout and stderr of the commands, in a namespace with this mount of the data folder."""
    arguments = json.dumps([["--data-dir", str(data), *command] for command in commands])
    done = subprocess.run(
        [*NAMESPACE, "bash", "-c", f"{MOUNTS[mount]} {shlex.join([sys.executable, '-c', EACH, arguments])}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env=os.environ | {"D": str(data), "TMPDIR": str(temporary)},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line)[:3] for line in done.stdout.splitlines()]


@pytest.mark.slow
@needs_mounts
@pytest.mark.parametrize("mount", MOUNTS)
@pytest.mark.parametrize("journal", [False, True], ids=["closed", "killed"])
def test_sessions_are_listed_shown_exported_and_verified(tmp_path: Path, mount: str, journal: bool) -> None:
    data, out = filled(tmp_path, journal=journal), tmp_path / "out.json"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    before = {file.name: file.read_bytes() for file in data.iterdir()}
    commands = (["list"], ["show", "1"], ["export", "Trip", str(out)], ["verify"])
    listed, shown, exported, verified = mounted(data, mount, temporary, *(["sessions", *each] for each in commands))
    for code, _, err in (listed, shown, exported, verified):
        assert (code, "Traceback" in err) == (0, False), err
    assert "Trip" in listed[1]
    assert "user: so it goes" in shown[1]
    assert "so it goes" in json.dumps(json.loads(out.read_text()))
    assert verified[2].strip().endswith("sound")
    assert {file.name: file.read_bytes() for file in data.iterdir()} == before
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
@needs_mounts
def test_damage_in_a_read_only_folder_is_named_and_not_changed(tmp_path: Path) -> None:
    data = filled(tmp_path, journal=False)
    raw = (data / "sessions.db").read_bytes()
    (data / "sessions.db").write_bytes(raw.replace(b"so it goes", b"so it goed"))
    ((code, _, err),) = mounted(data, "read-only", tmp_path, ["sessions", "verify"])
    assert (code, "Traceback" in err) == (1, False)
    assert "damaged" in err
    assert "nothing was changed: " in err.splitlines()[-1]


SMALL = 'mount -t tmpfs -o size=640k none "$D"'  # has room for the store and the beginning of a long answer
ASK = ["ask", "hi", "--session", "Trip", "--backend", "fake", "--seed", "3", "--option", "ignore_eos=true", "--max-tokens"]


@pytest.mark.slow
@needs_mounts
def test_an_answer_for_which_the_disk_has_no_room_is_saved_elsewhere(tmp_path: Path) -> None:
    # given a disk that fills while an answer streams, and another one
    data, home, kept = tmp_path / "data", tmp_path / "home", tmp_path / "kept"
    for folder in (data, home):
        folder.mkdir()
    elsewise = [sys.executable, "-m", "app", "--data-dir", str(data)]
    lines = [
        SMALL,
        f"export HOME={shlex.quote(str(home))}",
        f"{shlex.join([*elsewise, *ASK, '3000'])}; code=$?",
        f"{shlex.join([*elsewise, 'sessions', 'show', '1'])} > {shlex.quote(str(kept))}; exit $code",
    ]
    # when
    done = subprocess.run(
        [*NAMESPACE, "bash", "-c", "\n".join(lines)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env=os.environ | {"D": str(data)},
    )
    # then one sentence names the place, which holds all printed text
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    told = [line for line in done.stderr.splitlines() if "sessions.db" in line]
    assert len(told) == 1, done.stderr
    assert "the disk is full" in told[0]
    assert "The session 'Trip' has only the beginning of the last answer" in told[0]
    assert kept.read_text().startswith("# Trip\n\nuser: hi")
    (file,) = home.glob("elsewise-unsaved-*.md")
    assert told[0].endswith(f"is in {file}")
    assert file.stat().st_mode & 0o077 == 0
    assert letters(file.read_text()) == letters(f"# Trip\n\nuser: hi\n\nassistant: {done.stdout}")


def letters(text: str) -> str:
    """Without the differences between a terminal and a pipe: line ends, and bytes that are not UTF-8."""
    return "".join(letter for letter in text if letter.isascii() and letter.isprintable())
