"""The kinds of faults in a model's files: how bad each is, what to do, and the advisory that made it public."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bothways.audit.finding import Evidence, Finding, Severity

DETECTOR = "ModelProvenanceChecker"

_PICKLESCAN = "https://github.com/mmaitre314/picklescan/"


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of fault.

    Attributes:
        severity: The severity.
        remedy: Advice.
        references: Advisories and papers.
    """

    severity: Severity
    remedy: str = ""
    references: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one kind at one place.

    Attributes:
        rule: Name of the kind, a key of `RULES`.
        title: One line that says what was found.
        place: File, and the part of it.
        details: Further evidence; JSON values.
        value: The number that was compared, where there is one.
        threshold: The threshold.
        null: The usual.
        n: Number of files, tensors or entries that were looked at.
    """

    rule: str
    title: str
    place: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    value: float | None = None
    threshold: float | None = None
    null: str = ""
    n: int = 1

    def finding(self) -> Finding:
        """Return the fault as a finding of the detector."""
        rule = RULES[self.rule]
        statistic = str(self.details.get("statistic", "seen in the file"))
        details = {key: value for key, value in self.details.items() if key != "statistic"}
        evidence = Evidence(statistic, self.value, self.threshold, self.null, self.n, details)
        return Finding(
            DETECTOR, rule.severity, self.title, evidence, self.rule, self.place, rule.remedy, rule.references
        )


_NO_PICKLE = "Do not load the file. Ask for the weights in safetensors, which hold no code."
_GET_AGAIN = "Do not open the file. Get it again from where it came, and compare its SHA-256."

RULES: Mapping[str, Rule] = {
    # --- pickles ---
    "pickle-code": Rule(
        Severity.CRITICAL,
        _NO_PICKLE,
        (
            "CVE-2025-1716",
            _PICKLESCAN + "security/advisories/GHSA-vvpj-8cmc-gx39",
            _PICKLESCAN + "issues/13",
            _PICKLESCAN + "issues/14",
        ),
    ),
    "pickle-import": Rule(
        Severity.HIGH,
        "The file needs more than tensors. " + _NO_PICKLE,
        (_PICKLESCAN + "issues/66", "CVE-2026-24747", "CVE-2025-32434"),
    ),
    "pickle-broken": Rule(
        Severity.HIGH,
        "A loader runs such a file up to where it breaks. " + _NO_PICKLE,
        ("nullifAI (ReversingLabs, 2025)", "CVE-2025-71325 (a parser that gives up)"),
    ),
    "pickle-bomb": Rule(Severity.HIGH, _NO_PICKLE, ("CWE-409", "CWE-789")),
    "pickle-hidden": Rule(
        Severity.HIGH,
        "The name of the file hides what it is. " + _NO_PICKLE,
        ("CVE-2025-1889", "CVE-2025-10155"),
    ),
    "pickle-settings": Rule(
        Severity.LOW, "Delete the file: it holds settings of the training, and no model needs it.", ("CVE-2026-1839",)
    ),
    "pickle-data": Rule(Severity.INFO, "Convert it to safetensors; a pickle can be made to run code."),
    # --- archives ---
    "zip-hidden-flags": Rule(Severity.HIGH, _GET_AGAIN, ("CVE-2025-1945",)),
    "zip-names-differ": Rule(Severity.HIGH, _GET_AGAIN, ("CVE-2025-1944",)),
    "zip-wrong-checksum": Rule(Severity.HIGH, _GET_AGAIN, ("CVE-2025-10156",)),
    "zip-duplicate-entry": Rule(Severity.HIGH, _GET_AGAIN, ("CWE-694", "CVE-2013-4787 (Android master key)")),
    "zip-traversal": Rule(Severity.HIGH, "Do not unpack the file.", ("CVE-2018-1002200 (Zip Slip)", "CWE-22")),
    "zip-bomb": Rule(Severity.HIGH, "Do not unpack the file.", ("CVE-2024-0450 (overlapping entries)", "CWE-409")),
    "zip-hidden-bytes": Rule(
        Severity.HIGH,
        "Two programs may read two different archives from it. " + _GET_AGAIN,
        ("nullifAI (ReversingLabs, 2025)", "CWE-436"),
    ),
    "zip-broken": Rule(Severity.HIGH, _GET_AGAIN, ("CVE-2025-1944",)),
    "archive-unread": Rule(
        Severity.HIGH,
        "Nobody has looked into it. Unpack it in a sandbox and audit what it holds.",
        ("nullifAI (ReversingLabs, 2025): 7z instead of zip",),
    ),
    "torchscript": Rule(Severity.HIGH, "The file is a program. Ask for weights in safetensors.", ("CVE-2025-32434",)),
    "keras-code": Rule(
        Severity.CRITICAL,
        "Do not load the file with Keras: a layer of it runs code.",
        ("CVE-2025-1550", "CVE-2024-3660"),
    ),
    # --- safetensors ---
    "safetensors-header": Rule(
        Severity.HIGH, _GET_AGAIN, ("Trail of Bits, Safetensors security assessment (2023)", "CWE-130")
    ),
    "safetensors-bomb": Rule(
        Severity.HIGH, _GET_AGAIN, ("Trail of Bits, Safetensors security assessment (2023)", "CWE-770")
    ),
    # --- settings ---
    "remote-code": Rule(
        Severity.HIGH,
        "Leave trust_remote_code off, or read the code line by line and pin its commit.",
        ("https://huggingface.co/docs/transformers/security", "CVE-2026-5241"),
    ),
    "remote-kernel": Rule(Severity.CRITICAL, "Remove the field; use transformers 5.3.0 or newer.", ("CVE-2026-4372",)),
    "module-type": Rule(
        Severity.HIGH,
        "modules.json names a class outside sentence_transformers, which is imported and called. Read it first.",
        ("https://github.com/huggingface/sentence-transformers/releases/tag/v3.0.0 (trust_remote_code)", "CWE-470"),
    ),
    "template-code": Rule(
        Severity.CRITICAL,
        "Remove the template: rendered outside a sandbox it runs code.",
        ("CVE-2024-34359", "CVE-2026-5760", "CVE-2024-56326"),
    ),
    "template-bomb": Rule(Severity.HIGH, "Remove the template: rendering it takes hours.", ("CWE-834",)),
    "yaml-code": Rule(
        Severity.CRITICAL, "Remove the file: loaders that are not safe run it.", ("CVE-2017-18342", "CVE-2020-14343")
    ),
    "json-bomb": Rule(
        Severity.HIGH, _GET_AGAIN, ("CVE-2020-10735 (huge integers)", "CWE-674 (deep nesting)", "CWE-770")
    ),
    "json-broken": Rule(Severity.MEDIUM, _GET_AGAIN, ("CWE-20",)),
    "json-duplicate-key": Rule(
        Severity.MEDIUM, "Two programs may read two different settings. " + _GET_AGAIN, ("CWE-436",)
    ),
    # --- files ---
    "path-traversal": Rule(
        Severity.HIGH,
        "Do not load the model: it makes a program read files outside its folder.",
        ("CVE-2022-25882", "CVE-2024-27318", "CVE-2026-27489", "CWE-22"),
    ),
    "symlink-escape": Rule(Severity.HIGH, "Remove the link.", ("CVE-2026-34447", "CVE-2026-27489", "CWE-59")),
    "special-file": Rule(Severity.HIGH, "Remove it: a pipe or a device is no file of a model.", ("CWE-67",)),
    "executable": Rule(
        Severity.HIGH, "Remove it: a model needs no programs.", ("MITRE ATLAS AML.T0011.000", "CWE-506")
    ),
    "python-file": Rule(
        Severity.MEDIUM,
        "No setting refers to it. Remove it, or read it before anybody runs it.",
        ("MITRE ATLAS AML.T0011.000",),
    ),
    "unreadable": Rule(Severity.MEDIUM, "Make the file readable, and audit again.", ("CWE-280",)),
    "too-many-files": Rule(Severity.MEDIUM, "Audit a folder that holds the model alone.", ("CWE-400",)),
    # --- claims ---
    "claim-differs": Rule(
        Severity.MEDIUM, "Ask for files that belong together: settings and weights are not of one model.", ("CWE-345",)
    ),
    "claim-bomb": Rule(
        Severity.HIGH, "Do not open the model: its settings ask for more memory than its weights have.", ("CWE-789",)
    ),
    "missing-file": Rule(Severity.MEDIUM, _GET_AGAIN, ("CWE-345",)),
    # --- provenance ---
    "inventory": Rule(Severity.INFO),
    "known-release": Rule(Severity.INFO),
    "lineage": Rule(Severity.INFO),
    "lineage-unrelated": Rule(
        Severity.LOW, "Ask where the model comes from, if it is said to be a fine-tune of the reference."
    ),
    "manifest-differs": Rule(Severity.HIGH, _GET_AGAIN, ("CWE-354",)),
    "manifest-holds": Rule(Severity.INFO),
    "unsigned": Rule(
        Severity.INFO,
        "Sign it: bothways sign FOLDER --key key.pem.",
        ("https://github.com/sigstore/model-transparency",),
    ),
    "signed-unchecked": Rule(Severity.INFO, "Give the signer's public key with --public-key."),
    "signature-holds": Rule(Severity.INFO),
    "signature-fails": Rule(Severity.HIGH, _GET_AGAIN, ("https://github.com/sigstore/model-transparency", "CWE-347")),
}
