"""The commands put together, and how the program ends."""

import errno
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter, UnknownCommandError, UnknownOptionError

from bothways.cli import (
    adapt,
    advice,
    audit,
    audit_data,
    compare,
    cost,
    demo,
    distill,
    embed,
    ensemble,
    evaluate,
    explain,
    export,
    fill_mask,
    judge_score,
    judge_train,
    mask,
    models,
    multitask,
    plan,
    predict,
    pretrain,
    quantize,
    search,
    search_evaluation,
    sign,
    tokenize,
    tokenizer,
    train,
)
from bothways.cli.config import with_config
from bothways.cli.help import FilledParagraphs
from bothways.cli.losses import LossOptions, with_kind, with_loss
from bothways.cli.options import HERE, ModelOptions
from bothways.cli.terminal import complain, interrupted_code, note
from bothways.errors import BothwaysError, InvalidInput, NotFitted, OutputExists, TextsTruncated, TextTooLong, nearest
from bothways.lazy import missing
from bothways.progress import reporting
from bothways.storage import OUT_OF_ROOM
from bothways.tasks.registry import SPECS
from bothways.threads import choose_threads
from bothways.training.interrupts import Terminated, raising_terminated

FAILED, BAD_USAGE, BROKEN_PIPE = 1, 2, 141

# What to type, for errors whose message speaks of the Python interface in these words.
_HINTS: tuple[tuple[type[BothwaysError], str, str], ...] = (
    (OutputExists, "ask for it to be overwritten", "--overwrite."),
    (TextTooLong, "on_overflow=", "--on-overflow window."),
    (NotFitted, "", "bothways train --help."),
    (InvalidInput, "threads was", "--threads with the number of before."),
)

# Why standard output may take no more: no room, a terminal that is gone, a stream that is open for reading alone.
_UNWRITABLE = (*OUT_OF_ROOM, errno.EIO, errno.EBADF)


# The commands in the order in which a user needs them.
_CHOOSE, _TRAIN, _EVALUATE, _USE, _SEARCH, _INSPECT, _TEXTS, _SHARE, _OTHERS = (
    Group(title, sort_key=place)
    for place, title in enumerate(
        (
            "Choose a model",
            "Train",
            "Evaluate",
            "Predict",
            "Embed and search",
            "Explain and audit",
            "Tokens and masks",
            "Share",
            "Commands",
        )
    )
)


def build_app() -> App:
    """Return the command tree."""
    app = App(
        name="bothways",
        help="Encoder-only language models: fine-tune, calibrate, evaluate, embed and search.",
        help_epilogue="bothways COMMAND --help explains a command; bothways demo shows them at work. "
        "--config FILE takes the options of a command from a TOML file.",
        version=_version,
        group_commands=_OTHERS,
        help_format="plaintext",
        help_formatter=FilledParagraphs(),
        # Flags have no --no-... twin unless a command says so.
        default_parameter=Parameter(negative=()),
        suppress_keyboard_interrupt=False,
    )
    _add(app, _CHOOSE, (demo.demo, demo.EXAMPLE), (advice.recommend, advice.RECOMMEND_EXAMPLE))
    _add(app, _CHOOSE, (models.models, models.EXAMPLE), (cost.cost, cost.EXAMPLE))
    _add(app, _CHOOSE, (advice.compare_models, advice.COMPARE_EXAMPLE))
    app.command(_training())
    _add(app, _TRAIN, (adapt.adapt, adapt.EXAMPLE), (distill.distill, distill.EXAMPLE))
    _add(app, _TRAIN, (pretrain.pretrain, pretrain.EXAMPLE), (plan.plan, plan.EXAMPLE))
    _add(app, _EVALUATE, (evaluate.evaluate, evaluate.EXAMPLE), (compare.compare, compare.EXAMPLE))
    app.command(_judging())
    _add(app, _USE, (predict.predict, predict.EXAMPLE), (ensemble.ensemble, ensemble.EXAMPLE))
    _add(app, _USE, (fill_mask.fill_mask, fill_mask.EXAMPLE))
    _add(app, _SEARCH, (embed.embed, embed.EXAMPLE))
    app.command(_searching())
    explaining = App(name="explain", help_epilogue=explain.EXAMPLE, group=_INSPECT, sort_key=0)
    explaining.default(explain.explain)
    _add(explaining, None, (explain.heads, explain.HEADS_EXAMPLE))
    app.command(explaining)
    _add(app, _INSPECT, (audit.audit, audit.EXAMPLE), (audit_data.audit_data, audit_data.EXAMPLE))
    vocabularies = App(name="tokenizer", help="Train tokenizers on your own texts.", group=_TEXTS, sort_key=0)
    _add(vocabularies, None, (tokenizer.train, tokenizer.EXAMPLE))
    app.command(vocabularies)
    _add(app, _TEXTS, (tokenize.tokenize, tokenize.EXAMPLE), (mask.mask, mask.EXAMPLE))
    _add(app, _SHARE, (export.export, export.EXAMPLE), (quantize.quantize, quantize.EXAMPLE))
    _add(app, _SHARE, (sign.sign, sign.SIGN_EXAMPLE), (sign.verify, sign.VERIFY_EXAMPLE))
    return app


def _add(app: App, group: Group | None, *commands: tuple[Callable[..., object], str]) -> None:
    """Add commands with the examples that end their help, in this order."""
    for command, example in commands:
        app.command(command, help_epilogue=example, group=group, sort_key=sum(1 for _ in app))


def _training() -> App:
    training = App(name="train", help="Fine-tune a pretrained encoder for a task.", group=_TRAIN, sort_key=0)
    for spec in SPECS.values():
        # Masked language models are trained by `adapt`.
        if spec.name != "masked_lm":
            extra = train.Extra(LossOptions, with_kind, with_loss) if spec.name == "embedding" else None
            name, example = train.command_name(spec), train.example_of(spec)
            training.command(train.training_command(spec, extra), name=name, help_epilogue=example)
            if name == "question-answering":
                training.command(train.training_command(spec), name="answering", help_epilogue=example, show=False)
    training.command(multitask.multitask, help_epilogue=multitask.EXAMPLE)
    return training


def _searching() -> App:
    searching = App(name="search", help="Search texts by meaning and by words.", group=_SEARCH, sort_key=1000)
    _add(searching, None, (search.build, search.BUILD_EXAMPLE), (search.query, search.QUERY_EXAMPLE))
    _add(searching, None, (search_evaluation.evaluate, search_evaluation.EVALUATE_EXAMPLE))
    _add(searching, None, (search.add, search.ADD_EXAMPLE), (search.delete, search.DELETE_EXAMPLE))
    _add(searching, None, (search_evaluation.mine, search_evaluation.MINE_EXAMPLE))
    return searching


def _judging() -> App:
    judges = App(
        name="judge",
        help="Judge retrieval-augmented answers, and find the better system.",
        group=_EVALUATE,
        sort_key=1000,
    )
    _add(judges, None, (judge_train.train, judge_train.EXAMPLE), (judge_score.score, judge_score.SCORE_EXAMPLE))
    _add(
        judges, None, (judge_score.rank, judge_score.RANK_EXAMPLE), (judge_train.evaluate, judge_train.EVALUATE_EXAMPLE)
    )
    return judges


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: The words after the program's name; those of the process when left out.

    Returns:
        The exit code: 0; 1 when something failed; 2 for a command line that makes no sense; 130 after Ctrl-C; 143 after
        SIGTERM; 141 when the reader of standard output went away.
    """
    # oneDNN keeps what it has compiled for each of 1,024 shapes, and batches of texts of all lengths have as many.
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
            # For those who write programs; nobody can act on them here.
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
            f"standard output cannot be written: {error.strerror}, so the results are not whole. Make room there, or "
            "send them elsewhere."
        )
        _drop_output()
        return FAILED


def _drop_output() -> None:
    """Let what is still buffered go nowhere: nobody takes it, and the flush at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Say a warning in one line, without the place in the code that it comes from."""
    del category, filename, lineno, file, line
    note(f"warning: {message}")


def _unknown_option(error: CycloptsError, app: App) -> str:
    """Return a line that names an unknown option and the nearest known one; empty for other errors.

    It may also be why a required option is missing.
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
    return f"Unknown option: {name}.{'' if near is None else f' Did you mean --{near}?'}\n"


def _missing_option(error: CycloptsError) -> str:
    """Return a line that names a required option that was not given at all; empty for other errors."""
    missing = isinstance(error, MissingArgumentError) and error.keyword is None and error.argument is not None
    name = error.argument.name if missing and error.argument is not None else ""
    return f"Missing option: {name}." if name.startswith("--") else ""


def _run(arguments: list[str]) -> int:
    app = build_app()
    try:
        call, bound, _ = app.parse_args(
            with_config(arguments), exit_on_error=False, print_error=False, end_of_options_delimiter="--"
        )
        opening = (value for value in bound.arguments.values() if isinstance(value, ModelOptions))
        choose_threads(next(opening, HERE).threads)
        result = call(*bound.args, **bound.kwargs)
    except CycloptsError as error:
        words, apps, _ = app.parse_commands(arguments)
        unknown = _unknown_option(error, apps[-1])
        rest = (
            ""
            if unknown and isinstance(error, UnknownOptionError | UnknownCommandError)
            else f"{_missing_option(error) or error}\n"
        )
        complain(f"{unknown}{rest}See: {' '.join(('bothways', *words))} --help")
        return BAD_USAGE
    except KeyboardInterrupt as error:
        terminated = isinstance(error, Terminated)
        complain("terminated." if terminated else "interrupted.")
        return interrupted_code(signal.SIGTERM if terminated else None)
    except BrokenPipeError:
        raise
    except ModuleNotFoundError as error:
        found = missing(error, f"bothways {' '.join(app.parse_commands(arguments)[0])}")
        if found is error:
            raise
        complain(str(found))
        return FAILED
    except BothwaysError as error:
        message = str(error)
        hints = [
            text for kind, words, text in _HINTS if isinstance(error, kind) and words in message and "--" not in message
        ]
        complain("\n".join([message, *(f"On the command line: {hint}" for hint in hints)]))
        return FAILED
    except OSError as error:
        # Reading is guarded where it is done; what is left is an output that cannot be written. Standard output has no
        # name here, and is seen to in `main`.
        if error.filename is None:
            raise
        in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
        problem = "a file is in the way of a folder" if in_the_way else error.strerror
        complain(f"nothing can be written at {_place(error.filename)!r}: {problem}. Choose another path.")
        return FAILED
    return result if isinstance(result, int) else 0


def _place(path: object) -> str:
    """Return the path of a failed write; for a temporary file, whose name means nothing to the user, its folder."""
    written = Path(os.fsdecode(path) if isinstance(path, bytes) else str(path))
    return str(written.parent if written.name.startswith(".") else written)


def _version() -> str:
    from importlib.metadata import version

    return f"bothways {version('bothways')}"
