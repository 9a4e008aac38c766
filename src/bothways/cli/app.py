"""The tree of commands and the layout of the help. A command's module is imported when it is called."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter
from cyclopts.validators import Number

from bothways.cli.options import Threads, command
from bothways.threads import choose_threads

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

# The commands by the groups of the help, in the order in which a user needs them.
COMMANDS = {
    "Choose a model": ("app:demo", "models:recommend", "models:models", "plan:cost", "plan:compare_models"),
    "Train": ("train:train", "pretrain:adapt", "pretrain:distill", "pretrain:pretrain", "plan:plan"),
    "Evaluate": ("evaluate:evaluate", "evaluate:compare", "judge:judge"),
    "Predict": ("predict:predict", "ensemble:ensemble", "predict:fill_mask"),
    "Embed and search": ("predict:embed", "search_evaluation:search"),
    "Explain and audit": ("explain:explain", "audit:audit", "audit:audit_data"),
    "Tokens and masks": ("tokens:tokenizer", "tokens:tokenize", "tokens:mask"),
    "Share": ("share:export", "share:quantize", "share:sign", "share:verify"),
}

_BREAK = re.compile(r"(?<!\n)\n(?!\n)[ \t]*")


def build_app() -> App:
    """Return the tree of commands."""
    from rich.console import Console

    app = App(
        name="bothways",
        help="Encoder-only language models: fine-tune, calibrate, evaluate, embed and search.",
        help_epilogue="bothways COMMAND --help explains a command; bothways demo shows them at work. "
        "--config FILE reads the options of a command from a TOML file.",
        version=_version,
        group_commands=Group("Commands", sort_key=len(COMMANDS)),
        help_format="plaintext",
        help_formatter=FilledParagraphs(),
        # Flags have no --no-... twin unless a command says so.
        default_parameter=Parameter(negative=()),
        suppress_keyboard_interrupt=False,
        # Commands outlive this tree, and would keep the width of the terminal of their first help.
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
    output: Path = Path("bothways-demo"),
    seed: Annotated[int, Parameter(validator=Number(gte=0, lt=2**32))] = 1,
    threads: Threads = None,
) -> None:
    """Train, evaluate and search on news, and write a report.

    Takes a few minutes on two cores and needs no network.

    Args:
        output: Folder for the report and everything it is made of.
        seed: Seed of the training.
    """
    choose_threads(threads)
    from bothways.demo import run

    run(output, seed=seed, show=print)


@dataclass(frozen=True, slots=True)
class FilledParagraphs:
    """The default help, without the line breaks that paragraphs have in the source."""

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        """Print one box of options or commands."""
        from cyclopts.help import DefaultFormatter

        entries = [entry.copy(description=_filled(entry.description)) for entry in panel.entries]
        DefaultFormatter()(console, options, panel.copy(entries=entries))

    def render_usage(self, console: "Console", options: "ConsoleOptions", usage: Any) -> None:  # noqa: ANN401 (theirs)
        """Print how to call a command."""
        from cyclopts.help import DefaultFormatter

        DefaultFormatter().render_usage(console, options, usage)

    def render_description(self, console: "Console", options: "ConsoleOptions", description: Any) -> None:  # noqa: ANN401
        """Print what a command does."""
        from cyclopts.help import DefaultFormatter

        DefaultFormatter().render_description(console, options, _filled(description))


def joined(text: str) -> str:
    r"""Put each paragraph on one line.

    >>> joined("One\n  two.\n\nThree.")
    'One two.\n\nThree.'
    """
    return _BREAK.sub(" ", text)


def _filled(description: Any) -> Any:  # noqa: ANN401 (whatever is to be printed)
    """Put each paragraph of plain text on one line; return anything else unchanged."""
    from cyclopts.help import InlineText
    from rich.text import Text

    if not isinstance(description, InlineText) or not isinstance(description.primary_renderable, Text):
        return description
    filled = InlineText(Text(joined(description.primary_renderable.plain)), force_empty_end=description.force_empty_end)
    for text in description.texts:
        filled.append(text)
    return filled
