"""The README and the guides run, block after block, with tiny models in the place of pretrained ones."""

from pathlib import Path

import pytest
from guide_blocks import blocks, commands_of, run_page
from guide_files import prepare

from bothways.tasks.heads import training as head_training

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page.parent.name == "guides" or any(block.language in ("console", "bash") for block in blocks(page))
    ),
]


@pytest.fixture(autouse=True)
def short_trainings(monkeypatch):
    """Tiny models need not learn anything here."""
    monkeypatch.setattr(head_training, "MIN_UPDATES", 2)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A working directory, with the models beside it."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.fixture
def database(request, monkeypatch):
    """Let pages with an index in a database find an empty one, at ``postgresql://localhost/demo``."""
    if "postgresql://" in request.getfixturevalue("page").read_text(encoding="utf-8"):
        server = request.getfixturevalue("postgres")
        monkeypatch.setenv("PGPORT", str(server.port))
        monkeypatch.setenv("PGUSER", "postgres")
        server.execute("drop database if exists demo with (force)")
        server.execute("create database demo")


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs(page, workplace):
    run_page(page, prepare(page.name, workplace), slow=False)


@pytest.mark.slow
@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(each.slow for each in commands_of(page))], ids=lambda page: page.stem
)
def test_a_page_runs_with_its_slow_commands(page, workplace):
    run_page(page, prepare(page.name, workplace), slow=True)


def test_every_task_has_a_snippet():
    shown = "".join(block.content for page in PAGES for block in blocks(page) if block.language == "python")
    for name in (
        "TextClassifier",
        "PairClassifier",
        "MultiTask",
        "Ensemble",
        "TextTagger",
        "QuestionAnswerer",
        "MultipleChoice",
        "FillMask",
        "SentenceEmbedder",
        "CrossEncoder",
    ):
        assert f"{name}." in shown or f"{name}(" in shown, name
