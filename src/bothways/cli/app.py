"""The commands put together, and how the program ends."""

import errno
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter

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
    search,
    search_evaluate,
    search_mine,
    search_query,
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
from bothways.errors import BothwaysError, InvalidInput, NotFitted, OutputExists, TextsTruncated, TextTooLong
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


def build_app() -> App:
    """The command tree."""
    app = App(
        name="bothways",
        help="Encoder-only language models: fine-tune, calibrate, evaluate, embed and search.",
        help_epilogue="bothways COMMAND --help explains a command; bothways demo shows them at work. "
        "--config FILE takes the options of a command from a TOML file.",
        version=_version,
        help_format="plaintext",
        help_formatter=FilledParagraphs(),
        # Flags have no --no-... twin unless a command says so.
        default_parameter=Parameter(negative=()),
        suppress_keyboard_interrupt=False,
    )
    training = App(name="train", help="Fine-tune a pretrained encoder for a task.", sort_key=1)
    for spec in SPECS.values():
        # Masked language models are trained by `adapt`.
        if spec.learns and spec.name != "masked_lm":
            extra = train.Extra(LossOptions, with_kind, with_loss) if spec.name == "embedding" else None
            name, example = train.command_name(spec), train.example_of(spec)
            training.command(train.training_command(spec, extra), name=name, help_epilogue=example)
    training.command(multitask.multitask, help_epilogue=multitask.EXAMPLE)
    app.command(training)
    app.command(pretrain.pretrain, help_epilogue=pretrain.EXAMPLE, sort_key=1)
    app.command(distill.distill, help_epilogue=distill.EXAMPLE, sort_key=1)
    app.command(adapt.adapt, help_epilogue=adapt.EXAMPLE, sort_key=1)
    app.command(evaluate.evaluate, help_epilogue=evaluate.EXAMPLE, sort_key=2)
    app.command(compare.compare, help_epilogue=compare.EXAMPLE, sort_key=2)
    app.command(predict.predict, help_epilogue=predict.EXAMPLE, sort_key=3)
    app.command(ensemble.ensemble, help_epilogue=ensemble.EXAMPLE, sort_key=3)
    app.command(fill_mask.fill_mask, help_epilogue=fill_mask.EXAMPLE, sort_key=3)
    app.command(embed.embed, help_epilogue=embed.EXAMPLE, sort_key=4)
    searching = App(name="search", help="Search texts by meaning and by words.", sort_key=5)
    searching.command(search.build, help_epilogue=search.BUILD_EXAMPLE, sort_key=1)
    searching.command(search_query.query, help_epilogue=search_query.EXAMPLE, sort_key=2)
    searching.command(search_evaluate.evaluate, help_epilogue=search_evaluate.EXAMPLE, sort_key=3)
    searching.command(search.add, help_epilogue=search.ADD_EXAMPLE, sort_key=4)
    searching.command(search.delete, help_epilogue=search.DELETE_EXAMPLE, sort_key=5)
    searching.command(search_mine.mine, help_epilogue=search_mine.EXAMPLE, sort_key=6)
    app.command(searching)
    judges = App(name="judge", help="Judge retrieval-augmented answers, and find the better system.", sort_key=7)
    judges.command(judge_train.train, help_epilogue=judge_train.EXAMPLE, sort_key=1)
    judges.command(judge_score.score, help_epilogue=judge_score.SCORE_EXAMPLE, sort_key=2)
    judges.command(judge_score.rank, help_epilogue=judge_score.RANK_EXAMPLE, sort_key=3)
    judges.command(judge_train.evaluate, help_epilogue=judge_train.EVALUATE_EXAMPLE, sort_key=4)
    app.command(judges)
    app.command(mask.mask, help_epilogue=mask.EXAMPLE, sort_key=6)
    app.command(tokenize.tokenize, help_epilogue=tokenize.EXAMPLE, sort_key=6)
    vocabularies = App(name="tokenizer", help="Train tokenizers on your own texts.", sort_key=6)
    vocabularies.command(tokenizer.train, help_epilogue=tokenizer.EXAMPLE)
    app.command(vocabularies)
    explaining = App(name="explain", help_epilogue=explain.EXAMPLE, sort_key=7)
    explaining.default(explain.explain)
    explaining.command(explain.heads, help_epilogue=explain.HEADS_EXAMPLE)
    app.command(explaining)
    app.command(audit.audit, help_epilogue=audit.EXAMPLE, sort_key=7)
    app.command(sign.sign, help_epilogue=sign.SIGN_EXAMPLE, sort_key=7)
    app.command(sign.verify, help_epilogue=sign.VERIFY_EXAMPLE, sort_key=7)
    app.command(audit_data.audit_data, help_epilogue=audit_data.EXAMPLE, sort_key=7)
    app.command(models.models, help_epilogue=models.EXAMPLE, sort_key=7)
    app.command(advice.recommend, help_epilogue=advice.RECOMMEND_EXAMPLE, sort_key=8)
    app.command(plan.plan, help_epilogue=plan.EXAMPLE, sort_key=9)
    app.command(cost.cost, help_epilogue=cost.EXAMPLE, sort_key=9)
    app.command(advice.compare_models, help_epilogue=advice.COMPARE_EXAMPLE, sort_key=10)
    app.command(export.export, help_epilogue=export.EXAMPLE, sort_key=11)
    app.command(demo.demo, help_epilogue=demo.EXAMPLE, sort_key=12)
    return app


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


def _unknown_option(error: CycloptsError) -> str:
    """A line that names an unknown option, which may be why a required one is missing."""
    unread = error.unused_tokens if isinstance(error, MissingArgumentError) else None
    unknown = next((token for token in unread or () if token.startswith("--")), None)
    return "" if unknown is None else f"Unknown option: {unknown.partition('=')[0]}.\n"


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
        command = " ".join(("bothways", *app.parse_commands(arguments)[0]))
        complain(f"{_unknown_option(error)}{_missing_option(error) or error}\nSee: {command} --help")
        return BAD_USAGE
    except KeyboardInterrupt as error:
        terminated = isinstance(error, Terminated)
        complain("terminated." if terminated else "interrupted.")
        return interrupted_code(signal.SIGTERM if terminated else None)
    except BrokenPipeError:
        raise
    except BothwaysError as error:
        said = str(error)
        hints = [text for kind, words, text in _HINTS if isinstance(error, kind) and words in said and "--" not in said]
        complain("\n".join([said, *(f"On the command line: {hint}" for hint in hints)]))
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
    """The path of a failed write; for a temporary file, whose name means nothing to the user, its folder."""
    written = Path(os.fsdecode(path) if isinstance(path, bytes) else str(path))
    return str(written.parent if written.name.startswith(".") else written)


def _version() -> str:
    from importlib.metadata import version

    return f"bothways {version('bothways')}"
