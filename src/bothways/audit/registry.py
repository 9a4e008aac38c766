"""Every detector by its name. A detector's module is imported when it is asked for: that of files needs no torch."""

from collections.abc import Iterable, Mapping
from importlib import import_module

from bothways.audit.detector import Detector
from bothways.errors import InvalidInput, nearest

# In the order of a report: files first, then what is quick.
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
    """Return a detector.

    Raises:
        InvalidInput: There is none of this name; the message has the nearest one.
    """
    home = _HOMES.get(name)
    if home is None:
        near = nearest(name, DETECTORS, cutoff=0.3)
        hint = "" if near is None else f" Did you mean {near}?"
        raise InvalidInput(f"expected a detector of {', '.join(DETECTORS)}, got {name!r}.{hint}")
    made: Detector = getattr(import_module(home), name)()
    return made


def detectors_named(names: Iterable[str] | None) -> list[Detector]:
    """Return the detectors of these names, each once and in the order of a report; all of them for None.

    Raises:
        InvalidInput: There is none of a name, or no name was given.
    """
    wanted = list(DETECTORS if names is None else dict.fromkeys(names))
    if not wanted:
        raise InvalidInput(f"expected at least one detector of {', '.join(DETECTORS)}, got none.")
    found = {name: detector_named(name) for name in wanted}
    return [found[name] for name in DETECTORS if name in found]
