"""The program: its commands, the layout of its help, and `main`, which runs a command line."""

import errno
import itertools
import os
import re
import signal
import sys
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter, UnknownCommandError, UnknownOptionError
from cyclopts.validators import Number

from bothways.cli.inputs import advised, remember_files
from bothways.cli.options import ANY_MODEL, Flag, ModelOptions, Threads, command, spelled, usage_error
from bothways.cli.printing import BAD_USAGE, BROKEN_PIPE, FAILED, complain, interrupted_code, note
from bothways.errors import BothwaysError, InvalidInput, NotFitted, PromptsDiffer, TextsTruncated, TextTooLong, nearest
from bothways.interrupts import Terminated, raising_terminated
from bothways.lazy import imported, missing
from bothways.progress import reporting
from bothways.storage import OUT_OF_ROOM
from bothways.threads import choose_threads

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions


# The commands by help group, in the order in which users need them. The first line of each command's help is repeated
# here, since the help of the program imports no command.
COMMANDS = {
    "Choose a model": {
        "program:demo": "Run the demo: train, evaluate and search with news texts.",
        "program:examples": "Write the files that the guides use.",
        "models:recommend": "Recommend models for a task, with reasons.",
        "models:models": "List the catalogue of models, or show one card.",
        "training.plan:cost": "Count a model's operations and memory without building it.",
        "training.plan:compare_models": "Measure speed and memory of models side by side.",
    },
    "Train": {
        "training.train:train": "Fine-tune a pretrained encoder for a task.",
        "training.pretrain:adapt": "Continue pre-training (masked LM) on your own texts.",
        "training.pretrain:distill": "Distill a model into a smaller one on unlabelled texts.",
        "training.pretrain:pretrain": "Pre-train a new encoder on raw text.",
        "training.plan:plan": "Plan a pre-training run: tokens, memory, hours and price.",
    },
    "Evaluate": {
        "evaluate:evaluate": "Evaluate a trained model on labelled data.",
        "evaluate:compare": "Compare two trained models on the same labelled data.",
        "judge:judge": "Judge retrieval-augmented answers, and rank the systems that gave them.",
    },
    "Predict": {
        "predictions.predict:predict": "Predict with a trained model.",
        "training.compose:ensemble": "Combine trained models of one task into an ensemble.",
        "predictions.predict:fill_mask": "Fill the masks of texts with the likeliest words.",
        "serve:serve": "Serve models over HTTP, with a page to try them.",
        "predictions.predict:schema": "Print JSON schemas of a model's inputs, options and predictions.",
    },
    "Embed and search": {
        "predictions.predict:embed": "Embed texts as vectors.",
        "predictions.jobs:job": "Follow jobs over many files, which --output-dir starts.",
        "search.evaluation:search": "Search texts by meaning and by words.",
    },
    "Explain and audit": {
        "explain:explain": "Explain a prediction by word contributions and attention.",
        "audit:audit": "Audit a model: files, backdoors, behaviour, confidence and leaks.",
        "audit:audit_data": "Find poisoned rows of a training set.",
    },
    "Tokens and masks": {
        "tokens:tokenizer": "Train tokenizers on your own texts.",
        "tokens:tokenize": "Tokenize texts and count their tokens.",
        "tokens:mask": "Show static and dynamic masks of a text by epoch.",
    },
    "Share": {
        "share:export": "Export a model to ONNX or a transformers checkpoint.",
        "share:quantize": "Quantize a model to int8, to run faster on CPUs.",
        "share:check": "Check that a model answers as recorded.",
        "share:sign": "Write the checksums of a model's files, and sign them.",
        "share:verify": "Verify a model's files against their checksums and signature.",
    },
}
SUMMARIES = {
    home.partition(":")[2].replace("_", "-"): summary for group in COMMANDS.values() for home, summary in group.items()
}

_BREAK = re.compile(r"(?<!\n)\n(?!\n)[ \t]*")


def build_app() -> App:
    """Return the tree of commands."""
    from rich.console import Console

    app = App(
        name="bothways",
        help="Encoder-only language models: fine-tune, calibrate, evaluate, embed and search.",
        help_epilogue="'bothways COMMAND --help' describes a command; 'bothways demo' runs an example. "
        "--config FILE reads the options of a command from a TOML file.",
        version=_version,
        group_commands=Group("Commands", sort_key=len(COMMANDS)),
        help_format="plaintext",
        help_formatter=FilledParagraphs(),
        # Flags have no --no-... twin unless a command says so.
        default_parameter=Parameter(negative=()),
        suppress_keyboard_interrupt=False,
        # Command objects are reused; without this they would keep the terminal width of their first help.
        console=Console(),
    )
    for place, (title, homes) in enumerate(COMMANDS.items()):
        group = Group(title, sort_key=place)
        for order, home in enumerate(homes):
            name = home.partition(":")[2].replace("_", "-")
            app.command(f"bothways.cli.{home}", name=name, group=group, sort_key=order)
    return app


def _version() -> str:
    from importlib.metadata import version

    return f"bothways {version('bothways')}"


@command("Example:\n  bothways demo --output bothways-demo")
def demo(
    *,
    output: Path | None = None,
    overwrite: Flag = False,
    seed: Annotated[int, Parameter(validator=Number(gte=0, lt=2**32))] = 1,
    threads: Threads = None,
) -> None:
    """Run the demo: train, evaluate and search with news texts.

    Takes a few minutes on two cores and needs no network.

    Args:
        output: Folder for the report, the trained model, the search index and the data. Default: bothways-demo; if
            there is one already, bothways-demo-2 and so on.
        overwrite: Replace an earlier demo.
        seed: Random seed of the training.
    """
    from bothways.demo import run

    choose_threads(threads)
    named = output or Path("bothways-demo")
    if output is None and not overwrite and named.exists():
        others = (named.with_name(f"{named.name}-{number}") for number in itertools.count(2))
        free = next(each for each in others if not each.exists())
        note(f"{named} exists already: this demo is written to {free}. --overwrite replaces an earlier demo.")
        named = free
    run(named, overwrite=overwrite, seed=seed, show=print)


@command("Example:\n  bothways examples examples")
def examples(folder: Path, /, *, overwrite: Flag = False) -> None:
    """Write the files that the guides use.

    A README.md in the folder lists the files with their columns.

    Args:
        folder: A new folder.
        overwrite: Replace an existing folder.
    """
    from bothways.demo.examples import write_examples

    note(f"{len(write_examples(folder, overwrite=overwrite))} files in {folder}, listed in {folder / 'README.md'}")


@dataclass(frozen=True, slots=True)
class FilledParagraphs:
    """A help formatter like the default one of cyclopts that joins the lines of each paragraph."""

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        """Print one box of options or commands."""
        from cyclopts.help import DefaultFormatter

        # Further names are those of earlier versions.
        entries = [
            entry.copy(description=_filled(_described(entry)), positive_names=entry.positive_names[:1])
            for entry in panel.entries
        ]
        DefaultFormatter()(console, options, panel.copy(entries=entries))

    def render_usage(self, console: "Console", options: "ConsoleOptions", usage: Any) -> None:  # noqa: ANN401 (a type of cyclopts)
        """Print the usage line of a command."""
        from cyclopts.help import DefaultFormatter

        DefaultFormatter().render_usage(console, options, usage)

    def render_description(self, console: "Console", options: "ConsoleOptions", description: Any) -> None:  # noqa: ANN401
        """Print the description of a command."""
        from cyclopts.help import DefaultFormatter

        DefaultFormatter().render_description(console, options, _filled(description))


def joined(text: str) -> str:
    r"""Put each paragraph on one line.

    >>> joined("One\n  two.\n\nThree.")
    'One two.\n\nThree.'
    """
    return _BREAK.sub(" ", text)


def _described(entry: "HelpEntry") -> object:
    """Return the description of an option or command; for a command that is not imported, its summary."""
    from cyclopts.help import InlineText

    described = isinstance(entry.description, InlineText) and str(entry.description.primary_renderable)
    summary = next((SUMMARIES[name] for name in entry.positive_names if name in SUMMARIES), None)
    return entry.description if described or summary is None else InlineText.from_format(summary, "plaintext")


def _filled(description: Any) -> Any:  # noqa: ANN401 (whatever is to be printed)
    """Join the lines of each paragraph of plain text; return anything else unchanged."""
    from cyclopts.help import InlineText
    from rich.text import Text

    if not isinstance(description, InlineText) or not isinstance(description.primary_renderable, Text):
        return description
    filled = InlineText(Text(joined(description.primary_renderable.plain)), force_empty_end=description.force_empty_end)
    for text in description.texts:
        filled.append(text)
    return filled


CONFIG = "--config"

# Command-line advice for errors whose message contains these words about the Python interface.
_HINTS: tuple[tuple[type[BothwaysError], str, str], ...] = (
    (TextTooLong, "on_overflow=", "--on-overflow window."),
    (NotFitted, "", "bothways train --help."),
    (InvalidInput, "threads was", "--threads with the earlier number."),
)

# Errors of writing to standard output: no space left, a closed terminal, or a read-only stream.
_UNWRITABLE = (*OUT_OF_ROOM, errno.EIO, errno.EBADF)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program with these arguments (default: those of the process) and return its exit code.

    The code is 0 for success, 1 for a failure, 2 for an invalid command line, 130 after Ctrl-C, 143 after SIGTERM, 141
    if the reader of standard output closed it, or a command's own code.
    """
    # By default, oneDNN caches the code compiled for 1,024 shapes; batches of varying length reach that number.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    if sys.stdout is None:
        complain("standard output is closed, so results would be lost: open it, or redirect it to a file or /dev/null.")
        return FAILED
    # Escape characters that the encoding of the terminal lacks instead of failing.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings(), raising_terminated():
            for always in (PromptsDiffer, TextsTruncated):
                warnings.simplefilter("always", always)
            # Deprecations are for programmers; users of the program cannot act on them.
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
            f"cannot write to standard output: {error.strerror}. The results are incomplete. Free some space, or "
            "redirect the output."
        )
        _drop_output()
        return FAILED


def _drop_output() -> None:
    """Discard buffered output, since the flush at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning on one line, without file and line number."""
    note(f"warning: {message}", always=True)


def _run(arguments: list[str]) -> int:
    app = build_app()
    try:
        words = with_config(arguments)
        call, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False, end_of_options_delimiter="--")
        run = bound.arguments.get("run")
        if run is not None and (run.ray or run.workers):
            return int(imported("bothways.cli.training.on_ray:train_on_ray")(run, words, main))
        if "file" in bound.signature.parameters:
            remember_files(bound)
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
        message = advised(str(error), app.parse_commands(arguments)[1][-1], arguments)
        hints = [
            text for kind, words, text in _HINTS if isinstance(error, kind) and words in message and "--" not in message
        ]
        complain("\n".join([message, *(f"On the command line: {hint}" for hint in hints)]))
        return FAILED
    except OSError as error:
        # An output that cannot be written: read errors are handled where files are read, and `main` handles standard
        # output, whose errors have no file name.
        if error.filename is None:
            raise
        in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
        problem = "a file exists where a folder is needed" if in_the_way else error.strerror
        complain(f"cannot write to {_shown_path(error.filename)!r}: {problem}. Choose another path.")
        return FAILED
    return result if isinstance(result, int) else 0


def _options_of(app: App) -> list[str]:
    """Return the names of a command's options; a group of commands has none of its own."""
    arguments = () if app.default_command is None else app.assemble_argument_collection()
    return [name for argument in arguments for name in argument.names]


def _shown_path(path: object) -> str:
    """Return the path of a failed write; for a temporary file, its folder."""
    written = Path(os.fsdecode(path) if isinstance(path, bytes) else str(path))
    return str(written.parent if written.name.startswith(".") else written)


def _usage_message(app: App, arguments: list[str], error: CycloptsError) -> str:
    words, apps, _ = app.parse_commands(arguments)
    lines = [f"See: {' '.join(('bothways', *words))} --help"]
    unknown = _unknown_option(error, apps[-1])
    if not (unknown and isinstance(error, UnknownOptionError | UnknownCommandError)):
        lines.insert(0, _missing_option(error) or advised(str(error), apps[-1], arguments))
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
    known = ("--help", "--version", *_options_of(app))
    # Compare without the hyphens, which would make short names look alike.
    near = nearest(name[2:], [each[2:] for each in known if each.startswith("--")])
    return f"Unknown option: {name}.{'' if near is None else f' Did you mean --{near}?'}"


def _missing_option(error: CycloptsError) -> str:
    """Return a line on a required argument or option that was not given; empty for other errors."""
    if not isinstance(error, MissingArgumentError) or error.keyword is not None or error.argument is None:
        return ""
    name = error.argument.name
    if not name.startswith("--"):
        return ""
    first = error.argument.index is not None
    return f"Missing: {name[2:].upper()}, as the first word or with {name}." if first else f"Missing option: {name}."


def with_config(arguments: Sequence[str]) -> list[str]:
    """Return a command line with the options of its ``--config`` file; those on the command line take precedence.

    A key of the file is an option without its dashes, ``batch-size`` or ``batch_size``; true and false are flags, and a
    list repeats an option.
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
            raise usage_error(f"the configuration {path!r} has a table [{option[2:]}]: write options at the top level.")
        case list():
            for each in value:
                yield from _config_words(option, each, path)
        case _:
            yield f"{option}={value}"
