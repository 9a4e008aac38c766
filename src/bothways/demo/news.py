"""The news texts that come with the package."""

from importlib.resources import files
from pathlib import Path
from typing import Literal

from bothways.data import read_rows

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
CARD = "README.md"


def copy_news(folder: Path, rows: int | None) -> None:
    """Write the three files and their card into ``folder``, or only the first ``rows`` rows of each file."""
    folder.mkdir()
    shipped = files("bothways.demo").joinpath("data")
    (folder / CARD).write_bytes(shipped.joinpath(CARD).read_bytes())
    for split in SPLITS:
        lines = shipped.joinpath(file_name(split)).read_bytes().splitlines(keepends=True)
        (folder / file_name(split)).write_bytes(b"".join(lines[:rows]))


def file_name(split: Split) -> str:
    """The name of a split's file."""
    return f"news.{split}.jsonl"


def news_rows(folder: Path, split: Split) -> list[dict[str, str]]:
    """The rows of a split in a folder that `copy_news` wrote: ``id``, ``text``, ``category``, ``sentiment``."""
    return [{name: str(value) for name, value in row.values.items()} for row in read_rows(folder / file_name(split))]
