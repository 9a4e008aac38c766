"""The program: from a command line to an exit code."""

import errno
import os
import signal
import sys
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from cyclopts import App, CycloptsError, MissingArgumentError, UnknownCommandError, UnknownOptionError

from bothways.cli.app import build_app
from bothways.cli.options import ANY_MODEL, ModelOptions, spelled, usage_error
from bothways.cli.printing import complain, interrupted_code, note
from bothways.errors import BothwaysError, InvalidInput, NotFitted, OutputExists, TextsTruncated, TextTooLong, nearest
from bothways.interrupts import Terminated, raising_terminated
from bothways.lazy import missing
from bothways.progress import reporting
from bothways.storage import OUT_OF_ROOM
from bothways.threads import choose_threads

FAILED, BAD_USAGE, BROKEN_PIPE = 1, 2, 141
CONFIG = "--config"

# Advice for errors whose message names an argument of the Python interface in these words.
_HINTS: tuple[tuple[type[BothwaysError], str, str], ...] = (
    (OutputExists, "ask for it to be overwritten", "--overwrite."),
    (TextTooLong, "on_overflow=", "--on-overflow window."),
    (NotFitted, "", "bothways train --help."),
    (InvalidInput, "threads was", "--threads with the earlier number."),
)

# Errors of standard output: no room, a terminal that is gone, a stream that is open for reading only.
_UNWRITABLE = (*OUT_OF_ROOM, errno.EIO, errno.EBADF)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: The words after the program's name; those of the process by default.

    Returns:
        The exit code: 0; 1 after a failure; 2 for a command line that makes no sense; 130 after Ctrl-C; 143 after
        SIGTERM; 141 if the reader of standard output went away.
    """
    # oneDNN caches what it compiled for 1,024 shapes by default, and batches of texts of all lengths have as many.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    if sys.stdout is None:
        complain("standard output is closed, so results would be lost: open it, or send it to a file or to /dev/null.")
        return FAILED
    # A character that the terminal cannot show is no reason to fail.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings(), raising_terminated():
            warnings.simplefilter("always", TextsTruncated)
            # They are for programmers; a user of the program cannot act on them.
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.showwarning = _show_warning
            with reporting(lines=True):
                code = _run(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        complain(
            f"cannot write to standard output: {error.strerror}. The results are incomplete. Free some space, or send "
            "them elsewhere."
        )
        _drop_output()
        return FAILED


def _drop_output() -> None:
    """Discard what is still buffered, since the flush at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning on one line, without its place in the code."""
    del category, filename, lineno, file, line
    note(f"warning: {message}")


def _run(arguments: list[str]) -> int:
    app = build_app()
    try:
        call, bound, _ = app.parse_args(
            with_config(arguments), exit_on_error=False, print_error=False, end_of_options_delimiter="--"
        )
        models = (value for value in bound.arguments.values() if isinstance(value, ModelOptions))
        choose_threads(next(models, ANY_MODEL).threads)
        result = call(*bound.args, **bound.kwargs)
    except CycloptsError as error:
        complain(_usage_message(app, arguments, error))
        return BAD_USAGE
    except KeyboardInterrupt as error:
        terminated = isinstance(error, Terminated)
        complain("terminated." if terminated else "interrupted.")
        return interrupted_code(signal.SIGTERM if terminated else None)
    except BrokenPipeError:
        raise
    except ModuleNotFoundError as error:
        dependency = missing(error, f"bothways {' '.join(app.parse_commands(arguments)[0])}")
        if dependency is error:
            raise
        complain(str(dependency))
        return FAILED
    except BothwaysError as error:
        message = str(error)
        hints = [
            text for kind, words, text in _HINTS if isinstance(error, kind) and words in message and "--" not in message
        ]
        complain("\n".join([message, *(f"On the command line: {hint}" for hint in hints)]))
        return FAILED
    except OSError as error:
        # Errors of reading are handled where files are read; this is an output that cannot be written. Standard output
        # has no name here, and `main` handles it.
        if error.filename is None:
            raise
        in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
        problem = "a file is in the way of a folder" if in_the_way else error.strerror
        complain(f"cannot write to {_shown_path(error.filename)!r}: {problem}. Choose another path.")
        return FAILED
    return result if isinstance(result, int) else 0


def _shown_path(path: object) -> str:
    """Return the path of a failed write; for a temporary file, its folder."""
    written = Path(os.fsdecode(path) if isinstance(path, bytes) else str(path))
    return str(written.parent if written.name.startswith(".") else written)


def _usage_message(app: App, arguments: list[str], error: CycloptsError) -> str:
    words, apps, _ = app.parse_commands(arguments)
    lines = [f"See: {' '.join(('bothways', *words))} --help"]
    unknown = _unknown_option(error, apps[-1])
    if not (unknown and isinstance(error, UnknownOptionError | UnknownCommandError)):
        lines.insert(0, _missing_option(error) or str(error))
    return "\n".join([unknown] * bool(unknown) + lines)


def _unknown_option(error: CycloptsError, app: App) -> str:
    """Return a line on an unknown option with the nearest known one; empty for other errors.

    A misspelled option may be the reason why a required one is missing.
    """
    unread = error.unused_tokens if isinstance(error, MissingArgumentError) else None
    unknown = next((token for token in unread or () if token.startswith("--")), None)
    if isinstance(error, UnknownCommandError):
        unknown = next(iter(error.unused_tokens or ()), None)
    if isinstance(error, UnknownOptionError):
        unknown = error.token.keyword or error.token.value
    if unknown is None or not unknown.startswith("--"):
        return ""
    name = unknown.partition("=")[0]
    # A group of commands has no options of its own.
    arguments = () if app.default_command is None else app.assemble_argument_collection()
    known = [each for argument in arguments for each in argument.names]
    # Without the hyphens, which would make short names alike.
    near = nearest(name[2:], [each[2:] for each in ("--help", "--version", *known) if each.startswith("--")])
    return f"Unknown option: {name}.{'' if near is None else f' Did you mean --{near}?'}"


def _missing_option(error: CycloptsError) -> str:
    """Return a line on a required option that was not given; empty for other errors."""
    missing = isinstance(error, MissingArgumentError) and error.keyword is None and error.argument is not None
    name = error.argument.name if missing and error.argument is not None else ""
    return f"Missing option: {name}." if name.startswith("--") else ""


def with_config(arguments: Sequence[str]) -> list[str]:
    """Return a command line with the options of its ``--config`` file; those on the command line take precedence.

    A key of the file is an option without its dashes, ``batch-size`` or ``batch_size``; true and false are flags, and a
    list repeats an option.

    Raises:
        CycloptsError: The file cannot be read, is not TOML, or holds a table.
    """
    before, path, behind = _split_at_config(list(arguments))
    if path is None:
        return before
    given = {each.partition("=")[0] for each in (*before, *behind) if each.startswith("--")}
    words = before + behind
    for key, value in _read_config(path).items():
        option = spelled(key)
        if option not in given and f"--no-{option[2:]}" not in given:
            words += _config_words(option, value, path)
    return words


def _split_at_config(arguments: list[str]) -> tuple[list[str], str | None, list[str]]:
    """Return the words before ``--config``, its value, and the words after it."""
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


def _read_config(path: str) -> dict[str, object]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise usage_error(f"cannot read the configuration {path!r}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise usage_error(f"the configuration {path!r} is not TOML: {error}.") from error


def _config_words(option: str, value: object, path: str) -> Iterator[str]:
    match value:
        case bool():
            yield f"{option}={str(value).lower()}"
        case dict():
            raise usage_error(f"the configuration {path!r} has a table, [{option[2:]}]: give options without tables.")
        case list():
            for each in value:
                yield from _config_words(option, each, path)
        case _:
            yield f"{option}={value}"
