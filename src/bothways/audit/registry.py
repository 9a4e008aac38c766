"""The detectors: what each one is, and all of them by name. A detector is imported when it is needed."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import ClassVar, Protocol

from bothways.audit.context import Context, Need
from bothways.audit.finding import Finding
from bothways.errors import InvalidInput, nearest


class Detector(Protocol):
    """A check of a model, with or without data: one class, in a file of its own or at the front of a folder.

    Attributes:
        name: Its name for users, such as ``"BackdoorTriggerScanner"``.
        needs: Inputs without which it is not run.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[Need, ...]]

    def analyze(self, context: Context) -> Iterable[Finding]:
        """Yield findings as they are made, and leave the model unchanged.

        Detectors draw from ``context.rng(self.name)`` only and call ``context.check_time()`` in their loops.
        Measurements without a fault are findings of severity info.

        Raises:
            Undecided: The detector cannot decide; the message says why. Earlier findings are kept.
            NeedUnmet: An input is missing that ``needs`` cannot express.
        """


# In the order of a report: files first, then from quick to slow.
_HOMES: Mapping[str, str] = {
    "ModelProvenanceChecker": "bothways.audit.provenance",
    "ClassifierConfidenceAnalyzer": "bothways.audit.confidence",
    "BehaviorConsistencyValidator": "bothways.audit.behaviour",
    "AdversarialRobustness": "bothways.audit.attacks",
    "EmbeddingShiftDetector": "bothways.audit.shift",
    "ContextInjection": "bothways.audit.injection",
    "MembershipInferenceAuditor": "bothways.audit.membership",
    "BackdoorTriggerScanner": "bothways.audit.backdoor.scanner",
}

DETECTORS: tuple[str, ...] = tuple(_HOMES)


def detector_named(name: str) -> Detector:
    """Return a detector by its name, or suggest the nearest name."""
    home = _HOMES.get(name)
    if home is None:
        near = nearest(name, DETECTORS, cutoff=0.3)
        hint = "" if near is None else f" Did you mean {near}?"
        raise InvalidInput(f"expected a detector of {', '.join(DETECTORS)}, got {name!r}.{hint}")
    detector: Detector = getattr(import_module(home), name)()
    return detector


def detectors_named(names: Iterable[str] | None) -> list[Detector]:
    """Return the named detectors in the order of a report, without repeats; all of them for None."""
    if names is None:
        return [detector_named(name) for name in DETECTORS]
    named = {name: detector_named(name) for name in names}
    if not named:
        raise InvalidInput(f"expected at least one detector of {', '.join(DETECTORS)}, got none.")
    return [named[name] for name in DETECTORS if name in named]
