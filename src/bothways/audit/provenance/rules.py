"""Rules for the faults of a model's files: severity, title, remedy, and references such as security advisories."""

from collections.abc import Mapping

from bothways.audit.finding import Evidence, Finding, Rule, Rules, Severity

_PICKLESCAN = "https://github.com/mmaitre314/picklescan/"
_NULLIFAI = "nullifAI (ReversingLabs, 2025)"
_SAFETENSORS = "Trail of Bits, Safetensors security assessment (2023)"
_SIGSTORE = "https://github.com/sigstore/model-transparency"
_NO_PICKLE = "Do not load the file. Ask for the weights in safetensors, which hold no code."
_GET_AGAIN = "Do not open the file. Download it again, and compare its SHA-256."
_NO_UNPACKING = "Do not unpack the file."

_INFO, _LOW, _MEDIUM, _HIGH, _CRITICAL = Severity

RULES = Rules(
    "ModelProvenanceChecker",
    # --- pickles ---
    Rule(
        "pickle-code",
        _CRITICAL,
        "a pickle {what}",
        _NO_PICKLE,
        (
            "CVE-2025-1716",
            _PICKLESCAN + "security/advisories/GHSA-vvpj-8cmc-gx39",
            _PICKLESCAN + "issues/13",
            _PICKLESCAN + "issues/14",
        ),
    ),
    Rule(
        "pickle-import",
        _HIGH,
        "a pickle {what}",
        "The file needs more than tensors. " + _NO_PICKLE,
        (_PICKLESCAN + "issues/66", "CVE-2026-24747", "CVE-2025-32434"),
    ),
    Rule(
        "pickle-broken",
        _HIGH,
        "{what}",
        "A loader runs such a file up to the point where it breaks. " + _NO_PICKLE,
        (_NULLIFAI, "CVE-2025-71325 (a parser that gives up)"),
    ),
    Rule("pickle-bomb", _HIGH, "a pickle {what}", _NO_PICKLE, ("CWE-409", "CWE-789")),
    Rule(
        "pickle-hidden",
        _HIGH,
        "a pickle with the suffix {what}",
        "The name of the file hides what it is. " + _NO_PICKLE,
        ("CVE-2025-1889", "CVE-2025-10155"),
    ),
    Rule(
        "pickle-settings",
        _LOW,
        "a pickle {what}",
        "Delete the file: it holds settings of the training, and no model needs it.",
        ("CVE-2026-1839",),
    ),
    Rule(
        "pickle-data",
        _INFO,
        "a pickle that imports only what tensors and plain data need",
        "Convert it to safetensors; a pickle can run code.",
    ),
    # --- archives ---
    Rule(
        "zip-hidden-flags",
        _HIGH,
        "an entry flagged as encrypted, though loaders read it",
        _GET_AGAIN,
        ("CVE-2025-1945",),
    ),
    Rule(
        "zip-names-differ",
        _HIGH,
        "an entry whose name in its header differs from the central directory",
        _GET_AGAIN,
        ("CVE-2025-1944",),
    ),
    Rule(
        "zip-wrong-checksum",
        _HIGH,
        "an entry with a wrong checksum, which loaders ignore",
        _GET_AGAIN,
        ("CVE-2025-10156",),
    ),
    Rule(
        "zip-duplicate-entry",
        _HIGH,
        "an archive with two entries named {what}",
        _GET_AGAIN,
        ("CWE-694", "CVE-2013-4787 (Android master key)"),
    ),
    Rule("zip-traversal", _HIGH, "{what}", _NO_UNPACKING, ("CVE-2018-1002200 (Zip Slip)", "CWE-22")),
    Rule("zip-bomb", _HIGH, "{what}", _NO_UNPACKING, ("CVE-2024-0450 (overlapping entries)", "CWE-409")),
    Rule(
        "zip-hidden-bytes",
        _HIGH,
        "{what}",
        "Two programs may read two different archives from it. " + _GET_AGAIN,
        (_NULLIFAI, "CWE-436"),
    ),
    Rule("zip-broken", _HIGH, "{what}", _GET_AGAIN, ("CVE-2025-1944",)),
    Rule(
        "archive-unread",
        _HIGH,
        "{what}",
        "It was not inspected. Unpack it in a sandbox and audit its content.",
        (_NULLIFAI + ": 7z instead of zip",),
    ),
    Rule(
        "torchscript",
        _HIGH,
        "a TorchScript archive, which is a program",
        "The file is a program. Ask for weights in safetensors.",
        ("CVE-2025-32434",),
    ),
    Rule(
        "keras-code",
        _CRITICAL,
        "{what}",
        "Do not load the file with Keras: one of its layers runs code.",
        ("CVE-2025-1550", "CVE-2024-3660"),
    ),
    # --- safetensors ---
    Rule("safetensors-header", _HIGH, "{what}", _GET_AGAIN, (_SAFETENSORS, "CWE-130")),
    Rule("safetensors-bomb", _HIGH, "{what}", _GET_AGAIN, (_SAFETENSORS, "CWE-770")),
    # --- settings ---
    Rule(
        "remote-code",
        _HIGH,
        "{what}",
        "Leave trust_remote_code off, or read the code line by line and pin its commit.",
        ("https://huggingface.co/docs/transformers/security", "CVE-2026-5241"),
    ),
    Rule(
        "remote-kernel",
        _CRITICAL,
        "{what} names a repository whose code is run",
        "Remove the field; use transformers 5.3.0 or newer.",
        ("CVE-2026-4372",),
    ),
    Rule(
        "module-type",
        _HIGH,
        "modules.json names a class outside sentence_transformers: {what}",
        "Loaders import and call this class. Read its code before you load the model.",
        ("https://github.com/huggingface/sentence-transformers/releases/tag/v3.0.0 (trust_remote_code)", "CWE-470"),
    ),
    Rule(
        "template-code",
        _CRITICAL,
        "a template that accesses Python internals: {what}",
        "Remove the template: rendered outside a sandbox it runs code.",
        ("CVE-2024-34359", "CVE-2026-5760", "CVE-2024-56326"),
    ),
    Rule(
        "template-bomb",
        _HIGH,
        "a template with an endless loop or a huge power: {what}",
        "Remove the template: rendering it takes hours.",
        ("CWE-834",),
    ),
    Rule(
        "yaml-code",
        _CRITICAL,
        "a YAML file that creates Python objects",
        "Remove the file: unsafe loaders run it.",
        ("CVE-2017-18342", "CVE-2020-14343"),
    ),
    Rule(
        "json-bomb",
        _HIGH,
        "a JSON file that is unsafe to parse: {what}",
        _GET_AGAIN,
        ("CVE-2020-10735 (huge integers)", "CWE-674 (deep nesting)", "CWE-770"),
    ),
    Rule("json-broken", _MEDIUM, "{what}", _GET_AGAIN, ("CWE-20",)),
    Rule(
        "json-duplicate-key",
        _MEDIUM,
        "settings with a duplicate key",
        "Two programs may read two different settings. " + _GET_AGAIN,
        ("CWE-436",),
    ),
    # --- files ---
    Rule(
        "path-traversal",
        _HIGH,
        "{what}",
        "Do not load the model: it makes a program read files outside its folder.",
        ("CVE-2022-25882", "CVE-2024-27318", "CVE-2026-27489", "CWE-22"),
    ),
    Rule("symlink-escape", _HIGH, "{what}", "Remove the link.", ("CVE-2026-34447", "CVE-2026-27489", "CWE-59")),
    Rule(
        "special-file",
        _HIGH,
        "a pipe, a socket or a device",
        "Remove it: a model needs only regular files.",
        ("CWE-67",),
    ),
    Rule(
        "executable", _HIGH, "{what}", "Remove it: a model needs no programs.", ("MITRE ATLAS AML.T0011.000", "CWE-506")
    ),
    Rule(
        "python-file",
        _MEDIUM,
        "{what}",
        "No setting refers to it. Remove it, or read it before anybody runs it.",
        ("MITRE ATLAS AML.T0011.000",),
    ),
    Rule("unreadable", _MEDIUM, "{what}", "Make the file readable, and audit again.", ("CWE-280",)),
    Rule(
        "too-many-files",
        _MEDIUM,
        "more files or folders than any model has",
        "Audit a folder that contains only the model.",
        ("CWE-400",),
    ),
    # --- claims ---
    Rule(
        "claim-differs",
        _MEDIUM,
        "{what}",
        "Ask for files that belong together: settings and weights are from different models.",
        ("CWE-345",),
    ),
    Rule(
        "claim-bomb",
        _HIGH,
        "{what}",
        "Do not open the model: its settings ask for more memory than its weights need.",
        ("CWE-789",),
    ),
    Rule("missing-file", _MEDIUM, "a shard index names {what}, which is missing", _GET_AGAIN, ("CWE-345",)),
    # --- provenance ---
    Rule("inventory", _INFO, "{what}"),
    Rule("known-release", _INFO, "the released weights of {what}"),
    Rule("lineage", _INFO, "{what}"),
    Rule(
        "lineage-unrelated",
        _LOW,
        "{what}",
        "Ask where the model comes from, if it is said to be a fine-tune of the reference.",
    ),
    Rule("manifest-differs", _HIGH, "{what}", _GET_AGAIN, ("CWE-354",)),
    Rule("manifest-holds", _INFO, "{what}"),
    Rule("unsigned", _INFO, "not signed", "Sign it: bothways sign FOLDER --key key.pem.", (_SIGSTORE,)),
    Rule(
        "signed-unchecked",
        _INFO,
        "signed, but no public key was given to check it",
        "Give the signer's public key with --public-key.",
    ),
    Rule("signature-holds", _INFO, "the signature matches the public key {what}"),
    Rule("signature-fails", _HIGH, "{what}", _GET_AGAIN, (_SIGSTORE, "CWE-347")),
)


def fault(
    rule: str,
    place: str,
    what: str = "",
    *,
    details: Mapping[str, object] | None = None,
    statistic: str = "seen in the file",
    value: float | None = None,
    threshold: float | None = None,
    null: str = "",
    n: int = 1,
) -> Finding:
    """Return a finding on a file, or on an entry as ``file!entry``; ``what`` fills the title, ``n`` counts items."""
    return RULES.finding(rule, Evidence(statistic, value, threshold, null, n, details or {}), location=place, what=what)
