"""The wheel is whole: everything that lies in the package and is no Python file is in it, and so is every module."""

import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "bothways"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built as pip builds it but without an environment of its own."""
    builders = pytest.importorskip("hatchling.builders.wheel", reason="hatchling builds the wheel")
    (path,) = builders.WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("dist")))
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_a_wheel_has_every_file_of_the_package(wheel):
    files = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "bothways/py.typed" in files
    assert files - set(wheel.namelist()) == set()


@pytest.mark.parametrize(
    "name",
    [
        "advice/published.toml",
        "audit/texts.toml",
        "demo/data/news.train.jsonl",
        "demo/story.txt",
        "explain/pronouns.jsonl",
        "report/templates/page.html",
        "report/templates/style.css",
        "serving/studio/index.html",
    ],
)
def test_a_wheel_has_what_commands_read(wheel, name):
    assert wheel.read(f"bothways/{name}") == (PACKAGE / name).read_bytes()


def test_a_wheel_installs_the_command_and_knows_its_extras(wheel):
    (folder,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    assert "bothways = bothways.cli:main" in wheel.read(f"{folder}/entry_points.txt").decode()
    metadata = Parser().parsestr(wheel.read(f"{folder}/METADATA").decode())
    assert {"demo", "minilm", "search", "report", "serve", "all"} <= set(metadata.get_all("Provides-Extra"))
    assert folder == f"bothways-{metadata['Version']}.dist-info"


def test_a_wheel_has_nothing_beside_the_package(wheel):
    assert {name.split("/")[0].split("-")[0] for name in wheel.namelist()} == {"bothways"}
