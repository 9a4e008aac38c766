"""How much of the texts a report is about: what was read in windows, and what was not read at all."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class TextsRead:
    """How texts were read.

    Attributes:
        texts: how many.
        in_windows: texts read in more than one window.
        cut: texts of which something was not read.
        dropped_tokens: tokens that were not read, of all texts together.
    """

    texts: int
    in_windows: int
    cut: int
    dropped_tokens: int

    @classmethod
    def of(cls, windows: Sequence[int], dropped_tokens: Sequence[int]) -> "TextsRead":
        """From the windows and the dropped tokens of each text."""
        return cls(
            texts=len(windows),
            in_windows=sum(count > 1 for count in windows),
            cut=sum(count > 0 for count in dropped_tokens),
            dropped_tokens=sum(dropped_tokens),
        )

    def to_dict(self) -> dict[str, int]:
        """JSON-ready."""
        return asdict(self)

    def summary(self) -> str:
        """One line, or nothing where every text was read whole and at once."""
        said = []
        if self.in_windows:
            said.append(f"{self.in_windows} of {self.texts} texts were read in several windows")
        if self.cut:
            said.append(f"{self.cut} of {self.texts} texts were cut, by {self.dropped_tokens} tokens together")
        return "; ".join(said)
