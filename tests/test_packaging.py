"""The steps of `make package` and the workflows, without a bundle: the macOS script with stand-ins, the man page, the pins."""

from __future__ import annotations

import base64
import fnmatch
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.cli.group import COMMANDS
from app.doctor.run import PARTS
from runtime import __version__
from tests.pages import ROOT

IDENTITY = "Developer ID Application: Example (TEAM123456)"
MACH_O, FAT = bytes.fromhex("cffaedfe") + bytes(60), bytes.fromhex("cafebabe") + bytes(60)
SYSTEM = ("sh", "cp", "dirname", "find", "ln", "mkdir", "od", "rm", "sort", "tr", "wc")
# Each logs its name and arguments, one call a line, and ends with 7 where FAILS is a pattern of them; xcrun and hdiutil also
# refuse what Apple's would.
STAND_INS = {
    "codesign": 'case "$*" in *--sign*|--verify*) ;; *) exit 2;; esac\nfor last; do :; done\n[ -e "$last" ] || exit 3',
    "xcrun": 'case "$1 $2" in "notarytool submit") [ -f "$3" ] && echo "  status: ${APPLE:-Accepted}" ;;'
    ' "stapler staple") [ -d "$3" ] ;; *) exit 2 ;; esac',
    "hdiutil": 'for last; do :; done\n[ "$1" = create ] || exit 2\n: > "$last"',
    "ditto": 'for last; do :; done\n: > "$last"',
    "iconutil": "exit 0",
    "python": 'case "$*" in *package.py) mkdir -p dist/Elsewise.app ;; *) echo 1.2.3 ;; esac',
}


class Mac:
    """A checkout with a bundle in it, and Apple's tools as stand-ins."""

    def __init__(self, root: Path) -> None:
        self.root, self.log, self.app = root, root / "log", root / "dist" / "Elsewise.app"
        shutil.copytree(ROOT / "packaging", root / "packaging", ignore=shutil.ignore_patterns("__pycache__"))
        self.tools = root / "tools"
        self.tools.mkdir()
        for name in SYSTEM:  # only these: a Mac has the real versions of the tools below
            (self.tools / name).symlink_to(str(shutil.which(name)))
        for name, body in STAND_INS.items():
            self.write(self.tools / name, body)

    def write(self, tool: Path, body: str) -> None:
        call = f"{tool.name} $*"
        fails = f'case "{call}" in ${{FAILS:-}}) exit 7 ;; esac'
        tool.write_text(f'#!/bin/sh\necho "{call}" >> "{self.log}"\n{fails}\n{body}\n', "utf-8")
        tool.chmod(0o755)

    def make_app(self) -> None:
        files = {
            "MacOS/elsewise": b"",
            "Frameworks/Python": MACH_O,
            "Frameworks/libfat.dylib": FAT,
            "Frameworks/QtCore.framework/Versions/A/QtCore": MACH_O,
            "Resources/mlx/lib/libmlx.dylib": MACH_O,
            "Resources/mlx/lib/mlx.metallib": b"MTLB",
            "Resources/mlx/__pycache__/utils.cpython-311.pyc": b"byte code",
            "Resources/notes.txt": b"no code",
        }
        for name, data in files.items():
            path = self.app / "Contents" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self.write(self.app / "Contents/MacOS/elsewise", 'echo "ran $*"')

    def run(self, *arguments: str, without: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        if without:
            (self.tools / without).unlink()
        env = {"PATH": str(self.tools), "PYTHON": "python", **variables}
        script = ["/bin/sh", str(self.root / "packaging" / "macos.sh"), *arguments]
        return subprocess.run(script, env=env, capture_output=True, text=True, timeout=60, check=False)

    def calls(self, tool: str) -> list[str]:
        lines = self.log.read_text("utf-8").splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith(f"{tool} ")]


@pytest.fixture
def mac(tmp_path: Path) -> Mac:
    return Mac(tmp_path)


def test_libraries_are_signed_before_the_bundle_with_a_hardened_runtime(mac: Mac) -> None:
    mac.make_app()
    done = mac.run("sign", ELSEWISE_SIGN_IDENTITY=IDENTITY)
    assert done.returncode == 0, done.stderr
    *inner, whole, verified = mac.calls("codesign")
    # then every library is signed once, files without code are not, and a framework is signed after its library
    assert [line.rpartition("/")[2] for line in inner] == [
        "Python",
        "QtCore",
        "libfat.dylib",
        "libmlx.dylib",
        "QtCore.framework",
    ]
    assert all(f"--force --options runtime --timestamp --sign {IDENTITY}" in line for line in inner)
    # and the bundle last, with the entitlements, which its libraries do not get
    assert whole.endswith(f"--timestamp --entitlements packaging/entitlements.plist --sign {IDENTITY} dist/Elsewise.app")
    assert verified == "codesign --verify --deep --strict dist/Elsewise.app"


def test_a_signature_for_this_machine_has_no_timestamp_and_is_not_notarised(mac: Mac) -> None:
    mac.make_app()
    assert mac.run("sign", ELSEWISE_SIGN_IDENTITY="-").returncode == 0
    assert all("--timestamp=none" in line and "runtime" not in line for line in mac.calls("codesign")[:-1])
    refused = mac.run("notarise", ELSEWISE_SIGN_IDENTITY="-", ELSEWISE_NOTARY_PROFILE="profile")
    assert refused.returncode == 1
    assert "cannot be notarised" in refused.stderr


def test_notarising_stapling_and_the_image(mac: Mac) -> None:
    mac.make_app()
    for step in ("notarise", "staple", "dmg"):
        done = mac.run(step, ELSEWISE_SIGN_IDENTITY=IDENTITY, ELSEWISE_NOTARY_PROFILE="profile")
        assert done.returncode == 0, done.stderr
    assert mac.calls("ditto") == ["ditto -c -k --keepParent dist/Elsewise.app build/Elsewise.zip"]
    assert mac.calls("xcrun") == [
        "xcrun notarytool submit build/Elsewise.zip --keychain-profile profile --wait",
        "xcrun stapler staple dist/Elsewise.app",
    ]
    image = "dist/Elsewise-1.2.3-arm64.dmg"
    assert mac.calls("hdiutil") == [f"hdiutil create -volname Elsewise -srcfolder build/dmg -fs HFS+ -format UDZO -ov {image}"]
    assert mac.calls("codesign") == [f"codesign --timestamp --sign {IDENTITY} {image}"]
    assert (mac.root / "build/dmg/Applications").readlink() == Path("/Applications")
    assert done.stdout.strip() == image


def test_notarisation_fails_for_an_app_that_apple_refuses(mac: Mac) -> None:
    mac.make_app()
    refused = mac.run("notarise", ELSEWISE_SIGN_IDENTITY=IDENTITY, ELSEWISE_NOTARY_PROFILE="profile", APPLE="Invalid")
    assert (refused.returncode, "status: Invalid" in refused.stdout) == (1, True)
    assert "did not accept the app; its reasons: xcrun notarytool log ID --keychain-profile profile" in refused.stderr


def test_all_steps_in_order(mac: Mac) -> None:
    mac.make_app()
    done = mac.run("all", ELSEWISE_SIGN_IDENTITY=IDENTITY, ELSEWISE_NOTARY_PROFILE="profile")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^-- (\w+)$", done.stdout, re.MULTILINE) == ["build", "sign", "verify", "notarise", "staple", "dmg"]
    assert "ran --version" in done.stdout


def test_all_steps_for_this_machine_alone_skip_notarising_and_stapling(mac: Mac) -> None:
    mac.make_app()
    done = mac.run("all", ELSEWISE_SIGN_IDENTITY="-")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("left out: the bundle is signed for this machine alone") == 2
    assert not mac.calls("xcrun")
    assert len(mac.calls("hdiutil")) == 1
    assert not [line for line in mac.calls("codesign") if ".dmg" in line]


@pytest.mark.parametrize(
    ("step", "fails"),
    [
        ("build", "python*package.py"),
        ("sign", "codesign *--sign*/libmlx.dylib"),
        ("sign", "codesign --verify*"),
        ("verify", "elsewise --version"),
        ("verify", "elsewise doctor"),
        ("notarise", "ditto *"),
        ("notarise", "xcrun notarytool *"),
        ("staple", "xcrun stapler *"),
        ("dmg", "hdiutil *"),
        ("dmg", "codesign *.dmg"),
    ],
)
def test_a_failing_tool_ends_its_step_and_the_run(mac: Mac, step: str, fails: str) -> None:
    mac.make_app()
    done = mac.run("all", ELSEWISE_SIGN_IDENTITY=IDENTITY, ELSEWISE_NOTARY_PROFILE="profile", FAILS=fails)
    assert done.returncode == 7
    assert re.findall(r"^-- (\w+)$", done.stdout, re.MULTILINE)[-1] == step
    assert fnmatch.fnmatchcase(mac.log.read_text("utf-8").splitlines()[-1], fails)


@pytest.mark.parametrize("identity", [{}, {"ELSEWISE_SIGN_IDENTITY": ""}, {"ELSEWISE_SIGN_IDENTITY": "-"}])
def test_without_a_certificate_the_image_is_made_but_not_signed(mac: Mac, identity: dict[str, str]) -> None:
    mac.make_app()
    done = mac.run("dmg", without="codesign", **identity)
    assert (done.returncode, done.stdout.strip()) == (0, "dist/Elsewise-1.2.3-arm64.dmg")
    # and with one it is not made where it could not be signed
    shutil.rmtree(mac.root / "build")
    refused = mac.run("dmg", ELSEWISE_SIGN_IDENTITY=IDENTITY)
    assert (refused.returncode, "dmg: the tool 'codesign' is missing" in refused.stderr) == (1, True)
    assert len(mac.calls("hdiutil")) == 1


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("Resources/libmlx.dylib", "not exactly one libmlx"),
        ("Resources/torch/lib/libtorch_cpu.dylib", "torch is in the bundle"),
    ],
)
def test_a_bundle_with_forbidden_files_is_refused(mac: Mac, file: str, reason: str) -> None:
    mac.make_app()
    path = mac.app / "Contents" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(MACH_O)
    done = mac.run("verify")
    assert done.returncode == 1
    assert reason in done.stderr


def test_a_bundle_without_byte_code_is_refused(mac: Mac) -> None:
    mac.make_app()
    shutil.rmtree(mac.app / "Contents/Resources/mlx/__pycache__")
    assert "no byte code is in the bundle" in mac.run("verify").stderr


def test_a_metallib_elsewhere_than_beside_its_library_is_refused(mac: Mac) -> None:
    mac.make_app()
    (mac.app / "Contents/Resources/mlx/lib/mlx.metallib").rename(mac.app / "Contents/mlx.metallib")
    assert "mlx.metallib is not beside" in mac.run("verify").stderr


@pytest.mark.parametrize(
    ("step", "without", "lacks"),
    [
        ("build", "iconutil", "the tool 'iconutil' is missing"),
        ("sign", "codesign", "the tool 'codesign' is missing"),
        ("sign", "", "Elsewise.app is missing"),
        ("notarise", "ditto", "the tool 'ditto' is missing"),
        ("notarise", "xcrun", "the tool 'xcrun' is missing"),
        ("notarise", "", "Elsewise.app is missing"),
        ("staple", "xcrun", "the tool 'xcrun' is missing"),
        ("staple", "", "Elsewise.app is missing"),
        ("dmg", "hdiutil", "the tool 'hdiutil' is missing"),
        ("dmg", "", "Elsewise.app is missing"),
        ("verify", "", "Elsewise.app is missing"),
    ],
)
def test_a_step_names_the_missing_tool_or_bundle(mac: Mac, step: str, without: str, lacks: str) -> None:
    done = mac.run(step, without=without)
    assert done.returncode == 1
    assert f"macos.sh {step}: " in done.stderr
    assert lacks in done.stderr


def test_unset_variables_and_unknown_steps_are_named(mac: Mac) -> None:
    mac.make_app()
    assert "ELSEWISE_SIGN_IDENTITY is not set" in mac.run("sign").stderr
    assert "ELSEWISE_NOTARY_PROFILE is not set" in mac.run("notarise", ELSEWISE_SIGN_IDENTITY=IDENTITY).stderr
    unknown = mac.run("polish")
    assert unknown.returncode == 2
    assert "no step 'polish'" in unknown.stderr


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """packaging/package.py, which is a script."""
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    return module_at(ROOT / "packaging" / "package.py")


def module_at(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("of_a_file", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_spec_describes_the_macos_bundle(package: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a Mac, and stand-ins for PyInstaller's functions that record their arguments
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def word(name: str) -> Callable[..., types.SimpleNamespace]:
        def call(*arguments: Any, **named: Any) -> types.SimpleNamespace:
            calls[name] = arguments, named
            return types.SimpleNamespace(pure="pure", scripts="scripts", binaries="binaries", datas="datas")

        return call

    hooks = types.SimpleNamespace(collect_data_files=lambda _: [], collect_submodules=lambda name, **_: [name])
    for name, module in (("PyInstaller", object()), ("PyInstaller.utils", object()), ("PyInstaller.utils.hooks", hooks)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(package.collect, "not_analysed", lambda: {"torch", "transformers"})
    monkeypatch.setattr(package.collect, "files", lambda each: [(each.metadata["Name"].lower(), Path())])
    spec = ROOT / "packaging" / "elsewise.spec"
    words = {name: word(name) for name in ("Analysis", "PYZ", "EXE", "COLLECT", "BUNDLE")}
    monkeypatch.setattr(sys, "path", sys.path.copy())
    exec(compile(spec.read_text("utf-8"), spec, "exec"), {"SPECPATH": str(spec.parent), **words})  # as PyInstaller does
    monkeypatch.undo()
    # then the program is for Apple silicon, without a terminal, and the folder has MLX and no torch
    _, program = calls["EXE"]
    assert (program["target_arch"], program["console"]) == ("arm64", False)
    distributions = {inside for inside, _, _ in calls["COLLECT"][0][3]}
    assert {"mlx", "mlx-lm", "transformers", "numpy"} <= distributions
    assert "torch" not in distributions
    assert {"torch", "tests", "benchmarks", "tkinter"} <= set(calls["Analysis"][1]["excludes"])
    assert {"app", "elsewise", "runtime", "storage", "ui", "json", "sqlite3"} <= set(calls["Analysis"][1]["hiddenimports"])
    # and the bundle has the entries that the Finder reads
    (_,), bundle = calls["BUNDLE"]
    assert (bundle["name"], bundle["version"]) == ("Elsewise.app", __version__)
    assert bundle["icon"] == str(ROOT / "build" / "elsewise.icns")  # which package.py draws
    about = bundle["info_plist"]
    assert (about["LSMinimumSystemVersion"], about["NSHighResolutionCapable"]) == ("14.0", True)
    declared = {
        each["UTTypeIdentifier"]: each["UTTypeTagSpecification"]["public.filename-extension"]
        for kind in ("UTExportedTypeDeclarations", "UTImportedTypeDeclarations")
        for each in about[kind]
    }
    opened = {name: each["LSHandlerRank"] for each in about["CFBundleDocumentTypes"] for name in each["LSItemContentTypes"]}
    assert declared == {"org.elsewise.session": ["elsewise"], "org.ggml.gguf": ["gguf"]}
    assert opened == {"org.elsewise.session": "Owner", "org.ggml.gguf": "Alternate"}


def test_the_macos_bundle_has_byte_code_where_imports_look(
    package: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # given PyInstaller's output: a module and a package linked as a whole, and a package linked file by file
    contents = tmp_path / "Elsewise.app" / "Contents"

    def pyinstaller(*_: object, **__: object) -> None:
        for file in ("alone.py", "whole/inner.py", "mixed.data/inner.py"):
            path = contents / "Resources" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("", "utf-8")
        frameworks = contents / "Frameworks"
        (frameworks / "mixed__dot__data").mkdir(parents=True)
        (frameworks / "mixed.data").symlink_to("mixed__dot__data")
        for link, target in (
            ("alone.py", "../Resources"),
            ("whole", "../Resources"),
            ("mixed__dot__data/inner.py", "../../Resources"),
        ):
            (frameworks / link).symlink_to(f"{target}/{link.replace('__dot__', '.')}")
        (tmp_path / "elsewise" / "_internal").mkdir(parents=True)
        (tmp_path / "elsewise" / "_internal" / "libmlx.dylib").touch()

    monkeypatch.setattr(package, "DIST", tmp_path)
    monkeypatch.setattr(package, "collect_licences", lambda _: None)
    monkeypatch.setattr(package.collect, "not_shipped", lambda _: set())
    monkeypatch.setattr(package.subprocess, "run", pyinstaller)
    monkeypatch.setattr(sys, "platform", "darwin")
    package.build_folder()
    monkeypatch.undo()
    # then each source has its byte code beside it in both folders, and Frameworks has no file but links
    sources = [path / file for path in contents.iterdir() for file in ("alone.py", "whole/inner.py", "mixed.data/inner.py")]
    assert [source for source in sources if not Path(importlib.util.cache_from_source(str(source))).is_file()] == []
    assert [
        file
        for file in (contents / "Frameworks").rglob("*")
        if file.is_file() and not file.resolve().is_relative_to(contents / "Resources")
    ] == []
    # and the whole may be moved
    assert [link for link in (contents / "Frameworks").rglob("*") if link.is_symlink() and link.readlink().is_absolute()] == []


def test_the_man_page_has_every_command_and_is_sound(package: types.ModuleType) -> None:
    page = package.man_page()
    if shutil.which("groff"):
        typeset = ["groff", "-man", "-ww", "-z"]
        assert not subprocess.run(typeset, input=page, capture_output=True, text=True, timeout=60, check=True).stderr
    for command in (*COMMANDS, "models import", "sessions export"):
        assert f".SS elsewise {command} " in page
    requests = {line.partition(" ")[0] for line in page.splitlines() if line.startswith(".")}
    assert requests == {".TH", ".ad", ".SH", ".SS", ".TP", ".B"}
    assert not [line for line in page.splitlines() if line.startswith("'")]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("dpkg") is None, reason="the libraries of a Debian system")
def test_licences_of_qt_and_of_the_systems_libraries_are_shipped(package: types.ModuleType, tmp_path: Path) -> None:
    package.collect_licences(tmp_path / "licences")
    assert "GNU LESSER GENERAL PUBLIC LICENSE" in (tmp_path / "licences" / "LGPL-3.txt").read_text()
    # given a bundle with two libraries of one package, and Python's own
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    for name in ("libglib-2.0.so.0", "libgio-2.0.so.0", "libpython3.11.so.1.0"):
        (shipped / name).touch()
    package.system_licences(shipped, tmp_path / "licences")
    notices = (tmp_path / "licences" / "LICENCES.txt").read_text()
    assert re.search(r"^libglib2\.0-0\S* \S+: libgio-2\.0\.so\.0, libglib-2\.0\.so\.0$", notices, re.MULTILINE)
    [copyright_file] = (tmp_path / "licences").glob("libglib2.0-0*.copyright")
    assert "LGPL" in copyright_file.read_text()
    # and the About box of a bundle shows them
    (tmp_path / "resources").mkdir()
    module = shutil.copy(ROOT / "resources" / "licences.py", tmp_path / "resources")
    assert module_at(Path(module)).notices() == notices
    # and a library of no package ends the build
    (shipped / "libnowhere.so.1").touch()
    with pytest.raises(SystemExit, match=r"libnowhere\.so\.1: no package of this system"):
        package.system_licences(shipped, tmp_path / "licences")


@pytest.mark.slow
def test_the_shipped_files_exclude_tests_headers_and_traces_of_this_machine(package: types.ModuleType) -> None:
    shipped = package.collect.required(("hf",))
    assert {"torch", "transformers", "mlx", "numpy", "pip", "elsewise", "pyside6-essentials"} <= shipped.keys()
    assert shipped.keys().isdisjoint({"pytest", "mypy", "ruff", "pyinstaller"})
    assert {"torch", "pandas", "pytest"} <= package.collect.not_analysed()
    assert package.collect.not_analysed().isdisjoint({"PySide6", "runtime", "json", "tkinter"})
    assert {"pandas", "pytest"} <= package.collect.not_shipped(("hf",))
    assert "torch" not in package.collect.not_shipped(("hf",))
    names = [inside for each in shipped.values() for inside, _ in package.collect.files(each)]
    assert not [name for name in names if re.search(r"^torch/(test|include)/|direct_url\.json$|\.pyc$|^\.\.", name)]
    assert [name for name in names if Path(name).name.startswith("libmlx.")] in (
        ["mlx/lib/libmlx.so"],
        ["mlx/lib/libmlx.dylib"],
    )
    assert not [name for name in names if name.startswith("PySide6/")]  # PyInstaller's hooks collect Qt


def test_actions_are_pinned_by_commit_and_workflows_may_only_read() -> None:
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert [path.name for path in files] == ["ci.yml", "macos.yml", "release.yml"]
    for path in files:
        text = path.read_text("utf-8")
        used = re.findall(r"uses: (.*)", text)
        assert used
        assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line) for line in used)
        assert "\npermissions:\n  contents: read\n" in text
        assert ("secrets." in text, "contents: write" in text) == (
            (True, True) if path.name == "release.yml" else (False, False)
        )
        assert "pull_request_target" not in text


@pytest.mark.parametrize(
    ("system", "tried"),
    [("linux", "sh packaging/try_package.sh dist/elsewise_*.deb"), ("macos", "sh packaging/macos.sh verify")],
)
def test_a_release_tries_its_package_before_the_upload(system: str, tried: str) -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    [job] = re.findall(rf"^  {system}:\n((?:    .*\n)+)", text, re.MULTILINE)
    assert job.index("make package") < job.index(tried) < job.index("upload-artifact")
    assert "    needs: [linux, macos]\n" in text


def test_the_macos_runner_checks_every_part_of_the_machine_and_uploads_the_results() -> None:
    text = (ROOT / ".github" / "workflows" / "macos.yml").read_text("utf-8")
    checks = re.findall(r" dist/Elsewise\.app/Contents/MacOS/elsewise doctor --deep (.*) --json > (\S+)", text)
    assert sorted(re.findall(r"--only (\w+)", " ".join(parts for parts, _ in checks))) == sorted(PARTS)
    assert all(f"            {file}\n" in text for _, file in checks)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_built_package_works_on_a_system_without_python() -> None:
    built = next(iter(sorted((ROOT / "dist").glob(f"elsewise_{__version__}_*.deb"))), None)
    if built is None:
        pytest.skip("no package is built: make package")
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("it is tried in a system of its own: Linux, as root, with debootstrap")
    done = subprocess.run(
        ["sh", "packaging/try_package.sh", str(built)], cwd=ROOT, capture_output=True, text=True, timeout=3500, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "passed: without Python, compilers and network" in done.stdout


def test_trying_two_packages_at_once_is_refused() -> None:
    done = subprocess.run(
        ["sh", "packaging/try_package.sh", "elsewise_1.deb", "elsewise_2.deb"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "remove the older ones from dist" in done.stderr) == (2, True)


def release_step(name: str, root: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The shell of a step of release.yml, as the host runs it; tools of `root` come before the system's."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    [script] = re.findall(rf"      - name: {name}\n(?:        .*\n)+?        run: \|\n((?:          .*\n)+)", text)
    env = {"PATH": f"{root / 'tools'}:{os.environ['PATH']}", "RUNNER_TEMP": str(root), **variables}
    return subprocess.run(
        ["bash", "-e", "-c", script], cwd=root, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_release_is_a_draft_of_all_files_their_checksums_and_the_section_of_its_version(mac: Mac) -> None:
    shutil.copy(ROOT / "CHANGELOG.md", mac.root)
    (mac.root / "runtime").mkdir()
    version = mac.root / "runtime" / "version.py"
    mac.write(mac.tools / "gh", "")
    (mac.root / "files").mkdir()
    for name in ("elsewise.deb", "elsewise.dmg"):
        (mac.root / "files" / name).write_text(name, "utf-8")
    # a version without a section is not published, nor one under the tag of another
    version.write_text('__version__ = "9.9.9"\n', "utf-8")
    assert release_step("Draft release", mac.root, TAG="v9.9.9").returncode == 1
    refused = release_step("Draft release", mac.root, TAG=f"v{__version__}")
    assert (refused.returncode, refused.stderr) == (1, f"the tag v{__version__} is not the version of runtime/version.py\n")
    assert mac.calls("gh") == []
    shutil.copy(ROOT / "runtime" / "version.py", version)
    done = release_step("Draft release", mac.root, TAG=f"v{__version__}")
    assert done.returncode == 0, done.stderr
    files = "SHA256SUMS elsewise.deb elsewise.dmg"
    title = f"--title Elsewise {__version__} --notes-file ../notes.md"
    assert mac.calls("gh") == [f"gh release create v{__version__} --draft --verify-tag {title} -- {files}"]
    notes = (mac.root / "notes.md").read_text("utf-8")
    assert ("### Added" in notes, "## [0" in notes) == (True, False)
    checked = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=mac.root / "files", capture_output=True, check=True)
    assert checked.stdout == b"elsewise.deb: OK\nelsewise.dmg: OK\n"


def test_the_release_certificate_is_imported_into_its_own_keychain_and_its_file_removed(mac: Mac) -> None:
    mac.write(mac.tools / "security", 'case "$1" in import) [ "$(cat "$2")" = a-certificate ] ;; esac')
    mac.write(mac.tools / "uuidgen", "echo once")
    secrets = {"CERTIFICATE": base64.b64encode(b"a-certificate").decode(), "CERTIFICATE_PASSWORD": "pw", "NOTARY_TEAM": "T"}
    notary = {"NOTARY_USER": "me@example.org", "NOTARY_PASSWORD": "notary-pw", "ELSEWISE_NOTARY_PROFILE": "elsewise"}
    mac.write(mac.tools / "xcrun", "")
    done = release_step("Keychain with the certificate", mac.root, **secrets, **notary)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    steps = ["create-keychain", "unlock-keychain", "import", "set-key-partition-list", "list-keychains"]
    assert [line.split()[1] for line in mac.calls("security")] == steps
    assert "store-credentials elsewise --apple-id me@example.org --password notary-pw --team-id T" in mac.calls("xcrun")[0]
    assert not list(mac.root.glob("*.p12"))
    # and a certificate that cannot be imported ends the release
    assert (
        release_step("Keychain with the certificate", mac.root, **{**secrets, "CERTIFICATE": "eA=="}, **notary).returncode == 1
    )
