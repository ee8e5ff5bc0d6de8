"""The wheel works outside the checkout. Law: a tool brings its own data along (design, section 1).

Builds the wheel with the hatchling that is installed, installs it without dependencies into a fresh
environment that sees this one's packages through a .pth file, and asks
it for its catalogue from another folder.
"""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.packaging

LISTING = """
import json, traincast
from traincast.catalog import data_dir, load_catalog
catalog = load_catalog()
print(json.dumps({
    "version": traincast.__version__,
    "package": traincast.__file__,
    "data": str(data_dir()),
    "gpus": sorted(catalog.gpus),
    "folders": sorted(p.name for p in data_dir().iterdir()),
}))
"""


def run(*command: str, cwd: Path) -> str:
    """Standard output of a command that sees nothing of this process's paths."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TRAINCAST", "COV_"))}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Path:
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    run(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(out),
        str(checkout),
        cwd=out,
    )
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The bin folder of a fresh environment that holds the wheel."""
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home, with_pip=False, symlinks=True)
    paths = {"base": str(home), "platbase": str(home)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    pip = (sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"))
    run(*pip, "install", "--no-deps", "--no-index", "--quiet", str(wheel), cwd=home)
    # after the fresh site-packages on the path, so that the wheel wins over an editable install here
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def test_the_wheel_holds_the_data_and_the_type_marker(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "traincast/py.typed" in names
    for table in ("gpus", "nics", "switches", "links"):
        assert f"traincast/data/topologies/catalog/{table}.csv" in names
    for folder in ("topologies/clusters", "scenarios/models", "scenarios/published", "calibration/profiles"):
        assert any(name.startswith(f"traincast/data/{folder}/") for name in names), folder
    assert not any("__pycache__" in name or name.startswith("tests/") for name in names)


def test_the_installed_wheel_lists_its_own_catalogue(installed: Path, tmp_path: Path) -> None:
    told = json.loads(run(str(installed / "python"), "-c", LISTING, cwd=tmp_path))
    fresh = str(installed.parent)
    assert told["package"].startswith(fresh), told
    assert told["data"].startswith(fresh), told
    assert told["folders"] == ["calibration", "scenarios", "topologies"]
    assert "A100-80GB-SXM" in told["gpus"]
    assert told["version"] != "0+unknown"


def test_the_installed_command_answers(installed: Path, tmp_path: Path) -> None:
    assert "traincast" in run(str(installed / "traincast"), "--version", cwd=tmp_path)
    assert "predict" in run(str(installed / "traincast"), "--help", cwd=tmp_path)
