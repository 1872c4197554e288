"""`kv_snapshot` and `kv_restore`: one file, from which exactly the same KV is restored."""

from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from runtime import load
from runtime.backends.fake import Behaviour
from runtime.errors import InvalidRequestError, MemoryBudgetError, SnapshotFormatError, SnapshotMismatchError
from runtime.kv import snapshot
from runtime.scheduler.kv import copying
from tests.fakes import assert_right, fake_model, some_ids
from tests.runtime.adapters.makers import INVOCATION, save_adapter
from tests.runtime.adapters.test_activated import plain
from tests.runtime.backends.reference import random_ids
from tests.runtime.model.trouble import audit
from tests.tiny_models import tiny_path

IDS = some_ids(1, 300)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A snapshot of `IDS` by the fake."""
    path = tmp_path / "kept.safetensors"
    with fake_model() as model:
        assert model.kv_snapshot(IDS, path) == path.stat().st_size
    return path


@pytest.mark.parametrize("kind", ["attention", "recurrent"])
@pytest.mark.parametrize("part", [1 << 20, 4096])
def test_a_snapshot_is_restored_completely(kind: str, part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "PART_BYTES", part)
    behaviour = Behaviour(recurrent=kind == "recurrent")
    with fake_model(behaviour) as model:
        model.kv_snapshot(IDS, tmp_path / "x")
    with fake_model(behaviour) as model:
        assert model.kv_restore(tmp_path / "x") == 300
        assert_right(model.next_token_logprobs_sync([*IDS, 1]), [*IDS, 1], kind)
        assert model.metrics().tokens_computed == 1
        assert model.metrics().tokens_restored == 300
        assert model.kv_restore(tmp_path / "x") == 300  # all of it is in memory already
        audit(model)
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600


def test_a_restore_can_be_limited_to_leading_tokens(file: Path) -> None:
    with fake_model() as model:
        assert model.kv_restore(file, upto=130) == 130
        assert model.prefix_match(IDS).tokens == 130
        assert model.kv_restore(str(file), upto=1_000) == 300


def test_the_header_of_a_snapshot_describes_it(file: Path) -> None:
    with safe_open(file, framework="numpy") as opened:
        metadata = opened.metadata()
        assert metadata["format"] == "elsewise-kv"
        assert [int(token) for token in metadata["ids"].split()] == IDS
        assert len(metadata["kv_fingerprint"]) > 20
        assert metadata["backend"] == "fake"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2", "falcon_h1"])
def test_restored_equals_fresh_on_real_models(name: str, backend: str, tmp_path: Path) -> None:
    path = [int(i) for i in random_ids(1, 130)]
    with load(tiny_path(name), backend=backend) as model:
        model.kv_snapshot(path, tmp_path / "x")
        fresh = model.next_token_logprobs_uncached([*path, 5])
    with load(tiny_path(name), backend=backend) as model:
        before = model.metrics().tokens_computed
        assert model.kv_restore(tmp_path / "x") == 130
        np.testing.assert_allclose(model.next_token_logprobs_sync([*path, 5]), fresh, atol=1e-4, rtol=0)
        assert model.metrics().tokens_computed - before == 1


def test_paths_with_activated_adapters_are_restored(tmp_path: Path) -> None:
    act = save_adapter(tmp_path / "act", "llama", seed=3, alora_invocation_tokens=INVOCATION)
    path = [*plain(1, 70), *INVOCATION, *plain(2, 30)]
    for turn in range(2):
        with load(tiny_path("llama"), backend="hf") as model:
            model.load_adapter(model.add_adapter(act))
            if turn == 0:
                model.kv_snapshot(path, tmp_path / "x", adapters=["act"])
            else:
                assert model.kv_restore(tmp_path / "x") == len(path)
                assert model.prefix_match(path, adapters=["act"]).tokens == len(path)
                assert model.prefix_match(path, adapters=()).tokens == 70


# ---- files that are refused --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_flipped_byte_is_noticed(file: Path) -> None:
    data = file.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    spots = [*range(0, 3000, 37), *range(header, len(data), 997), len(data) - 1]
    with fake_model() as model:
        for at in spots:
            bent = bytearray(data)
            bent[at] ^= 0x20
            file.write_bytes(bent)
            with pytest.raises((SnapshotFormatError, SnapshotMismatchError)):
                model.kv_restore(file)
        for end in (0, 7, 8, 900, header, len(data) - 1):
            file.write_bytes(data[:end])
            with pytest.raises(SnapshotFormatError):
                model.kv_restore(file)
        assert model.metrics().tokens_restored == 0
        assert model.prefix_match(IDS).tokens == 0


def rewritten(file: Path, old: str, new: str) -> None:
    """Writes another header with a valid seal."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + size].decode().rstrip(" ")
    seal = text.split('"seal":"')[1][:64]
    assert old in text
    text = text.replace(seal, "0" * 64).replace(old, new)
    text = text.replace("0" * 64, snapshot.sealed(text), 1)
    file.write_bytes(data[:8] + text.encode().ljust(size) + data[8 + size :])


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('"version":"1"', '"version":"2"', "has format 2, newer than 1"),
        ('"start":"0"', '"start":"64"', "begins at token 64: only one that begins at its path's first token"),
        ('"format":"elsewise-kv"', '"format":"elsewise-xy"', "its format is 'elsewise-xy'"),
        (f'"ids":"{IDS[0]} ', '"ids":"', "has 299 ids, and parts up to 300"),
        pytest.param('"adapters":"[[', f'"adapters":"{50_000 * "["}', "header is damaged", id="too deep"),
    ],
)
def test_a_snapshot_with_an_invalid_header_is_refused_with_the_reason(old: str, new: str, match: str, file: Path) -> None:
    rewritten(file, old, new)
    with fake_model() as model, pytest.raises(SnapshotFormatError, match=match):
        model.kv_restore(file)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "loading", "match"),
    [
        ("mistral", {}, "another architecture: 'llama', this model has 'mistral'"),
        ("llama", {"backend": "mlx"}, "another backend: 'hf', this model has 'mlx'"),
        ("llama", {"kv_dtype": "q8"}, "another (shape of keys and values|kv_dtype)"),
        ("llama", {"dtype": "bfloat16"}, "another (shape of keys and values|dtype)"),
    ],
)
def test_a_snapshot_of_another_model_is_refused_with_the_part_that_differs(
    name: str, loading: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with load(tiny_path("llama"), backend="hf") as model:
        model.kv_snapshot([5, 6, 7], tmp_path / "x")
    with load(tiny_path(name), **{"backend": "hf", **loading}) as model, pytest.raises(SnapshotMismatchError, match=match):
        model.kv_restore(tmp_path / "x")


def test_a_snapshot_of_other_weights_is_refused(file: Path) -> None:
    with fake_model() as model:
        print_of = model.info.kv_fingerprint
        rewritten(file, f'"kv_fingerprint":"{print_of}"', '"kv_fingerprint":"another"')
        with pytest.raises(SnapshotMismatchError, match="other weights"):
            model.kv_restore(file)


def test_other_files_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(3)}, tmp_path / "theirs")
    (tmp_path / "text").write_text("hello")
    with fake_model() as model:
        for name in ("theirs", "text"):
            with pytest.raises(SnapshotFormatError, match="no snapshot of ours"):
                model.kv_restore(tmp_path / name)
        with pytest.raises(FileNotFoundError):
            model.kv_restore(tmp_path / "nothing")
        for upto in (0, -1, True, "7"):
            with pytest.raises(InvalidRequestError, match="upto counts tokens"):
                model.kv_restore(tmp_path / "theirs", upto=upto)  # type: ignore[arg-type]  # what is tested


def test_a_symbolic_link_planted_at_the_temporary_name_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / f".x.{os.getpid()}.part").symlink_to(tmp_path / "victim")
    with fake_model() as model:
        model.kv_snapshot(IDS[:100], tmp_path / "x")
        assert model.kv_restore(tmp_path / "x") == 100
    assert (tmp_path / "victim").read_bytes() == b"mine"


def test_a_header_as_long_as_the_file_is_not_read(tmp_path: Path) -> None:
    claimed = 200_000_000
    with (tmp_path / "x").open("wb") as sparse:
        sparse.write(claimed.to_bytes(8, "little"))
        sparse.truncate(claimed + 16)
    tracemalloc.start()
    try:
        with fake_model() as model, pytest.raises(SnapshotFormatError, match="no snapshot of ours"):
            model.kv_restore(tmp_path / "x")
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


def test_a_disk_that_fails_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with fake_model() as model, pytest.raises(OSError, match="No space left"):
        model.kv_snapshot(IDS[:100], file)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_snapshot_that_does_not_fit_into_memory_is_refused_or_not_restored(tmp_path: Path, file: Path) -> None:
    token = 2 * 16 * 8
    with fake_model(kv_cache_bytes=290 * token) as model, pytest.raises(MemoryBudgetError, match="kv_cache_bytes"):
        model.kv_snapshot(IDS, tmp_path / "x")
    with fake_model(kv_cache_bytes=200 * token) as model:
        assert model.kv_restore(file) == 0  # its one part does not fit
        assert_right(model.next_token_logprobs_sync(IDS[:50]), IDS[:50])
        audit(model)
