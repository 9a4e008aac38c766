"""Layout of ``--help``: paragraphs fill the terminal's width, and examples stay as they were written."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

_BREAK = re.compile(r"(?<!\n)\n(?!\n)[ \t]*")


@dataclass(frozen=True, slots=True)
class FilledParagraphs:
    """The usual help, without the line breaks that paragraphs have in the source."""

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        """Print one box of options or commands."""
        from cyclopts.help import DefaultFormatter

        entries = [entry.copy(description=_filled(entry.description)) for entry in panel.entries]
        DefaultFormatter()(console, options, panel.copy(entries=entries))

    def render_usage(self, console: "Console", options: "ConsoleOptions", usage: Any) -> None:  # noqa: ANN401 (theirs)
        """Print how a command is called."""
        from cyclopts.help import DefaultFormatter

        DefaultFormatter().render_usage(console, options, usage)

    def render_description(self, console: "Console", options: "ConsoleOptions", description: Any) -> None:  # noqa: ANN401
        """Print what a command does."""
        from cyclopts.help import DefaultFormatter

        DefaultFormatter().render_description(console, options, _filled(description))


def joined(text: str) -> str:
    r"""Each paragraph on one line.

    >>> joined("One\n  two.\n\nThree.")
    'One two.\n\nThree.'
    """
    return _BREAK.sub(" ", text)


def _filled(description: Any) -> Any:  # noqa: ANN401 (whatever is to be printed)
    """Plain text with each paragraph on one line; anything else as it is."""
    from cyclopts.help import InlineText
    from rich.text import Text

    if not isinstance(description, InlineText) or not isinstance(description.primary_renderable, Text):
        return description
    filled = InlineText(Text(joined(description.primary_renderable.plain)), force_empty_end=description.force_empty_end)
    for text in description.texts:
        filled.append(text)
    return filled
