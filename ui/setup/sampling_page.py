"""The page of sampling: presets and generation options of a session."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Signal
from PySide6.QtWidgets import QSizePolicy

from ui.port import SessionSetup, translate
from ui.setup.option_rows import OptionRows
from ui.widgets.controls import Combo, Page, button, line_edit, row, words
from ui.widgets.visible import one_line

DEFAULT = ""  # stands for the preset of the app's settings


class SamplingPage(Page):
    """Shows `SessionSetup.options` and `preset`."""

    preset_wanted = Signal(str)
    save_wanted = Signal(str)
    delete_wanted = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.presets = Combo(self.tr("Preset"))
        self.presets.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.presets.activated.connect(lambda place: self.preset_wanted.emit(self.presets.itemData(place)))
        self.delete_button = button(self.tr("Delete"))
        self.delete_button.clicked.connect(lambda: self.delete_wanted.emit(self.presets.currentData()))
        self.preset_name = line_edit(self.tr("Name of a preset to save"), self.tr("save as…"))
        self.preset_name.returnPressed.connect(self._save)
        self.save_button = button(self.tr("Save"))
        self.save_button.clicked.connect(self._save)
        self.preset_name.textChanged.connect(lambda text: self.save_button.setEnabled(bool(text.strip())))
        self.save_button.setEnabled(False)
        own = row(self.preset_name, self.save_button)
        self.section(self.tr("Preset"), row(self.presets, self.delete_button), own)
        self.options = OptionRows()
        self.section(self.tr("Sampling"), self.options, words(self.tr("Changes apply from the next answer"), "faint"), 1)

    def show_setup(self, setup: SessionSetup) -> None:
        self._show_presets(setup)
        self.options.show_options(setup.options)

    def _show_presets(self, setup: SessionSetup) -> None:
        with QSignalBlocker(self.presets):
            self.presets.clear()
            self.presets.addItem(one_line(self.tr("default ({0})").format(_shown(setup.default_preset, setup))), DEFAULT)
            for name in setup.presets:
                self.presets.addItem(one_line(_shown(name, setup)), name)
            self.presets.setCurrentIndex(max(self.presets.findData(setup.preset), 0))
        self.delete_button.setEnabled(setup.presets.get(setup.preset, False))

    def _save(self) -> None:
        name = self.preset_name.text().strip()
        if name:
            self.preset_name.clear()
            self.save_wanted.emit(name)


def _shown(preset: str, setup: SessionSetup) -> str:
    """The name of a preset; those that come with Elsewise are translated."""
    is_saved = setup.presets.get(preset, False)
    return preset if is_saved else translate("Presets", preset)
