"""Settings of the app and of single models: read field by field, changed one at a time, passed to the engine."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

import runtime  # its names are imported at their first use: the window opens without them
from app.paths import DataFolder
from app.supervisor import Supervisor
from app.workbench.models.views import backend_choices
from app.workbench.refusals import intact, stored
from app.workbench.setup.presets import OWN, Presets
from resources.files import read_regular
from runtime import EngineDiedError, LoadOptions, RuntimeFault
from storage import DamageRow, SessionStore, StoreDamagedError, StoreError, StoreFullError
from ui import SETTING_RULES, AppSettings, Backup, DataFacts, LoadChoice, Refusal, SettingsView, in_window, translate

LOADS_SETTING = "models"
_AS_SET = LoadChoice()


@dataclass(eq=False, repr=False)
class LoadChoices:
    """The load choices of single models, by name. All members belong to the window's loop."""

    _store: SessionStore
    _held: dict[str, LoadChoice] = field(default_factory=dict, init=False)
    _keeping: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)  # held while a change is saved

    async def load(self) -> None:
        """Reads them; invalid ones are left out."""
        try:
            held = await self._store.setting(LOADS_SETTING)
        except StoreError:  # the settings, in the same file, report it
            held = None
        found = held.items() if isinstance(held, Mapping) else ()
        choices = {str(name): _read_choice(value) for name, value in found}
        self._held = {name: choice for name, choice in choices.items() if choice != _AS_SET}

    def of(self, name: str) -> LoadChoice:
        """A model's own load choice, or the default one."""
        return self._held.get(name, _AS_SET)

    async def keep(self, name: str, choice: LoadChoice) -> None:
        """Saves a model's load choice; the default one is deleted.

        Raises:
            Refusal: It is not valid, or cannot be saved.
        """
        try:
            LoadOptions.from_mapping(options_of(choice))
        except (RuntimeFault, TypeError) as fault:
            raise Refusal(str(fault)) from fault
        async with self._keeping:
            others = {each: held for each, held in self._held.items() if each != name}
            wanted = others if choice == _AS_SET else {**others, name: choice}
            if wanted != self._held:
                saved = {each: options_of(held) for each, held in wanted.items()}
                await stored(self._store.set_setting(LOADS_SETTING, saved))
                self._held = wanted


def options_of(choice: LoadChoice) -> dict[str, Any]:
    """A choice by the names of `LoadOptions`."""
    found: dict[str, Any] = {} if choice.context is None else {"context_length": choice.context}
    return found if choice.weights == "auto" else {**found, "weights": choice.weights}


def _read_choice(value: object) -> LoadChoice:
    known = {name: value[name] for name in ("context_length", "weights") if name in value} if isinstance(value, Mapping) else {}
    try:
        made = LoadOptions.from_mapping(known)
    except (RuntimeFault, TypeError):
        return _AS_SET
    return LoadChoice(made.context_length, made.weights)


log = logging.getLogger(__name__)
HINTS = frozenset({"tokens", "models"})  # explanations that are shown until dismissed
HINTS_SETTING = "hints"  # the name of the setting that lists the dismissed ones
SETTING = "settings"
BUDGET = 4 << 30  # bytes of the block file, for all models together
DEFAULTS = AppSettings()
MOST_TEMPLATE = 1 << 20  # bytes; the engine may accept less


def blocks_in(data: DataFolder, budget: int = BUDGET) -> dict[str, Any]:
    """`LoadOptions.blocks` of a data folder, for the holder of its lock."""
    return {"factory": "storage:open_blocks", "path": str(data.blocks), "budget": budget}


async def disk_budget(store: SessionStore) -> int:
    """The byte limit of the block file, which drops blocks when it is opened with less."""
    values, _ = read_settings(await intact(store.setting(SETTING)))
    return values.disk_bytes or BUDGET


@dataclass(eq=False, repr=False)
class Settings:
    """Settings of the whole app (`ui.port.SettingsCommands`). All members belong to the window's loop."""

    _store: SessionStore
    _supervisor: Supervisor  # loads the model with them
    _presets: Presets
    values: AppSettings = field(default_factory=AppSettings, init=False)
    _notes: list[str] = field(default_factory=list, init=False)
    _loaded: bool = field(default=False, init=False)
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)  # held until a change is saved
    # held while a hint is checked and dismissed
    _dismissing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def __post_init__(self) -> None:
        self.own = LoadChoices(self._store)
        self._first_backend = self._supervisor.backend  # of the command line
        self._blocks: Mapping[str, Any] | None = self._supervisor.options.get("blocks")

    async def load(self) -> AppSettings:
        """Reads them once; invalid values fall back to their defaults, with a note."""
        if not self._loaded:
            await self._presets.load()
            await self.own.load()
            try:
                held = await self._store.setting(SETTING)
            except StoreError as fault:
                words = translate("Workbench", "the settings cannot be read: {0}; the defaults are used")
                held, self._notes = None, [words.format(in_window(str(fault)))]
            self.values, notes = read_settings(held)
            self._notes += notes
            self._loaded = True
            self.pass_on()
        return self.values

    async def view(self) -> SettingsView:
        await self.load()
        models = [entry.name for entry in await asyncio.to_thread(lambda: runtime.list_models())]
        backends = [choice.name for choice in backend_choices(self._supervisor.backend) if not choice.problem]
        return SettingsView(
            values=self.values,
            needs_reload=self._supervisor.needs_reload,
            choices={
                "backend": ["auto", *backends],
                "chat_format": ["auto", "none", *runtime.CHAT_FORMATS],
                "draft_model": ["", *models],
                "preset": ["", *(name for name in self._presets.names if name != OWN)],  # "" means OWN
            },
            notes=list(self._notes),
            data=await asyncio.to_thread(self._facts),
        )

    async def change(self, name: str, value: object) -> SettingsView:
        await self.set(name, value)
        return await self.view()

    async def set(self, name: str, value: object) -> None:
        """Checks and saves one setting, and applies it at once if possible."""
        await self.load()
        if name not in SETTING_RULES:
            raise Refusal(translate("Workbench", "there is no setting {0!r:.40}").format(name))
        problem = problem_of(name, value)
        if problem:
            raise Refusal(problem)
        if name == "preset":
            self._presets.check(str(value))
        if name == "chat_template_file" and value:
            await asyncio.to_thread(_read_template, Path(str(value)))
        if name == "kv_cache_bytes":
            await self._set_budget(value)
        other = SETTING_RULES[name].resets
        changes = {name: value} | ({other: getattr(DEFAULTS, other)} if other else {})
        async with self._changing:
            values = replace(self.values, **changes)
            await stored(self._store.set_setting(SETTING, asdict(values)))
            self.values, self._notes = values, []
        self.pass_on()

    def _facts(self) -> DataFacts:
        path = self._store.path
        backups = [file for file in (path.parent / "backups").glob("*") if file.is_file() and file.suffix != ".partial"]
        backups.sort(key=lambda file: file.stat().st_mtime, reverse=True)
        file = path.resolve()  # the target of a link: the write-ahead log is beside it
        size = sum(each.stat().st_size for each in (file, file.with_name(f"{file.name}-wal")) if each.exists())
        return DataFacts(str(path.parent), size, [file.name for file in backups])

    async def _set_budget(self, value: object) -> None:
        """Applies a KV budget to the running model; None (the engine's choice) applies at the next load."""
        model = self._supervisor.running
        if model is None or not isinstance(value, int) or not model.has("kv"):
            return
        try:
            await model.set_kv_budget_async(value)
        except EngineDiedError:
            await self._supervisor.died(model)
        except RuntimeFault as fault:
            raise Refusal(str(fault)) from fault

    async def hints(self) -> frozenset[str]:
        held = await stored(intact(self._store.setting(HINTS_SETTING)))
        return HINTS - {name for name in held if isinstance(name, str)} if isinstance(held, list) else HINTS

    async def dismiss_hint(self, name: str) -> bool:
        async with self._dismissing:  # several windows may ask at once
            left = await self.hints()
            if name in left:
                await stored(self._store.set_setting(HINTS_SETTING, sorted((HINTS - left) | {name})))
            return name in left

    async def back_up(self) -> Backup:
        made = await stored(self._store.back_up_now())
        return Backup(str(made), await asyncio.to_thread(lambda: made.stat().st_size))

    async def verify_data(self) -> Sequence[str]:
        """Checks every stored row and sets the damaged ones aside; returns a line for each."""
        damage = await stored(self._store.verify())
        if damage:
            try:
                await self._store.set_aside_damage()
            except StoreError as fault:  # logged only: the damage is reported anyway
                log.warning("what is damaged could not be set aside: %s", fault)
        return [damage_text(row) for row in damage]

    # ---- for the engine ----

    def pass_on(self) -> None:
        """Passes the settings to the next load of the engine, and to sessions without a preset."""
        self._presets.chosen = self.values.preset
        options = self.options_for(self._supervisor.source)
        backend = self.values.backend if self.values.backend != "auto" else self._first_backend
        self._supervisor.prepare(backend=backend, options=options, now=("kv_cache_bytes",))

    def options_for(self, source: str, choice: LoadChoice | None = None) -> dict[str, Any]:
        """The load options of a model: the settings, overridden by its own choice.

        Args:
            source: The model.
            choice: Replaces the model's saved choice.
        """
        values = self.values
        options = {name: getattr(values, name) for name, rule in SETTING_RULES.items() if rule.option}
        options = {name: None if value == getattr(DEFAULTS, name) else value for name, value in options.items()}
        if self._blocks is not None:
            options["blocks"] = {**self._blocks, "budget": values.disk_bytes or self._blocks["budget"]}
        own = options_of(self.own.of(source) if choice is None else choice)
        for_all = (name for name, rule in SETTING_RULES.items() if rule.soft and name not in own)  # set for all models
        soft = [name for name in for_all if options[name] is not None]
        return options | own | {"soft_options": soft or None}


def read_settings(held: object) -> tuple[AppSettings, list[str]]:
    """The valid stored settings, and a line about each invalid one."""
    if held is None:
        return AppSettings(), []
    if not isinstance(held, Mapping):
        return AppSettings(), [translate("Workbench", "the settings cannot be read; the defaults are used")]
    taken: dict[str, Any] = {}
    notes = []
    for name, rule in SETTING_RULES.items():
        if name not in held or (rule.option and held[name] == "auto"):  # "auto": what the engine takes by itself
            continue
        problem = problem_of(name, held[name])
        if problem:
            notes.append(translate("Workbench", "{0}; the default is used").format(problem))
        else:
            taken[name] = held[name]
    if taken.get("chat_template_file") and taken.get("chat_format", "auto") != "auto":
        words = translate("Workbench", "a template and the format {0} were both set; the format holds")
        notes.append(words.format(taken["chat_format"]))
        del taken["chat_template_file"]
    return AppSettings(**taken), notes


def _read_template(path: Path) -> None:
    """Refuses a file that cannot be a template; the engine compiles it in its sandbox when it loads the model."""
    try:
        data = read_regular(path, MOST_TEMPLATE)
    except OSError as fault:
        if fault.errno == errno.EFBIG:
            words = translate("Workbench", "{0} is larger than {1:,} bytes; a chat template is a short text")
            raise Refusal(words.format(path.name, MOST_TEMPLATE)) from fault
        raise Refusal(translate("Workbench", "{0} cannot be read: {1}").format(path.name, fault.strerror or fault)) from fault
    try:
        data.decode()
    except UnicodeDecodeError as fault:
        raise Refusal(
            translate("Workbench", "{0} is not UTF-8 text: byte {1:,} is {2:#04x}").format(
                path.name, fault.start, data[fault.start]
            )
        ) from None


def problem_of(name: str, value: object) -> str:
    """What is wrong with the value of a setting; "" if it is valid."""
    if name == "chat_template_file" and not value:
        return "" if value == "" else translate("Workbench", "the chat template is a file, not {0!r:.60}").format(value)
    rule = SETTING_RULES[name]
    if rule.named:
        named = isinstance(value, str) and len(value) <= 500
        return "" if named else translate("Workbench", "{0} is a name, not {1!r:.60}").format(name, value)
    known: tuple[object, ...]
    if rule.least:
        whole = isinstance(value, int) and not isinstance(value, bool)
        within = whole and rule.least <= value and (not rule.most or value <= rule.most)  # type: ignore[operator]  # an int
        fits, known = within or (value is None and getattr(DEFAULTS, name) is None), (rule.least, rule.most)
    else:
        fits, known = value in rule.values or not rule.refusal, (", ".join(rule.values),)
    if not fits:
        return translate("Workbench", rule.refusal).format(*known, value)
    if not rule.option:
        return ""
    try:
        LoadOptions.from_mapping({name: value})
    except (RuntimeFault, TypeError, ValueError) as fault:
        return str(fault)
    return ""


def damage_text(row: DamageRow) -> str:
    """A damaged row in words, with its session and turn."""
    place = [repr(row.title)] if row.title else []
    if row.turn is not None:
        place.append(f"turn {row.turn}")
    return ": ".join([", ".join(place), row.detail] if place else [row.detail])


async def back_up(store: SessionStore) -> None:
    """Makes today's backup if there is none, after damaged rows were set aside; a failure is logged."""
    try:
        try:
            await store.back_up_daily()
        except StoreDamagedError as fault:
            log.warning("damaged rows are set aside: %s", fault)
            await store.set_aside_damage()
            await store.back_up_daily()
    except StoreFullError as fault:
        log.warning("%s", fault)
    except StoreError as fault:  # the next start tries again
        log.warning("the sessions were not backed up: %s", fault)
