"""A wheel built from a clean checkout and installed elsewhere does the main job, data files included."""

import os
import shutil
import site
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

import attention_core

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("attention_core", "attention_np", "attention_jax", "conformance")

slow = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that knows nothing of the checkout, and return what it printed."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last commit, without anything that lies about beside it."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("a clean checkout comes from git, and this folder is no git checkout")
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    folder = tmp_path_factory.mktemp("checkout")
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=checkout)
    (built,) = folder.glob("array_attention-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment: the wheel is its own, the dependencies are seen in the running one."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    run(folder / "bin/python", "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel, cwd=folder.parent)
    own = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder), "platbase": str(folder)}))
    seen = [*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    # A folder named in a .pth file is searched, its own .pth files are not: an editable install stays out of sight.
    (own / "dependencies.pth").write_text("\n".join(dict.fromkeys(seen)) + "\n", encoding="utf-8")
    return folder


@slow
def test_wheel_holds_every_committed_file_of_the_packages(wheel: Path, checkout: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        held = {each for each in files.namelist() if ".dist-info/" not in each}
    committed = {
        path.relative_to(checkout).as_posix()
        for package in PACKAGES
        for path in (checkout / package).rglob("*")
        if path.is_file()
    }
    assert held == committed
    assert {f"{package}/py.typed" for package in PACKAGES} <= held
    assert any(each.startswith("conformance/vectors/") and each.endswith(".safetensors") for each in held)


@slow
def test_wheel_carries_licence_version_and_extras(wheel: Path, checkout: Path) -> None:
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with zipfile.ZipFile(wheel) as files:
        metadata = next(files.read(each).decode() for each in files.namelist() if each.endswith(".dist-info/METADATA"))
        assert any(each.endswith("/licenses/LICENSE") for each in files.namelist())
    assert f"\nVersion: {project['version']}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    for extra in project["optional-dependencies"]:
        assert f"\nProvides-Extra: {extra}\n" in metadata


@slow
def test_installed_wheel_is_the_one_that_runs(installed: Path, tmp_path: Path) -> None:
    program = "import conformance, attention_np; print(conformance.__file__); print(attention_np.__file__)"
    for line in run(installed / "bin/python", "-c", program, cwd=tmp_path).split():
        assert Path(line).is_relative_to(installed)


@slow
def test_installed_wheel_does_the_main_job(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("typer", reason="the command needs the `conformance` extra")
    printed = run(installed / "bin/attention-conformance", "run", "--impl", "numpy", cwd=tmp_path)
    assert "numpy" in printed


def test_the_extras_of_the_readmes_commands_bring_no_torch() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extra in ("jax", "conformance", "test"):
        assert not any("torch" in requirement or "array-attention" in requirement for requirement in extras[extra])
    every = set(extras["all"][0].removeprefix("array-attention[").removesuffix("]").split(","))
    assert every == set(extras) - {"all"}


def test_one_version_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert attention_core.__version__ == version
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "\n## [Unreleased]\n" in changelog or f"\n## [{version}]" in changelog
