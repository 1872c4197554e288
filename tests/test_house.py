"""Rules of the repository that no linter checks."""

from __future__ import annotations

import ast
import asyncio
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest
from click.testing import CliRunner

from app.cli.group import cli
from app.names import OURS
from app.sample import ensure_sample
from runtime import __version__, available_backends, load, register_backend, unregister_backend
from storage import SessionStore
from tests.pages import PAGES, ROOT
from tests.tiny_models import tiny_path

PATIENCE_SECONDS = 120
HEAVY = ("torch", "mlx", "mlx_lm", "transformers", "PySide6", "qasync", "sqlite3", "sqlite_utils")
# Written in pieces, so that this file does not match its own search.
HOSTS = ("pypi" + ".org", "python" + "hosted", "npm" + "js", "anaconda" + ".org", "arti" + "factory", "extra-index" + "-url")
FOLDERS = ("/wo" + "rk/", "/tm" + "p/", "/ro" + "ot/", "/ho" + "me/", "/Us" + "ers/")


def python(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


def loaded_by(statement: str) -> set[str]:
    """The top-level modules in a fresh interpreter after a statement."""
    done = python("-c", f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def tracked() -> list[Path]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


# ---- our names ----------------------------------------------------------------------------------------------------------


def test_the_packaging_folder_does_not_shadow_pypas_package() -> None:
    assert not (ROOT / "packaging" / "__init__.py").exists()  # it would shadow PyPA's
    found = importlib.util.find_spec("packaging")
    assert found is not None
    assert found.origin is not None
    assert not Path(found.origin).is_relative_to(ROOT / "packaging")


def test_resources_is_a_package() -> None:
    assert (ROOT / "resources" / "__init__.py").is_file()


def test_our_packages_belong_to_our_distribution_alone() -> None:
    owners = importlib.metadata.packages_distributions()
    for name in OURS:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        assert Path(spec.origin).parent == ROOT / name
        assert set(owners.get(name, ["elsewise"])) == {"elsewise"}  # an editable install may list no packages
    assert importlib.metadata.version("elsewise") == importlib.import_module("runtime").__version__


@pytest.mark.parametrize("name", [name for name in OURS if name != "app"])
def test_a_foreign_package_with_one_of_our_names_is_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    start = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; from app.cli import main; main()"
    done = python("-c", start, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"elsewise: the package '{name}' is loaded from {tmp_path / name}")
    assert "environment of its own" in done.stderr


def test_a_stray_package_in_the_current_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "__init__.py").write_text("raise SystemExit('a foreign package ran')")
    done = python("-m", "app", "--version", cwd=tmp_path)  # python -m looks into the current folder first
    assert done.returncode == 1
    assert done.stderr.startswith("elsewise: the package 'runtime' is loaded from")


def test_empty_stray_folders_with_our_names_do_no_harm(tmp_path: Path) -> None:
    for name in OURS:
        (tmp_path / name).mkdir()
    assert python("-m", "app", "--version", cwd=tmp_path).returncode == 0


# ---- modules that an import loads ---------------------------------------------------------------------------------------


def test_importing_runtime_loads_no_engine_no_window_and_no_database() -> None:
    assert loaded_by("import runtime").isdisjoint(HEAVY)


def test_elsewise_is_the_runtime_facade_and_loads_as_little() -> None:
    assert loaded_by("import elsewise, runtime; assert elsewise is runtime; from elsewise import __version__").isdisjoint(HEAVY)
    assert importlib.import_module("elsewise").load is load


def test_importing_storage_loads_no_model_and_no_window() -> None:
    assert loaded_by("import storage").isdisjoint({*HEAVY[:6], "runtime", "ui", "app"})


def test_the_command_line_loads_no_engine() -> None:
    assert loaded_by("import app.cli.group").isdisjoint({*HEAVY[:6], "numpy", "rich", "sqlite_utils"})


def test_importing_error_classes_loads_no_heavy_libraries() -> None:
    light = {"numpy", "msgspec", "psutil", "filelock", "tokenizers", "sqlite_utils"}
    assert loaded_by("from runtime import RuntimeFault; from storage import StoreError").isdisjoint(light)


@pytest.mark.parametrize("package", ["runtime", "storage", "ui"])
def test_the_lazy_names_of_a_facade_equal_its_type_checking_imports(package: str) -> None:
    # given: the imports that only the type checker follows
    tree = ast.parse((ROOT / package / "__init__.py").read_text("utf-8"))
    told = [node for block in tree.body if isinstance(block, ast.If) for node in block.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in told for alias in node.names}
    # then the lazily loaded names are the same, from the same modules
    script = f"import {package} as facade; print(*(name for name in facade.__all__ if name not in vars(facade)))"
    assert set(homes) == set(python("-c", script).stdout.split())
    facade = importlib.import_module(package)
    for name, home in homes.items():
        assert getattr(facade, name) is getattr(importlib.import_module(str(home)), name)
    # and every name can be loaded
    assert set(homes) <= set(facade.__all__) == set(dir(facade))
    for name in facade.__all__:
        assert getattr(facade, name) is not None


def test_the_window_loads_no_engine() -> None:
    assert loaded_by("import app.window").isdisjoint(HEAVY[:4])


EXCUSED = {  # imports in a function that close a cycle between files
    ("runtime.grammar.source", "runtime.grammar.trial"),  # a Grammar runs its own trial
    ("runtime.options.generation", "runtime.options.aliases"),  # `from_mapping` of a class that its reader builds
}


def test_no_files_import_each_other_in_a_cycle() -> None:
    """Imports in functions count; those for the type checker do not."""
    graph = grimp.build_graph(*OURS, "benchmarks", exclude_type_checking_imports=True, cache_dir=None)
    edges = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert {(module, other) for module, other in EXCUSED if other not in edges.get(module, ())} == set(), "excused in vain"
    TopologicalSorter(
        {module: [other for other in others if (module, other) not in EXCUSED] for module, others in edges.items()}
    ).prepare()  # raises CycleError, with the cycle


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {path.parent for path in tracked() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in OURS}
    assert {folder for folder in folders if not (folder / "__init__.py").exists()} == set()  # else the wheel leaves it out


def test_a_public_class_name_means_one_thing() -> None:
    homes = defaultdict[str, list[str]](list)
    for path in tracked():
        module = path.relative_to(ROOT).with_suffix("").as_posix()
        if path.suffix == ".py" and module.startswith((*(f"{package}/" for package in OURS), "benchmarks/")):
            for node in ast.parse(path.read_bytes()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(
                        module.replace("/hf/", "/*/").replace("/mlx/", "/*/")
                    )  # the same part of two engines
    assert {name: places for name, places in homes.items() if len(set(places)) > 1} == {
        "Completion": ["app/serve/schemas", "runtime/records"]  # OpenAI's name of its answer, and ours
    }


# ---- contents of the repository and of the wheel ------------------------------------------------------------------------


def test_no_file_names_a_registry_or_a_folder_of_one_machine() -> None:
    pattern = re.compile("|".join(re.escape(word) for word in (*HOSTS, *FOLDERS)))
    found = []
    for path in tracked():
        data = path.read_bytes()
        if b"\0" in data[:8000]:
            continue
        lines = data.decode(errors="replace").splitlines()
        found += [f"{path.relative_to(ROOT)}:{n}: {line[:120]}" for n, line in enumerate(lines, 1) if pattern.search(line)]
    assert not found, "\n".join(found)


def test_no_file_is_larger_than_a_checkout_should_carry() -> None:
    large = [f"{path.relative_to(ROOT)}: {path.stat().st_size:,}" for path in tracked() if path.stat().st_size > 3 << 20]
    assert not large, large


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    for path in tracked():
        copy = folder / "source" / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    done = python("-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(folder / "source"))
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("tool", ["uv", "pipx"])
def test_a_wheel_that_is_installed_as_a_tool_answers_and_has_the_facade(tool: str, wheel: Path, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"UV_TOOL_DIR": str(tmp_path / "venvs"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    env |= {"PIPX_HOME": str(tmp_path), "PIPX_BIN_DIR": str(tmp_path / "bin")}

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900, check=False)

    uv = Path(sys.executable).with_name("uv")
    pins = tmp_path / "pins.txt"  # without the hashes, which pip would require of the wheel too
    pins.write_text("\n".join(re.findall(r"^[\w.-]+==[^\\\n]+", (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE)))
    if tool == "uv":  # its cache has the packages that make setup fetched
        done = run(uv, "tool", "install", "--python", sys.executable, "--constraints", pins, wheel)
    else:
        done = run(uv, "tool", "run", "pipx", "install", "--python", sys.executable, f"--pip-args=--constraint={pins}", wheel)
    if "error sending request" in done.stderr or "NewConnectionError" in done.stderr:
        pytest.skip("its dependencies are neither in a cache nor to be fetched: no network")
    assert done.returncode == 0, done.stderr
    asked = run(tmp_path / "bin" / "elsewise", "--model", tiny_path("llama"), "ask", "Hi", "--raw", "--max-tokens", "3")
    assert (asked.returncode, "3 tokens, length" in asked.stderr) == (0, True), asked.stderr
    facade = "import elsewise, runtime, importlib.util as u; assert elsewise.load is runtime.load; assert not u.find_spec({!r})"
    for absent in ("tests", "benchmarks", "torch"):
        found = run(tmp_path / "venvs" / "elsewise" / "bin" / "python", "-c", facade.format(absent))
        assert found.returncode == 0, found.stderr


@pytest.mark.slow
def test_the_wheel_holds_exactly_our_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith((".dist-info", ".data"))} == {*OURS, "elsewise.py"}
    data = sorted(name.partition(".data/")[2] for name in names if ".data/" in name)
    docs = [path for path in tracked() if path.suffix in (".md", ".png") and path.is_relative_to(ROOT / "docs")]
    assert data == sorted(f"data/share/elsewise/{path.relative_to(ROOT)}" for path in docs)
    assert {"resources/sample/session.json", "app/__main__.py", "runtime/transport/__main__.py"} <= set(names)
    assert any(name.startswith("resources/icons/") for name in names)
    assert any(name.startswith("resources/fonts/") for name in names)


# ---- statements of the README and of make -------------------------------------------------------------------------------


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    done = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    listed = {line.split()[1]: line.split(maxsplit=2)[2] for line in done.stdout.splitlines()}
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert targets is not None
    assert listed.keys() == set(targets[1].split())
    # and the first target, which make runs by default, is `run`
    assert re.search(r"^([a-z-]+):", makefile, re.MULTILINE)[1] == "run"  # type: ignore[index]  # a target was found above


def test_the_texts_name_targets_and_commands_that_exist() -> None:
    text = "".join((*PAGES.values(), *((ROOT / file).read_text("utf-8") for file in ("SECURITY.md", "CHANGELOG.md"))))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
    options: defaultdict[str, set[str]] = defaultdict(set)  # by command, with those of all its lines
    named = r"\belsewise ((?:ask|bench|chat|doctor|embed|score|serve|models \w+|sessions \w+))\b([^`|;\n]*)"
    for command, rest in re.findall(named, text):
        options[command].update(re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest))
    for command, wanted in options.items():
        done = CliRunner().invoke(cli, [*command.split(), "--help"])
        assert done.exit_code == 0, f"{command}: {done.output}"
        assert wanted - set(re.findall(r"--[a-z][a-z-]*", done.output)) == set(), command


@pytest.mark.parametrize(
    ("page", "heading"), [("README.md", "## The first five minutes\n"), ("docs/tour.md", "# A tour of the window\n")]
)
def test_the_steps_of_a_tour_are_numbered_and_each_is_there_once(page: str, heading: str) -> None:
    steps = re.findall(r"^(\d+)\. (.*)$", PAGES[page].partition(heading)[2].partition("\n## ")[0], re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    assert len({words for _, words in steps}) == len(steps) >= 5


def test_the_readme_is_one_page_and_architecture_one_screen() -> None:
    assert len(PAGES["README.md"].encode()) <= 8 << 10
    assert len((ROOT / "ARCHITECTURE.md").read_text("utf-8").splitlines()) <= 70


def test_every_entry_of_the_changelog_is_one_line_under_a_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8").partition(f"\n## [{__version__}]")[2]
    assert changes
    assert [line for line in changes.splitlines()[1:] if line and not line.startswith(("- ", "#"))] == []


def test_every_page_is_reached_from_the_readme_and_every_path_in_it_exists() -> None:
    linked = {"README.md"}
    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            found = ((ROOT / page).parent / target).resolve()
            assert found.exists(), f"{page}: {target}"
            linked.add(found.relative_to(ROOT).as_posix())
    for page, text in (*PAGES.items(), ("ARCHITECTURE.md", (ROOT / "ARCHITECTURE.md").read_text("utf-8"))):
        for path in re.findall(r"`((?:app|runtime|storage|tests|ui)/[\w/.]*)`", text):
            assert (ROOT / path).exists(), f"{page}: {path}"
    assert set(PAGES) <= linked


def test_help_of_the_screenshot_tool_draws_no_pictures(tmp_path: Path) -> None:
    as_module = "runpy.run_module('tests.tools.screenshots', run_name='__main__')"
    done = python("-c", f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); {as_module}", "--help", cwd=tmp_path)
    assert "--all" in done.stdout
    assert not list(tmp_path.iterdir())


def test_every_term_of_the_glossary_occurs_in_the_code() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", PAGES["docs/glossary.md"], re.MULTILINE)
    assert len(terms) == len(set(terms)) <= 40
    assert terms == sorted(terms, key=str.casefold)
    code = "\n".join(
        path.read_text("utf-8") for package in ("app", "runtime", "storage", "ui") for path in (ROOT / package).rglob("*.py")
    )
    missing = [term for term in terms if not re.search(rf"\b{re.sub('[ -]', '[ _-]?', term)}", code, re.IGNORECASE)]
    assert not missing


# ---- backend registration and the sample session ------------------------------------------------------------------------


def test_a_third_backend_can_be_registered_and_unregistered() -> None:
    register_backend("thirds", "runtime.backends.mock:load")
    try:
        assert available_backends()["thirds"] is True
    finally:
        unregister_backend("thirds")
    assert "thirds" not in available_backends()
    with pytest.raises(ValueError, match="unknown backend 'thirds'"):
        load("x", backend="thirds")


def test_the_sample_session_is_intact_branched_and_scored(tmp_path: Path) -> None:
    store = SessionStore.open(tmp_path / "sessions.db")

    async def check() -> None:
        sample = await ensure_sample(store)
        assert await store.verify() == []
        tree = await store.load_session(sample)
        assert tree.session.is_sample
        assert tree.session.branches > 1
        assert {node.role for node in tree.nodes} == {"system", "user", "assistant"}
        tokens = await store.load_tokens([node.id for node in tree.nodes])
        scored = [chunk.columns["rank"] for chunks in tokens.values() for chunk in chunks]
        assert sum(int((ranks == 0).sum()) for ranks in scored) == 1  # the very first token

    try:
        asyncio.run(check())
    finally:
        store.close_sync()
