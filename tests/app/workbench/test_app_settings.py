"""The settings of the app: stored field by field, given to the engine, hostile values fall back."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from app.workbench.models.settings import read_settings
from runtime import GenerationOptions, SamplingOptions
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, rows
from ui import AppSettings, Backup, Refusal

PLAIN = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.8))


def test_settings_are_stored_and_given_to_the_next_engine(play: Play) -> None:
    given: list[dict[str, object]] = []

    class Asked(Engine):
        async def __call__(self, source: str, backend: str, **options: object):  # type: ignore[no-untyped-def]  # as its parent
            options.pop("on_progress")
            given.append({"backend": backend, **options})
            return await super().__call__(source, backend)

    async def first(s: Scene) -> None:
        await s.workbench.services.supervisor.model()
        view = await s.workbench.settings.change("context_length", 4096)
        assert view.needs_reload
        await s.workbench.settings.change("threads", 2)
        assert (await s.workbench.settings.change("kv_cache_bytes", 64 << 20)).needs_reload
        model = s.workbench.services.supervisor.running
        assert model is not None
        assert model.metrics().kv_budget == 64 << 20  # now
        # when it is reloaded
        await s.workbench.models.reload()
        assert not (await s.workbench.settings.view()).needs_reload
        await s.workbench.services.supervisor.model()
        assert given[0] == {"backend": "auto"}
        assert given[-1] == {
            "backend": "auto", "context_length": 4096, "threads": 2, "kv_cache_bytes": 64 << 20,
            "soft_options": ["context_length"],
        }  # fmt: skip
        # and a budget alone needs no reload
        assert not (await s.workbench.settings.change("kv_cache_bytes", 32 << 20)).needs_reload
        assert not (await s.workbench.settings.change("text_percent", 150)).needs_reload

    async def second(s: Scene) -> None:
        values = await s.workbench.settings.load()
        assert (values.context_length, values.threads, values.text_percent) == (4096, 2, 150)
        await s.workbench.services.supervisor.model()
        assert given[-1]["context_length"] == 4096
        await s.workbench.settings.change("context_length", None)
        assert "context_length" not in s.workbench.services.supervisor.options

    play(first, engine=Asked())
    play(second, engine=Asked())


def test_two_concurrent_changes_both_apply(play: Play) -> None:
    async def first(s: Scene) -> None:
        await s.workbench.settings.load()
        change = s.workbench.settings.change
        await asyncio.gather(change("scheme", "dark"), change("text_percent", 150), change("titles", "model"))

    async def second(s: Scene) -> None:
        values = await s.workbench.settings.load()
        assert (values.scheme, values.text_percent, values.titles) == ("dark", 150, "model")

    play(first)
    play(second)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context_length", 0), ("context_length", "many"), ("threads", -1), ("threads", True), ("dtype", "float8"),
        ("scheme", "pink"), ("contrast", "loud"), ("motion", True),
        ("text_percent", 79), ("text_percent", 1e9), ("kv_cache_bytes", 5), ("disk_bytes", -1),
        ("chat_template_file", 7), ("chat_template_file", "/nowhere/x.jinja"),
        ("preset", "nobody's"), ("nothing", 1), ("backend", None),
    ],
)  # fmt: skip
def test_an_invalid_value_is_refused_and_nothing_changes(play: Play, name: str, value: object) -> None:
    async def scene(s: Scene) -> None:
        with pytest.raises(Refusal):
            await s.workbench.settings.change(name, value)
        assert (await s.workbench.settings.view()).values == AppSettings()
        assert await s.store.setting("settings") is None

    play(scene)


@pytest.mark.parametrize(
    "hostile",
    [
        "x",
        7,
        [],
        {"scheme": {"a": 1}, "threads": "2", "text_percent": -5, "kv_cache_bytes": 1e400, "dtype": None, "backend": 3},
    ],
)
def test_invalid_stored_settings_fall_back_with_a_note(hostile: object) -> None:
    values, notes = read_settings(hostile)
    assert values == AppSettings()
    assert notes
    good, none = read_settings({"scheme": "dark", "unheard of": 1, "text_percent": 150})
    assert (good.scheme, good.text_percent, none) == ("dark", 150, [])


def test_a_stored_auto_leaves_every_choice_to_the_engine(play: Play) -> None:
    async def scene(s: Scene) -> None:
        names = ("draft_model", "weights", "chat_format", "threads")
        await s.store.set_setting("settings", dict.fromkeys(names, "auto"))
        view = await s.workbench.settings.view()
        assert (view.values, view.notes, s.workbench.services.supervisor.options) == (AppSettings(), [], {})

    play(scene)


def test_the_chat_format_and_the_place_of_the_weights_are_given_to_the_next_engine(play: Play) -> None:
    async def scene(s: Scene) -> None:
        for name, wrong, shown in (
            ("chat_format", "esperanto", "the chat format esperanto"),
            ("offload", "tape", "weights on tape"),
        ):
            with pytest.raises(Refusal, match=shown):
                await s.workbench.settings.change(name, wrong)
        view = await s.workbench.settings.change("chat_format", "chatml")
        assert set(view.choices["chat_format"]) > {"auto", "none", "chatml", "plain"}
        await s.workbench.settings.change("offload", "disk")
        assert s.workbench.services.supervisor.options == {
            "chat_format": "chatml",
            "offload": "disk",
            "soft_options": ["offload"],
        }
        # text without roles is an explicit choice, weights in memory are the default
        await s.workbench.settings.change("chat_format", "none")
        await s.workbench.settings.change("offload", "none")
        assert s.workbench.services.supervisor.options == {"chat_format": "none"}

    play(scene)


def test_sessions_without_a_preset_use_that_of_the_settings(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.settings.change("preset", "greedy")
        setup = await s.workbench.setup.view(session_id)
        temperature = next(option for option in setup.options if option.name == "temperature")
        assert (temperature.value, temperature.source, setup.preset) == (0.0, "preset", "")
        # it is shown as such, and Elsewise's own can be chosen as well
        assert setup.default_preset == "greedy"
        own = await s.workbench.setup.choose_preset(session_id, "Elsewise's own")
        temperature = next(option for option in own.options if option.name == "temperature")
        assert (temperature.value, temperature.source, own.preset) == (0.8, "preset", "Elsewise's own")
        assert await s.workbench.setup.choose_preset(session_id, "") == setup
        assert (await s.workbench.settings.view()).choices["preset"] == ["", "model's own", "greedy"]

    play(scene, options=PLAIN)


def test_a_custom_template_replaces_a_chat_format_and_can_be_removed(play: Play, tmp_path: Path) -> None:
    own = tmp_path / "mine.jinja"
    own.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    (tmp_path / "picture.jinja").write_bytes(b"\x89PNG\r\n\xff")

    async def scene(s: Scene) -> None:
        await s.workbench.settings.change("chat_format", "chatml")
        view = await s.workbench.settings.change("chat_template_file", str(own))
        assert (view.values.chat_template_file, view.values.chat_format) == (str(own), "auto")
        assert s.workbench.services.supervisor.options == {"chat_template_file": str(own)}
        with pytest.raises(Refusal, match=r"picture.jinja is not UTF-8 text: byte 0 is 0x89"):
            await s.workbench.settings.change("chat_template_file", str(tmp_path / "picture.jinja"))
        assert s.workbench.services.supervisor.options == {"chat_template_file": str(own)}
        view = await s.workbench.settings.change("chat_format", "chatml")
        assert (view.values.chat_template_file, s.workbench.services.supervisor.options) == ("", {"chat_format": "chatml"})

    play(scene)
    both, notes = read_settings({"chat_format": "chatml", "chat_template_file": "/x.jinja"})
    assert ((both.chat_format, both.chat_template_file), len(notes)) == (("chatml", ""), 1)


def path_of(backup: Backup) -> Path:
    return Path(backup.path)


def test_a_manual_backup_is_an_undamaged_copy_that_later_ones_do_not_replace(play: Play, path: Path) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("kept")
        first, second = await s.workbench.settings.back_up(), await s.workbench.settings.back_up()
        assert first.path != second.path
        assert first.size == path_of(first).stat().st_size > 0
        assert rows(path_of(first), "SELECT id FROM sessions") == [(session_id,)]
        data = (await s.workbench.settings.view()).data
        assert data is not None
        assert set(data.backups) == {path_of(first).name, path_of(second).name}
        # no backup is made of a damaged file
        with closing(sqlite3.connect(path)) as conn:
            conn.execute("UPDATE nodes SET text = 'other'")
            conn.commit()
        with pytest.raises(Refusal, match="no backup was made"):
            await s.workbench.settings.back_up()
        assert len(list((path.parent / "backups").iterdir())) == 2

    play(scene)


def test_the_data_is_named_and_verified(play: Play, path: Path) -> None:
    async def scene(s: Scene) -> None:
        await s.asked()
        data = (await s.workbench.settings.view()).data
        assert data is not None
        assert (data.folder, data.backups) == (str(path.parent), [])
        assert data.sessions_bytes > 0
        assert await s.workbench.settings.verify_data() == []
        await asyncio.sleep(0)

    play(scene)
