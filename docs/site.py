"""Hooks of mkdocs: the pages of the site that are made from other files, its navigation, and its links.

The home page is the README. The reference of the command line is made from the help texts, that of the packages from
their ``__all__``, that of inputs and predictions as JSON from the schemas of the tasks. Links to files of the
repository that are no page of the site become plain text.
"""

import ast
import dataclasses
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "bothways"
RESULTS = ROOT / "benchmarks" / "results"

# Guides in the order in which a new user needs them; those that are not named here follow.
GUIDES = (
    "basics",
    "classify",
    "few-examples",
    "tag-and-extract",
    "questions",
    "search",
    "judging",
    "long-texts",
    "confidence",
    "choose-a-model",
    "combine",
    "pretrain",
    "moving",
    "encoder",
)
LONGER_GUIDES = ("auditing", "explaining", "several-machines")
BACKGROUND = ("what-works", "architecture", "glossary", "benchmarks", "LOG")
# Packages whose names users import; the tasks are documented as names of `bothways` itself.
PACKAGES = (
    "retrieval",
    "evaluation",
    "explain",
    "audit",
    "judging",
    "advice",
    "data",
    "text",
    "checkpoints",
    "export",
    "encoder",
    "families",
    "inference",
    "objectives",
)
# Modules beside the packages.
SINGLE_MODULES = ("sklearn", "errors")
# Modules of a package that has no names of its own.
MODULES = {
    "evaluation": (
        *("outcomes", "report", "comparison", "intervals", "prediction_powered"),
        *(f"metrics.{name}" for name in ("classification", "tagging", "question_answering", "ranking", "regression")),
        *("temperature", "calibration", "thresholds", "detectors", "out_of_domain"),
    )
}
# Members of the classes of `bothways` that other packages call and users do not need.
INTERNAL = ("backend", "facts", "fitted", "score", "spec")
# Pages from files of the repository that lie outside docs/.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks/index.md",
    "benchmarks": "benchmarks/index.md",
    "benchmarks/results": "benchmarks/index.md",
    **{f"benchmarks/results/{path.name}": f"benchmarks/{path.name}" for path in sorted(RESULTS.glob("*.md"))},
}
_EXAMPLE = re.compile(r"(?m)^>>> .*(?:\n(?!\s*$).*)*")
_BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


class Examples(Extension):
    """Examples in docstrings as code, without the marks that are for the tests."""

    def on_object(self, *, obj: Object, **others: object) -> None:
        """Fence the examples of one docstring."""
        del others
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            text = obj.docstring.value.replace("  # doctest: +SKIP", "")
            obj.docstring.value = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)


def on_config(config: Any) -> Any:  # noqa: ANN401 (mkdocs' own)
    """Set the navigation."""
    found = {path.stem for path in (ROOT / "docs" / "guides").glob("*.md")}
    guides = [name for name in GUIDES if name in found] + sorted(found.difference(GUIDES))
    longer = [name for name in LONGER_GUIDES if (ROOT / "docs" / f"{name}.md").is_file()]
    background = [name for name in BACKGROUND if (ROOT / "docs" / f"{name}.md").is_file()]
    internals = sorted(path.stem for path in (ROOT / "docs" / "internals").glob("*.md") if path.stem != "index")
    results = [page for page in PAGES.values() if page.startswith("benchmarks/") and page != "benchmarks/index.md"]
    config.nav = [
        {"Home": "index.md"},
        {"Guides": [*(f"guides/{name}.md" for name in guides), *(f"{name}.md" for name in longer)]},
        {
            "Reference": [
                {"Command line": "reference/commands.md"},
                {"JSON of the tasks": "reference/json.md"},
                {
                    "bothways": [
                        "reference/bothways/index.md",
                        *({name: f"reference/bothways/{name}.md"} for name in _own()),
                    ]
                },
                *({f"bothways.{name}": f"reference/{name}.md"} for name in (*PACKAGES, *SINGLE_MODULES)),
            ]
        },
        {
            "Background": [
                *(f"{name}.md" for name in background),
                {"Internals": ["internals/index.md", *(f"internals/{name}.md" for name in internals)]},
                {"Benchmarks": ["benchmarks/index.md", *dict.fromkeys(results)]},
                {"Contributing": "contributing.md"},
                {"Changelog": "changelog.md"},
            ]
        },
    ]
    return config


def on_files(files: Any, *, config: Any) -> Any:  # noqa: ANN401
    """Add the pages that are made."""
    made = {
        page: (ROOT / origin).read_text(encoding="utf-8") for origin, page in PAGES.items() if origin.endswith(".md")
    }
    made["benchmarks/index.md"] += _results()
    made["reference/commands.md"] = _commands()
    made["reference/json.md"] = _schemas()
    for name in _own():
        made[f"reference/bothways/{name}.md"] = (
            f"::: {_home(f'bothways.{name}')}\n    options:\n      heading_level: 1\n"
            f"      filters: ['!^_', '!^({'|'.join(INTERNAL)})$']\n"
        )
    made["reference/bothways/index.md"] = _overview()
    for name in PACKAGES:
        made[f"reference/{name}.md"] = _package(f"bothways.{name}", SOURCE / name / "__init__.py")
    for name in SINGLE_MODULES:
        made[f"reference/{name}.md"] = (
            f"# bothways.{name}\n\n::: bothways.{name}\n    options:\n      show_root_heading: false\n"
        )
    for page, content in made.items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:  # noqa: ANN401
    """Point links to where the linked file is on the site."""
    del config
    origins = {made: origin for origin, made in reversed(PAGES.items()) if origin.endswith(".md")}
    place = page.file.src_uri
    origin = origins.get(place, f"docs/{place}")
    there = {file.src_uri for file in files}
    return _LINK.sub(lambda found: _linked(found, origin, place, there), markdown)


def _linked(found: re.Match[str], origin: str, place: str, there: set[str]) -> str:
    image, text, link = found.groups()
    path, hash_, anchor = link.partition("#")
    if not path or re.match(r"[a-z]+:", link):
        return found[0]
    target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
    page = PAGES.get(target, target.removeprefix("docs/"))
    if page in there:
        return f"{image}[{text}]({posixpath.relpath(page, posixpath.dirname(place) or '.')}{hash_}{anchor})"
    return text if (ROOT / target).exists() else found[0]


def _results() -> str:
    lines = [f"- [{path.stem}](results/{path.name})" for path in sorted(RESULTS.glob("*.md"), reverse=True)]
    return "\n\n## Results\n\n" + "\n".join(lines) + "\n"


def _commands() -> str:
    """Return the help of all commands as one page."""
    from bothways.cli.program import build_app

    app = build_app()
    # As mkdocs makes a table of contents itself, without that of cyclopts; angle brackets are no HTML.
    text = app.generate_docs(output_format="markdown", recursive=True)
    head, _, rest = text.partition("## Table of Contents")
    body = rest[rest.index("\n**") :]
    return f"{head.replace('# bothways', '# Command line', 1)}{_with_examples(body, app)}"


def _with_examples(body: str, app: Any) -> str:  # noqa: ANN401 (of cyclopts)
    """Return the sections of commands, each with the example that ends its help."""
    sections = re.split(r"(?m)^(?=#{2,} bothways )", body)
    made = [sections[0]]
    for section in sections[1:]:
        words = section.splitlines()[0].lstrip("# ").split()[1:]
        command = app
        for word in words:
            command = command[word]
        made.append(f"{section.rstrip()}\n\n{_epilogue(command.help_epilogue or '')}\n\n")
    return "".join(made)


def _epilogue(text: str) -> str:
    """Indented lines as code, all others as text."""
    blocks: list[str] = []
    for indented, lines in _runs(text.splitlines()):
        blocks.append("\n".join(["```console", *(line[2:] for line in lines), "```"] if indented else lines))
    return "\n\n".join(blocks)


def _runs(lines: list[str]) -> list[tuple[bool, list[str]]]:
    runs: list[tuple[bool, list[str]]] = []
    for line in lines:
        indented = line.startswith("  ")
        if not runs or runs[-1][0] != indented:
            runs.append((indented, []))
        runs[-1][1].append(line)
    return runs


def _schemas() -> str:
    """Return the JSON of every task as one page: its inputs, the options and its predictions."""
    from bothways.tasks.registry import SPECS
    from bothways.tasks.schemas import Schemas

    parts = [
        "# JSON of the tasks\n\nWhat each task reads and predicts, as rows of JSON Lines and as the lines that "
        "`bothways predict` prints. `bothways schema` prints the same as JSON Schema (draft 2020-12), also for a "
        "trained model with its own columns, an ensemble, or a model of several tasks."
    ]
    for name, spec in SPECS.items():
        title = name.replace("_", "-")
        parts.append(f"## {title}\n\n{spec.summary}")
        for part, schema in dataclasses.asdict(Schemas.of(spec)).items():
            parts.append(f"### {part.capitalize()} of {title}")
            parts += [_schema(each) for each in schema.get("anyOf", [schema])]
    return "\n\n".join(parts) + "\n"


def _schema(schema: dict[str, Any]) -> str:
    """Return a form of an input, or the entries of an object, in Markdown."""
    if schema.get("type") != "object":
        return f"{_type_of(schema).capitalize()}: {schema['description']}"
    rows = [f"| `{name}` | {kind} | {text} |" for name, kind, text in _entries(schema)]
    head = f"An object (`{schema['title']}`): {schema['description']}"
    return "\n".join([head, "", "| entry | type | |", "| --- | --- | --- |", *rows]) if rows else "None."


def _entries(schema: dict[str, Any], before: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield name, type and description of the entries of an object, and of the objects in its lists."""
    for name, each in schema["properties"].items():
        optional = "" if before or name in schema["required"] or "default" in each else ", optional"
        default = f"; default `{json.dumps(each['default'])}`" if each.get("default") is not None else ""
        yield f"{before}{name}", f"{_type_of(each)}{optional}{default}", each.get("description", "").replace("|", "\\|")
        inner = each
        while "items" in inner and isinstance(inner["items"], dict):
            inner, name = inner["items"], f"{name}[]"
        if "properties" in inner:
            yield from _entries(inner, f"{before}{name}.")


def _type_of(schema: dict[str, Any]) -> str:
    """Return the type of a value in words."""
    if "anyOf" in schema:
        return " or ".join(map(_type_of, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    kind = " or ".join(types)
    if "prefixItems" in schema:
        kind = f"array of {' and '.join(_type_of(each) for each in schema['prefixItems'])}"
    elif isinstance(schema.get("items"), dict):
        kind = kind.replace("array", f"array of {_type_of(schema['items'])}")
    elif isinstance(schema.get("additionalProperties"), dict):
        kind = f"object of {_type_of(schema['additionalProperties'])} by name"
    bounds = [f"{words} {schema[key]:,}" for key, words in _BOUNDS.items() if key in schema]
    return f"{kind} {' '.join(bounds)}" if bounds else kind


def _names(init: Path = SOURCE / "__init__.py") -> list[str]:
    """Return the public names of a package, without its version."""
    tree = ast.parse(init.read_text(encoding="utf-8"))
    listed: list[str] = next(
        (
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
        ),
        [],
    )
    return [name for name in listed if not name.startswith("__")]


def _own() -> list[str]:
    """Return the names of `bothways` that have a page each; errors stand together on theirs."""
    return [name for name in _names() if not _home(f"bothways.{name}").startswith("bothways.errors.")]


def _introduction(path: Path, name: str | None = None) -> str:
    """Return the docstring of a file, or of a class or function in it."""
    node: Any = ast.parse(path.read_text(encoding="utf-8"))
    if name is not None:
        node = next(each for each in node.body if getattr(each, "name", None) == name)
    return (ast.get_docstring(node) or "").replace("``", "`")


def _overview() -> str:
    """Return the page of the package itself: a line for each name."""
    rows = []
    for name in _own():
        module, _, last = _home(f"bothways.{name}").rpartition(".")
        path = SOURCE.parent.joinpath(*module.split(".")).with_suffix(".py")
        rows.append(f"| [{name}]({name}.md) | {_introduction(path, last).splitlines()[0]} |")
    return "\n".join(
        [f"# bothways\n\n{_introduction(SOURCE / '__init__.py')}\n", "| name | |", "| --- | --- |", *rows, ""]
    )


def _package(name: str, init: Path) -> str:
    """Return a page with the public names of a package."""
    elsewhere = {_home(f"bothways.{each}") for each in _own()}
    modules = MODULES.get(name.removeprefix("bothways."), ())
    homes = [f"{name}.{each}" for each in modules] or [_home(f"{name}.{each}") for each in _names(init)]
    # A package that lists no names is used by its modules.
    modules = [f"{name}.{path.stem}" for path in sorted(init.parent.glob("*.py")) if path.stem != "__init__"]
    sections = [f"::: {home}\n" for home in homes or modules if home not in elsewhere]
    return f"# {name}\n\n{_introduction(init)}\n\n" + "\n".join(sections)


def _home(path: str) -> str:
    """Return where a name is defined, which may be a package further down."""
    module, _, name = path.rpartition(".")
    init = SOURCE.parent.joinpath(*module.split("."), "__init__.py")
    if not init.is_file():
        return path
    for node in ast.walk(ast.parse(init.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == name for alias in node.names):
            return _home(f"{node.module}.{name}")
    return path
