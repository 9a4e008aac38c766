"""Options from a file: ``--config run.toml`` stands for the options that the file names, each under its own name."""

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from bothways.cli.options import usage_error

CONFIG = "--config"


def with_config(arguments: Sequence[str]) -> list[str]:
    """Return a command line with the options of its ``--config`` file; those on the command line come first.

    A key of the file is an option without its dashes, ``batch-size`` or ``batch_size``; true and false are flags, and a
    list gives an option several times.

    Raises:
        CycloptsError: The file cannot be read, is no TOML, or holds a table.
    """
    before, path, behind = _parted(list(arguments))
    if path is None:
        return before
    given = {each.partition("=")[0] for each in (*before, *behind) if each.startswith("--")}
    words = before + behind
    for key, value in _read(path).items():
        option = f"--{key.replace('_', '-')}"
        if option not in given and f"--no-{option[2:]}" not in given:
            words += _words(option, value, path)
    return words


def _parted(arguments: list[str]) -> tuple[list[str], str | None, list[str]]:
    """Return the words before the option, its value, and the words behind it."""
    for place, word in enumerate(arguments):
        if word == "--":
            break
        if word == CONFIG:
            if place + 1 == len(arguments):
                raise usage_error(f"{CONFIG} needs a file.")
            return arguments[:place], arguments[place + 1], arguments[place + 2 :]
        if word.startswith(f"{CONFIG}="):
            return arguments[:place], word.partition("=")[2], arguments[place + 1 :]
    return arguments, None, []


def _read(path: str) -> dict[str, object]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise usage_error(f"the configuration {path!r} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise usage_error(f"the configuration {path!r} is not TOML: {error}.") from error


def _words(option: str, value: object, path: str) -> Iterator[str]:
    match value:
        case bool():
            yield f"{option}={str(value).lower()}"
        case dict():
            raise usage_error(f"the configuration {path!r} has a table, [{option[2:]}]: give options without tables.")
        case list():
            for each in value:
                yield from _words(option, each, path)
        case _:
            yield f"{option}={value}"
