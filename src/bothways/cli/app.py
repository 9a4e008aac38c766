"""The tree of commands and the layout of the help. A command's module is imported when it is called."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter
from cyclopts.validators import Number

from bothways.cli.options import Threads, command
from bothways.demo import run
from bothways.threads import choose_threads

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

# The commands by the groups of the help, in the order in which a user needs them, each with the first line of its help:
# the help of the program imports no command.
COMMANDS = {
    "Choose a model": {
        "app:demo": "Train, evaluate and search on news, and write a report.",
        "models:recommend": "Recommend models for a task, with reasons.",
        "models:models": "List the catalogue of models, or show one card.",
        "plan:cost": "Count a model's operations and memory without building it.",
        "plan:compare_models": "Measure speed and memory of models side by side.",
    },
    "Train": {
        "train:train": "Fine-tune a pretrained encoder for a task.",
        "pretrain:adapt": "Continue pre-training (masked LM) on your own texts.",
        "pretrain:distill": "Distill a model into a smaller one on unlabelled texts.",
        "pretrain:pretrain": "Pre-train a new encoder on raw text.",
        "plan:plan": "Plan a pre-training run: tokens, memory, hours and price.",
    },
    "Evaluate": {
        "evaluate:evaluate": "Evaluate a trained model on labelled data.",
        "evaluate:compare": "Compare two trained models on the same labelled data.",
        "judge:judge": "Judge retrieval-augmented answers, and find the better system.",
    },
    "Predict": {
        "predict:predict": "Predict with a trained model.",
        "ensemble:ensemble": "Combine trained models of one task into an ensemble.",
        "predict:fill_mask": "Fill the masks of texts with the likeliest words.",
        "predict:schema": "Print JSON schemas of a model's inputs, options and predictions.",
    },
    "Embed and search": {
        "predict:embed": "Embed texts as unit-length vectors.",
        "search_evaluation:search": "Search texts by meaning and by words.",
    },
    "Explain and audit": {
        "explain:explain": "Explain one prediction: the contribution of each word, and attention.",
        "audit:audit": "Audit a model: files, backdoors, behaviour, confidence and leaks.",
        "audit:audit_data": "Find poisoned rows of a training set.",
    },
    "Tokens and masks": {
        "tokens:tokenizer": "Train tokenizers on your own texts.",
        "tokens:tokenize": "Tokenize texts and count their tokens.",
        "tokens:mask": "Show static and dynamic masks of a text each epoch.",
    },
    "Share": {
        "share:export": "Export a model to ONNX or a transformers checkpoint.",
        "share:quantize": "Round a model's linear layers to int8, faster on CPUs.",
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
    run(output, seed=seed, show=print)


@dataclass(frozen=True, slots=True)
class FilledParagraphs:
    """The default help, without the line breaks that paragraphs have in the source."""

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        """Print one box of options or commands."""
        from cyclopts.help import DefaultFormatter

        entries = [entry.copy(description=_filled(_described(entry))) for entry in panel.entries]
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


def _described(entry: "HelpEntry") -> object:
    """Return the description of an option or command; for a command that is not imported, its summary."""
    from cyclopts.help import InlineText

    described = isinstance(entry.description, InlineText) and str(entry.description.primary_renderable)
    summary = next((SUMMARIES[name] for name in entry.positive_names if name in SUMMARIES), None)
    return entry.description if described or summary is None else InlineText.from_format(summary, "plaintext")


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
