"""The page of the loaded model, its adapters, and speculation."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from ui.models.wording import FINGERPRINT_SHOWN
from ui.port import EngineState, Guess, ModelFacts, SessionSetup, StatusView
from ui.setup.adapter_rows import AdapterField, AdapterRows
from ui.theme.fonts import interface_font, mono_font
from ui.widgets.controls import LINE_PX, Choice, Page, button, fill, grid, row, words
from ui.widgets.fields import ask_for_file
from ui.widgets.labels import ElidedLabel, Label
from ui.widgets.numbers import count, size

GUESSES = (Guess.OFF, Guess.PROMPT_LOOKUP, Guess.DRAFT)


class ModelPage(Page):
    """Shows `SessionSetup.model`, `adapters` and `guess`."""

    adapter_wanted = Signal(str)  # a folder
    guess_wanted = Signal(object)  # Guess

    def __init__(self) -> None:
        super().__init__()
        self.name = ElidedLabel("", "", interface_font(15))
        self.change_button = button(self.tr("Choose a model…"), "link")
        self.more_button = button(self.tr("More models…"), "plain")
        self.compare_button = button(self.tr("Compare with…"), "link")
        self.state, self.warnings = words(), words()
        self._facts = QWidget()
        self._grid = grid(12, 3, self._facts)
        self._grid.setColumnStretch(1, 1)
        self.facts: dict[str, Label] = {}
        self._captions: dict[str, Label] = {}
        top = row(self.name, 1, self.change_button), row(self.more_button, 1, self.compare_button)
        fill(self.column, *top, self.state, self._facts, self.warnings)
        self.no_adapters, self.no_adapters_there = words(self.tr("none")), words()
        self.adapters, self.adapter_field = AdapterRows(), AdapterField()
        self.add_button = button(self.tr("Add a folder…"))
        self.add_button.clicked.connect(self._choose_folder)
        none = self.no_adapters, self.no_adapters_there
        self.section(self.tr("Adapters"), *none, self.adapters, self.adapter_field, row(self.add_button, 1))
        self.guess = Choice(self.tr("Speculation"), (self.tr("off"), self.tr("prompt lookup"), self.tr("draft model")))
        self.guess.chosen.connect(lambda place: self.guess_wanted.emit(GUESSES[place]))
        self.guess_words = words()
        self._status, self._setup = StatusView(EngineState.NONE), SessionSetup(0)
        self.section(self.tr("Speculation"), row(self.guess, 1), self.guess_words, 1)

    def show_setup(self, setup: SessionSetup) -> None:
        model, self._setup = setup.model, setup
        self.name.setText(model.name if model is not None else self.tr("No model is loaded"))
        self.state.setText(
            "" if model is not None else self.tr("It loads with the next message. Choose another one at any time.")
        )
        self.state.setVisible(model is None)
        self._facts.setVisible(model is not None)
        self.warnings.setVisible(model is not None and bool(model.warnings))
        if model is not None:
            self._show_facts(model)
            self.warnings.setText("\n".join(model.warnings))
        self.adapters.show_stack(setup.adapters)
        self.no_adapters.setVisible(not setup.adapters)
        self.guess.show_choice(GUESSES.index(setup.guess))
        self._show_possible()

    def show_status(self, status: StatusView) -> None:
        self._status = status
        self._show_possible()

    def _show_possible(self) -> None:
        """Enables what the running model supports, and shows why the rest is disabled."""
        model, guess = self._setup.model, self._setup.guess
        no_adapters, no_guesses = self._status.lacking("adapters"), self._status.lacking("speculation")
        self.no_adapters_there.setText(no_adapters)
        self.no_adapters_there.setVisible(bool(no_adapters))
        for part in (self.adapter_field, self.add_button):
            part.setEnabled(not no_adapters)
        has_draft = model is not None and bool(model.draft)
        for part, each, can in zip(self.guess.buttons, GUESSES, (True, True, has_draft), strict=True):
            part.setEnabled(each is Guess.OFF or each is guess or (can and not no_guesses))
        if no_guesses:
            said = no_guesses
        elif model is not None and model.draft:
            said = self.tr("{0} drafts tokens; the answer stays the same").format(model.draft)
        else:
            said = self.tr("May be faster; the answer stays the same. Choose a draft model in the settings.")
        self.guess_words.setText(said)

    def _show_facts(self, model: ModelFacts) -> None:
        shown = {
            self.tr("fingerprint"): model.fingerprint[:FINGERPRINT_SHOWN],
            self.tr("architecture"): model.architecture,
            self.tr("parameters"): self.tr("{0} M").format(count(round(model.parameters / 1e6))) if model.parameters else "",
            self.tr("runs on"): ", ".join(filter(None, (model.backend, model.device, model.dtype))),
            self.tr("context"): self.tr("{0} tokens").format(count(model.context_length)) if model.context_length else "",
            self.tr("KV per token"): size(model.kv_bytes_per_token) if model.kv_bytes_per_token else "",
        }
        for line, (name, value) in enumerate(shown.items()):
            if name not in self.facts:
                caption = self._captions[name] = Label(name, "soft", interface_font(LINE_PX))
                self._grid.addWidget(caption, line, 0)
                mono = name == self.tr("fingerprint")
                self.facts[name] = ElidedLabel("", "", mono_font(12) if mono else interface_font(LINE_PX))
                self._grid.addWidget(self.facts[name], line, 1)
            for part in (self._captions[name], self.facts[name]):
                part.setVisible(bool(value))  # a server says little of its model
            self.facts[name].setText(value)
            self.facts[name].setAccessibleName(f"{name}: {value}")

    def _choose_folder(self) -> None:
        ask_for_file(self.window(), self.tr("Add an adapter"), self.adapter_wanted.emit, folder=True)
