"""The protocol of detectors. Each is one class, in a file or at the front of a folder, and one line of `DETECTORS`."""

from collections.abc import Iterable
from typing import ClassVar, Protocol

from bothways.audit.context import Context, Need
from bothways.audit.finding import Finding


class Detector(Protocol):
    """A check of a model, with or without data.

    Attributes:
        name: The name that users know, such as ``"BackdoorTriggerScanner"``.
        title: The fault that it looks for, in one line.
        needs: Conditions; without them the detector is not run.
        gains: Further inputs that it uses where they are there.
        cost: Duration, in words: "seconds", "a minute on two cores for MiniLM".
    """

    name: ClassVar[str]
    title: ClassVar[str]
    needs: ClassVar[tuple[Need, ...]]
    gains: ClassVar[tuple[Need, ...]]
    cost: ClassVar[str]

    def analyze(self, context: Context) -> Iterable[Finding]:
        """Yield findings, as soon as they are made; leave the model as it was.

        It draws from ``context.rng(self.name)`` alone, calls ``context.check_time()`` in its loops, and yields findings
        of severity info for measurements without a fault.

        Raises:
            Undecided: It cannot decide; the message says why. Findings that were yielded before are kept.
            NeedUnmet: Something is missing that its ``needs`` cannot say.
        """
