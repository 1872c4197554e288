"""Files with wrong contents: each is refused with its name and the place, and leaves nothing behind."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage import InvalidFileError, SessionStore, StoreNewerError
from storage.transfer import json_scanner
from tests.storage.helpers import sql, with_store
from tests.storage.transfer.trees import as_json, branching, leftovers, taken


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A valid file, exported once."""
    folder = tmp_path_factory.mktemp("good")
    source = folder / "source" / "sessions.sqlite3"
    as_json(source, with_store(source, branching), folder / "good.json")
    return (folder / "good.json").read_text()


@pytest.fixture
def good(document: str) -> dict[str, Any]:
    """The parsed document, for tests to change."""
    made: dict[str, Any] = json.loads(document)
    return made


def refused(path: Path, file: Path, data: bytes) -> InvalidFileError:
    """Imports `data`, which must be refused without a change of the store; returns the error."""
    file.write_bytes(data)
    SessionStore.open(path).close_sync()
    before = leftovers(path)
    with pytest.raises(InvalidFileError) as caught:
        taken(path, file)
    assert leftovers(path) == before
    assert file.name in str(caught.value)
    return caught.value


def spoil(where: str, key: str, value: Any, index: int = 2) -> Callable[[dict[str, Any]], None]:
    """Replaces one value of a document."""

    def change(made: dict[str, Any]) -> None:
        part = made[where][index] if where != "session" else made[where]
        part[key] = value

    return change


COLUMN = {"dtype": "<i4", "shape": [4], "values": [1, 2, 3, 4]}
SPOILED: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (spoil("nodes", "parent", 999), "node 3: its parent 999 is not among the nodes before it"),
    (spoil("nodes", "parent", 3), "node 3: its parent 3 is not among the nodes before it"),
    (lambda made: made["nodes"].reverse(), "an orphan, a circle, or in the wrong order"),
    (spoil("nodes", "id", 1), "node 1: there is another node 1"),
    (spoil("nodes", "id", -1), "id should lie within 0"),
    (spoil("nodes", "id", 1 << 80), "a number of more than 20 digits"),
    (spoil("nodes", "role", "wizard"), "role 'wizard'"),
    (spoil("nodes", "role", 7), "role should be a text, not a number"),
    (spoil("nodes", "status", "open"), "status 'open'"),
    (spoil("nodes", "text", None), "text should be a text, not null"),
    (spoil("nodes", "turn_start", 1), "turn_start should be true or false"),
    (spoil("nodes", "stats", [1]), "stats should be an object, not a list"),
    (spoil("nodes", "created", True), "created should be a number, not true"),
    (spoil("nodes", "token_count", 11), "node 3 has 10 of its 11 tokens"),
    (spoil("nodes", "token_count", 1 << 40), "token_count should lie within"),
    (spoil("nodes", "kv_fingerprint", None), "give both or neither"),
    (spoil("nodes", "at_token", 5), "node 3: its parent has 4 tokens, token 5 is not among them"),
    (spoil("nodes", "at_byte", 500), "byte 500 is not among them"),
    (spoil("nodes", "surprise", 1), "'surprise' is no field of it"),
    (spoil("session", "current", 77), "the shown node 77"),
    (spoil("session", "title", {}), "title should be a text, not an object"),
    (spoil("session", "updated", 10**400), "updated is too large a number"),
    (spoil("tokens", "node", 500), "node 500 is not among the nodes"),
    (spoil("tokens", "first", 9), "are missing"),
    (spoil("tokens", "count", 3, 0), "column"),
    (spoil("tokens", "count", 0), "count should lie within 1"),
    (spoil("tokens", "columns", {}, 0), "the column 'ids' is missing"),
    (spoil("tokens", "columns", {"ids": {**COLUMN, "dtype": "|O"}}, 0), "dtype '|O'"),
    (spoil("tokens", "columns", {"ids": {**COLUMN, "shape": [1 << 40, 1 << 40]}}, 0), "shape"),
    (spoil("tokens", "columns", {"ids": {**COLUMN, "shape": [-4]}}, 0), "shape"),
    (spoil("tokens", "columns", {"ids": {**COLUMN, "values": [1, 2, 3]}}, 0), "do not fill the shape"),
    (spoil("tokens", "columns", {"ids": {**COLUMN, "values": [1, 2, 3, "4"]}}, 0), "values should be a list of numbers"),
    (spoil("tokens", "columns", {"ids": {**COLUMN, "values": [1, 2, 3, 4.5]}}, 0), "should be whole numbers"),
    (spoil("tokens", "columns", {"ids": {**COLUMN, "values": [1, 2, 3, 1 << 70]}}, 0), "does not fit into <i4"),
    (spoil("tokens", "columns", {"ids": COLUMN, "x": {"dtype": "<f4", "shape": [4], "values": [1e300] * 4}}, 0), "too large"),
    (spoil("tokens", "columns", {"ids": {"dtype": "<i4", "shape": [4], "base64": "!!"}}, 0), "column 'ids'"),
    (spoil("tokens", "columns", {"ids": {"dtype": "|b1", "shape": [4], "base64": "AgICAg=="}}, 0), "truth values"),
    (spoil("tokens", "columns", {"ids": COLUMN, "data": COLUMN, "lengths": {**COLUMN, "values": [9, 9, 9, 9]}}, 0), "lengths"),
    (spoil("tokens", "columns", {"ids": {**COLUMN, "values": [-1, 2, 3, 4]}}, 0), "should lie within 0 and"),
    (spoil("tokens", "columns", {"ids": {**COLUMN, "dtype": "<f4"}}, 0), "column 'ids' should have"),
    (spoil("tokens", "columns", {"ids": COLUMN, "logprob": COLUMN}, 0), "column 'logprob' should have"),
    (spoil("tokens", "columns", {"ids": COLUMN, "origin": {**COLUMN, "dtype": "|u1", "values": [1, 2, 5, 6]}}, 0), "'origin'"),
    (spoil("tokens", "columns", {"ids": COLUMN, "finish": {**COLUMN, "dtype": "|u1", "values": [0, 0, 0, 12]}}, 0), "'finish'"),
    (
        spoil("tokens", "columns", {"ids": COLUMN, "logprob": {**COLUMN, "dtype": "<f4", "values": [0, -1, 1, 1000]}}, 0),
        "exceed",
    ),
    (spoil("tokens", "columns", 5, 0), "columns should be an object"),
    (lambda made: made.pop("session"), "is not expected here"),
    (lambda made: made.update(version="1"), "its version, a number"),
    (lambda made: made.update(format="somebody.else"), "the format 'somebody.else' is not known"),
    (lambda made: made.update(surprise=[1]), "'surprise' is not expected here"),
    (lambda made: made.update(nodes=5), "'nodes' is not expected here"),
    (lambda made: made["nodes"].append(7), "it should be an object, not a number"),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("change", "words"), SPOILED, ids=[words for _, words in SPOILED])
def test_a_document_with_wrong_values_is_refused(
    path: Path, tmp_path: Path, good: dict[str, Any], change: Callable[[dict[str, Any]], None], words: str
) -> None:
    change(good)
    fault = refused(path, tmp_path / "bad.json", json.dumps(good, indent=1).encode())
    assert words in str(fault)
    assert fault.line is not None


def test_the_error_has_the_line_of_the_node(path: Path, tmp_path: Path, good: dict[str, Any]) -> None:
    spoil("nodes", "parent", 999)(good)
    text = json.dumps(good, indent=1)
    fault = refused(path, tmp_path / "bad.json", text.encode())
    assert fault.line is not None
    lines = text.splitlines()
    assert lines[fault.line - 1].strip() == "{"
    assert lines[fault.line].strip() == '"id": 3,'


TEXTS: list[tuple[bytes, str]] = [
    (b"", "it is empty"),
    (b" \n\t ", "it is empty"),
    (b"hello", "neither a list nor an object begins here"),
    (b"[]", "there is no message in it"),
    (b"{}", "no session of ours"),
    (b"{" + b"".join(b'"%d": 0, ' % name for name in range(2_000)) + b"this is not read", "no session of ours"),
    (b'[{"role": "user", "content": "hi"}', "cut short"),
    (b'[{"role": "user", "content": "hi', "cut short"),
    (b'[{"role": "user", "content": "hi"}}', "a comma or the end of the list should be here, not '}'"),
    (b'[{"role": "user" "content": "hi"}]', "this is no JSON"),
    (b'[{"role": "user", "content": "\xff"}]', "its byte 29 is no UTF-8"),
    (b'[{"role": "user", "content": "\\ud83c"}]', "half of a character"),
    (b'[{"role": "user", "role": "user", "content": ""}]', "'role' stands there twice"),
    (b"[{" + b"".join(b'"%d": 0, ' % name for name in range(100_000)) + b'"x": 0, "x": 0}]', "'x' stands there twice"),
    (b'[{"role": "user", "content": NaN}]', "NaN is no JSON number"),
    (b'[{"role": "user", "content": -Infinity}]', "-Infinity is no JSON number"),
    (b'[{"role": "user", "content": 1' + b"0" * 5000 + b"}]", "a number of thousands of digits"),
    (b'[{"role": "user", "content": 12}]', "message 1: its content should be a text"),
    (b'[{"role": "user", "content": "a"},\n{"role": "robot", "content": "b"}]', "line 2, message 2: role 'robot'"),
    (b'[{"role": "user", "content": "a"}, 5]', "message 2: it should be an object"),
    (b'[{"role": "function", "content": "a"}]', "role 'function' cannot be kept"),
    (b'[{"role": "assistant", "content": "a", "tool_calls": [{}]}]', "tool calls cannot be kept"),
    (b'[{"role": "user", "content": [{"type": "image_url"}]}]', "no text but 'image_url'"),
    (b'{"messages": []}', "there is no message in it"),
    (b'{"messages": {}}', "no session of ours"),
    (b'{"messages": [], "messages": []}', "'messages' stands there twice"),
    (b'{"format": "elsewise.session", "format": 1}', "'format' stands there twice"),
    (b'{"format": "elsewise.session", "version": 1, "session": ', "a value is missing"),
    (b'{"role": "user", "content": "a"}\n{"messages": []}', "line 2"),
    (b'{"role": "user", "content": "a"}\n[{"role": "user", "content": "a"}]', "line 2"),
    (b'[{"role": "user", "content": ' + b"[" * 200 + b"]" * 200 + b"}]", "nested more than 100 levels deep"),
    (b"[" * 100_000, "nested more than 100 levels deep"),
    (b'{"a":' * 100_000, "nested more than 100 levels deep"),
    (b"\xff\xfe[\x00]\x00", "neither a list nor an object begins here"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("data", "words"), TEXTS, ids=[words for _, words in TEXTS])
def test_a_file_that_is_no_session_is_refused(path: Path, tmp_path: Path, data: bytes, words: str) -> None:
    assert words in str(refused(path, tmp_path / "bad.json", data))


def test_a_range_with_more_tokens_than_an_export_writes_is_refused(path: Path, tmp_path: Path, good: dict[str, Any]) -> None:
    many = 1 << 24
    ids = {"dtype": "|u1", "shape": [many // 2], "base64": "AAAA" * (many // 6) + "AAA="}
    good["nodes"][2]["token_count"] = many // 2
    good["tokens"][0].update(count=many // 2, columns={"ids": ids})
    fault = refused(path, tmp_path / "bad.json", json.dumps(good).encode())
    assert "count should lie within 1 and 65,536" in str(fault)


def test_an_unrelated_json_object_is_not_held_in_memory(path: Path, tmp_path: Path) -> None:
    file, value = tmp_path / "foreign.json", "x" * (1 << 20)
    file.write_text(json.dumps({f"item {number}": value for number in range(64)}))
    SessionStore.open(path).close_sync()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidFileError, match="no session of ours"):
            taken(path, file)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("told", "low"), [(2.5e11, 1.0), (1e20, 1.0), (-5.0, 0.0)])
def test_imported_dates_lie_between_the_epoch_and_now(
    path: Path, tmp_path: Path, good: dict[str, Any], told: float, low: float
) -> None:
    good["session"].update(created=told, updated=told)
    for node in good["nodes"]:
        node["created"] = told
    (tmp_path / "dates.json").write_text(json.dumps(good))
    [number] = taken(path, tmp_path / "dates.json").sessions
    tree = with_store(path, lambda store: store.load_session(number))
    dates = [tree.session.created, tree.session.updated, *(row[0] for row in sql(path, "SELECT created FROM nodes"))]
    assert all(low <= date <= time.time() for date in dates)


def test_more_models_than_a_session_can_have_are_refused(path: Path, tmp_path: Path, good: dict[str, Any]) -> None:
    good["models"] = [{"kv_fingerprint": f"model {number}", "info": {}} for number in range(5_000)]
    assert "more than 4,096 models" in str(refused(path, tmp_path / "bad.json", json.dumps(good).encode()))


def test_a_model_listed_many_times_is_imported_once(path: Path, tmp_path: Path, good: dict[str, Any]) -> None:
    good["models"] = [{"kv_fingerprint": "model-a", "info": {}}] * 5_000
    (tmp_path / "good.json").write_text(json.dumps(good))
    taken(path, tmp_path / "good.json")
    assert sql(path, "SELECT count(*) FROM models") == [(1,)]


def test_a_newer_format_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "new.json").write_text('{"format": "elsewise.session", "version": 2, "whatever": [')
    with pytest.raises(StoreNewerError, match="update the app"):
        taken(path, tmp_path / "new.json")
    assert leftovers(path)[0] == 0


def test_a_file_that_cannot_be_read_is_named(path: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match="cannot be read"):
        taken(path, tmp_path)
    with pytest.raises(InvalidFileError, match="not-there"):
        taken(path, tmp_path / "not-there.json")


@pytest.mark.slow
def test_every_truncation_is_refused(path: Path, tmp_path: Path, good: dict[str, Any]) -> None:
    whole = json.dumps(good).encode()
    for length in range(1, len(whole), len(whole) // 25):
        refused(path, tmp_path / "cut.json", whole[:length])


class Endless:
    """A file of one line that never ends; counts the bytes that were read."""

    def __init__(self, start: bytes, rest: bytes) -> None:
        self._start, self._rest, self.given = start, rest, 0

    def read(self, size: int) -> bytes:
        if self.given > 10 << 30:
            return b""
        block = (self._start + self._rest * size)[:size]
        self._start = b""
        self.given += size
        return block


@pytest.mark.slow
@pytest.mark.parametrize(
    "start", [b'[{"role": "user", "content": "', b'[{"role": "user", "content": [1', b'{"x', b"[1", b'[{"a":['], ids=repr
)
def test_a_line_of_10_gb_is_refused_without_reading_it_all(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_scanner, "LIMIT", 1 << 19)
    for rest in (b"1", b"[", b"\\", b'"'):
        file: Any = Endless(start, rest)
        with pytest.raises(InvalidFileError):
            list(json_scanner.Scanner(file, "long.json", ("messages",)).events())
        assert file.given < 3 * json_scanner.LIMIT
