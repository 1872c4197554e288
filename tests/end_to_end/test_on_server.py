"""The whole window with a model on a server with few features: each disabled control has the reason beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLabel, QWidget

from app.workbench import AppWorkbench
from runtime import Connection, load
from runtime.remote.saved import keep_connection
from tests.end_to_end.driving import at_rest, generated, last, say, until
from tests.end_to_end.test_window import OpenApp, new_session
from tests.runtime.remote.servers import Server, serving, tokenizer_folder
from tests.runtime.remote.test_dialects import TextServer
from ui import MainWindow
from ui.controller.setup import FORM, MODEL, SAMPLING
from ui.inspector.cache import CacheTab
from ui.inspector.depth import DepthTab
from ui.settings.settings_window import SERVER

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server with five alternatives by text: no token ids, no scores of given texts, and so no ranks."""
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "models"))
    with load("mock", backend="mock") as model, serving(model, TextServer) as made:
        keep_connection(Connection("far", made.base_url, tokenizer=str(tokenizer_folder(tmp_path / "tokenizer"))))
        yield made


@pytest.mark.slow
def test_each_control_that_a_server_does_not_support_is_disabled_with_the_reason(open_app: OpenApp, server: Server) -> None:
    host = server.base_url.removeprefix("http://")
    name = f"tiny at {host}"

    def refused(sentence: QLabel, *controls: QWidget) -> str:
        """The text beside disabled controls."""
        assert sentence.isVisible()
        assert not any(control.isEnabled() for control in controls)
        return sentence.text()

    async def scene(window: MainWindow, workbench: AppWorkbench) -> None:
        await workbench.settings.change("developer", "on")
        window.apply((await workbench.settings.view()).values)
        await new_session(window)
        assert window.controller.shown is not None
        await workbench.setup.set_option(window.controller.shown.session_id, "max_tokens", 8)
        say(window, "Hi")  # drawn by the preset without the settings that the server does not have
        await until(lambda: window.controller.running)
        await at_rest(window)
        assert workbench.status.model == name
        stats = last(window).stats
        assert stats is not None
        assert stats.logprob is None  # values that the server does not return are not shown as numbers
        assert window.parts.composer.meter.context.text() == ""
        assert "min_p" not in next(body for path, _, body in reversed(server.seen) if path == "/v1/completions")

        # at a token: no branch, no beams, and tokens without numbers cannot be scored
        inspector, turn = window.parts.inspector, last(window)
        window.parts.show_inspector(True)
        window.presenter.pin(turn.node_id, generated(turn)[0])
        await at_rest(window)
        token = inspector.token
        assert not any(bar.isVisible() for bar in token.alternatives.buttons)
        sentence = refused(token.lacking, token.beam_rows)
        assert sentence == f"{name} returns no token ids, so a branch cannot start at a token."
        asked = next(turn for turn in window.controller.shown.view.turns if turn.role == "user")
        window.presenter.pin(asked.node_id, len(asked.run) - 1)
        await at_rest(window)
        assert refused(token.unscored, token.score_button).endswith(f"{name} does not score texts.")
        assert not window.acts.score.isEnabled()
        assert not window.acts.beams.isEnabled()
        assert window.acts.similar.statusTip() == f"{name} makes no embeddings, which are needed to compare turns."

        # its layers, and its cache
        inspector.show_page(inspector.page(DepthTab))
        await at_rest(window)
        assert refused(inspector.page(DepthTab).note) == f"{name} is on a server, which does not show its layers."
        inspector.show_page(inspector.page(CacheTab))
        cache = inspector.page(CacheTab)
        sentence = refused(cache.lacking, cache.keep_button, cache.clear_button, cache.check_button)
        assert sentence == f"The KV of {name} is on its server: it cannot be pinned, cleared or checked from here."
        assert not window.acts.clear_cache.isEnabled()

        # the settings of a session
        window.acts.setup.trigger()
        popover = window.popover
        await until(lambda: popover.model.name.text() == name)
        page = popover.model
        said = [name for name, fact in page.facts.items() if fact.isVisible()]
        assert said == ["fingerprint", "runs on"]
        assert popover.tabs[MODEL].isChecked()
        assert "takes no adapters from here" in refused(page.no_adapters_there, page.add_button, page.adapter_field.get_button)
        sentence = refused(page.guess_words, *page.guess.buttons[1:])
        assert sentence == f"The server of {name} decides about speculation."
        QTest.mouseClick(popover.tabs[SAMPLING], LEFT)
        options = popover.sampling.options
        assert options.fields["temperature"].isEnabled()
        assert options.sliders["temperature"].isEnabled()
        for setting in ("min_p", "xtc_probability", "dry_multiplier"):
            assert not options.fields[setting].isEnabled()
            assert not options.sliders[setting].isEnabled()
        sentence = refused(options.lacking)
        assert sentence.startswith(f"{name} has no ")
        assert all(words in sentence for words in ("XTC", "DRY", "min-p"))
        QTest.mouseClick(popover.tabs[FORM], LEFT)
        sentence = refused(popover.form.lacking, *popover.form.kinds.buttons[1:])
        assert sentence == f"{name} enforces no JSON schema, regex, Lark."
        popover.close_again()

        # and it cannot be served to other programs
        window.acts.settings.trigger()
        settings = window.settings
        await until(settings.isVisible)
        settings.show_page(SERVER)
        sentence = refused(settings.server.address, settings.server.switch)
        assert sentence == f"{name} is on a server: give other programs that server’s address."
        settings.close()

    open_app("far", "auto", scene)
