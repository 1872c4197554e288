"""Files that version 0.1.0 wrote open today: the data folder with its KV blocks and settings, portable files and JSON.

Everything in `tests/golden/0.1.0` was written by that version itself, with the small model in the same folder: on each engine
a session of two turns with a branch and a second answer, and an empty session.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from app.supervisor import Supervisor
from app.workbench import AppWorkbench, Services
from storage import SessionStore
from tests.app.cli.conftest import Elsewise

GOLDEN = Path(__file__).parents[2] / "golden" / "0.1.0"
ENGINES = ("hf", "mlx")


def unpacked(name: str, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.decompress((GOLDEN / f"{name}.gz").read_bytes()))
    return target


@pytest.fixture
def earlier(data: Path) -> Path:
    """A data folder as 0.1.0 left it."""
    for name in ("sessions.db", "blocks.db"):
        unpacked(name, data / name)
    return data


def exported(elsewise: Elsewise, session: str, file: Path) -> dict[str, Any]:
    assert elsewise("sessions", "export", session, str(file)).code == 0
    read: dict[str, Any] = json.loads(file.read_text())
    return read


def answer_of_a_further_turn(elsewise: Elsewise, session: str, engine: str, file: Path) -> dict[str, Any]:
    """The statistics of the answer to one more message."""
    question = ("ask", "And at night?", "--session", session, "--max-tokens", "4")
    asked = elsewise(*question, "--model", str(GOLDEN / "model"), "--backend", engine, "--load", "dtype=float32")
    assert asked.code == 0, asked.err
    last = exported(elsewise, session, file)["nodes"][-1]
    assert last["role"] == "assistant"
    stats: dict[str, Any] = last["stats"]
    return stats


def test_every_session_is_listed_and_undamaged(elsewise: Elsewise, earlier: Path) -> None:
    listed = elsewise("sessions", "list")
    assert [title in listed.out for title in ("Harbour hf", "Harbour mlx", "Notes")] == [True, True, False]  # empty: not listed
    assert elsewise("sessions", "verify").code == 0


def test_every_token_and_number_is_read_unchanged(elsewise: Elsewise, earlier: Path, tmp_path: Path) -> None:
    written = json.loads(gzip.decompress((GOLDEN / "hf.json.gz").read_bytes()))
    assert exported(elsewise, "Harbour hf", tmp_path / "again.json") == written


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_session_continues_from_its_stored_kv(elsewise: Elsewise, earlier: Path, tmp_path: Path, engine: str) -> None:
    stats = answer_of_a_further_turn(elsewise, f"Harbour {engine}", engine, tmp_path / "more.json")
    assert stats["computed"] < 64 < stats["reused"]  # the new message and the end of the last block; all before it was restored


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("with_kv", [False, True])
def test_a_portable_file_is_continued_with_or_without_its_kv(
    elsewise: Elsewise, tmp_path: Path, engine: str, with_kv: bool
) -> None:
    kind, options = ("with_kv", ["--with-kv"]) if with_kv else ("portable", [])
    taken = elsewise("sessions", "import", str(unpacked(f"{engine}-{kind}.elsewise", tmp_path / "file.elsewise")), *options)
    assert taken.code == 0, taken.err
    stats = answer_of_a_further_turn(elsewise, f"Harbour {engine}", engine, tmp_path / "more.json")
    assert (stats["reused"] > 64) == with_kv


def test_json_is_imported(elsewise: Elsewise, tmp_path: Path) -> None:
    file = unpacked("hf.json", tmp_path / "session.json")
    assert elsewise("sessions", "import", str(file)).code == 0
    written = json.loads(file.read_text())
    again = exported(elsewise, "Harbour hf", tmp_path / "again.json")
    for part in ("nodes", "tokens"):
        assert len(again[part]) == len(written[part])
    assert [node["text"] for node in again["nodes"]] == [node["text"] for node in written["nodes"]]


def test_the_settings_are_read(earlier: Path) -> None:
    async def read() -> str:
        workbench = AppWorkbench(Services(SessionStore.open(earlier / "sessions.db"), Supervisor("none")))
        try:
            settings = await workbench.settings.view()
            return settings.values.scheme
        finally:
            await workbench.close()

    assert asyncio.run(read()) == "dark"
