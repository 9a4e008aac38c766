"""Sizes, types and imports of the package, read from its source with ``ast``: what the ceilings measure.

Imports inside functions and under ``TYPE_CHECKING`` count like all others.
"""

import ast
import functools
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "src" / "bothways"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
RELATIVE_CLAUSE = re.compile(r"Return (what|which|whether|how|where|of)\b")


@dataclass(frozen=True)
class Import:
    """One statement that imports, and where it stands."""

    names: list[str]
    """Dotted names; ``"<computed>"`` for one that no reader of the source can follow."""
    line: int
    inside_a_function: bool
    for_types_alone: bool
    """It stands under ``if TYPE_CHECKING``."""

    @property
    def targets(self):
        """Names in the package, without ``bothways``."""
        return [name.partition(".")[2] for name in self.names if name.split(".")[0] == "bothways"]


@dataclass
class Module:
    """One module of the package."""

    name: str
    """Its path inside the package, dotted; a package's own module ends with ``__init__``."""
    source: str

    @functools.cached_property
    def tree(self):
        return ast.parse(self.source)

    @property
    def path(self):
        """The path of its file, from the package on."""
        return self.name.replace(".", "/") + ".py"

    @property
    def folder(self):
        """The layer that the module belongs to: the first folder, or nothing for a module at the root."""
        first, _, rest = self.name.partition(".")
        return first if rest else ""

    @functools.cached_property
    def nodes(self):
        """Every node, operators and contexts aside."""
        return [node for node, _, _ in self._walked]

    @functools.cached_property
    def imports(self):
        """The statements that import; ``importlib.import_module("...")`` counts."""
        return [
            Import(names, node.lineno, inside, for_types)
            for node, inside, for_types in self._walked
            if isinstance(node, (ast.Import, ast.ImportFrom, ast.Call)) and (names := self._imported(node))
        ]

    @functools.cached_property
    def _walked(self):
        """Each node, and whether it stands in the body of a function and under ``if TYPE_CHECKING``."""
        found, waiting = [], [(self.tree, False, False)]
        while waiting:
            node, *stands = waiting.pop()
            found.append((node, *stands))
            body = (
                stands[0] or isinstance(node, FUNCTIONS),
                stands[1] or (isinstance(node, ast.If) and _names(node.test, "TYPE_CHECKING")),
            )
            for name in node._fields:
                value = getattr(node, name, None)
                children = value if isinstance(value, list) else (value,)
                nodes = [child for child in children if isinstance(child, ast.AST) and child._fields]
                waiting += [(child, *(body if name == "body" else stands)) for child in nodes]
        return found

    def _imported(self, node):
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            return [f"{_start(node, self.name)}.{alias.name}" for alias in node.names]
        if _called(node) in ("import_module", "__import__"):
            literal = bool(node.args) and isinstance(node.args[0], ast.Constant)
            return [str(node.args[0].value) if literal else "<computed>"]
        return []


def _start(node, module):
    """The dotted name that ``from ... import`` begins with."""
    path = ["bothways", *module.split(".")]
    return ".".join([*(path[: len(path) - node.level] if node.level else []), *([node.module] if node.module else [])])


def _called(node):
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


@functools.cache
def modules():
    """Every module of the package."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return [
        Module(".".join(path.relative_to(PACKAGE).with_suffix("").parts), path.read_text(encoding="utf-8"))
        for path in paths
    ]


# --- sizes ---


def lines(*patterns):
    """Lines of the files of the repository that match."""
    return sum(
        len(path.read_text(encoding="utf-8").splitlines())
        for pattern in patterns
        for path in REPOSITORY.glob(pattern)
        if path.is_file()
    )


def file_lengths(of=None):
    return {module.name: len(module.source.splitlines()) for module in of or modules()}


def function_lengths(of=None):
    """Lines of each function, from its ``def`` on."""
    return {
        f"{module.name}:{node.name}:{node.lineno}": node.end_lineno - node.lineno + 1
        for module in of or modules()
        for node in module.nodes
        if isinstance(node, FUNCTIONS)
    }


def files_at_the_root():
    """Python files that stand directly in each folder of the package."""
    return Counter(path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


# --- classes ---


def _classes(of):
    """Each class of a module's top level, with the classes of the package that it is made from."""
    homes = {(module.name, node.name): node for module in of for node in module.tree.body if _is_class(node)}
    found = {}
    for module in of:
        known = {
            alias.asname or alias.name: (f"{start}.__init__", alias.name)
            if (f"{start}.__init__", alias.name) in homes
            else (start, alias.name)
            for node in module.nodes
            if isinstance(node, ast.ImportFrom)
            for start in [_start(node, module.name).removeprefix("bothways").removeprefix(".")]
            for alias in node.names
        }
        for node in filter(_is_class, module.tree.body):
            bases = []
            for base in node.bases:
                name = base.value if isinstance(base, ast.Subscript) else base
                if isinstance(name, ast.Name):
                    here = (module.name, name.id)
                    key = here if here in homes else known.get(name.id)
                    bases += [key] if key in homes else []
            found[module.name, node.name] = (node, bases)
    return found


def _is_class(node):
    return isinstance(node, ast.ClassDef)


def _own_members(node):
    """Public names that a class defines: methods, fields, and what its methods set on ``self``."""
    names = set()
    for item in node.body:
        if isinstance(item, FUNCTIONS):
            names.add(item.name)
        targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            names |= {inner.attr} if getattr(inner.value, "id", "") == "self" else set()
    return {name for name in names if not name.startswith("_")}


def class_members(of=None):
    """The number of public members of each class, own and inherited from classes of the package.

    Classes of other packages (``nn.Module``, ``Protocol``) bring nothing. Those of keyword arguments are left out.
    """
    found = _classes(of or modules())

    def members(key):
        node, bases = found[key]
        return _own_members(node).union(*map(members, bases))

    def is_typed_dict(key):
        node, bases = found[key]
        return any(getattr(base, "id", "") == "TypedDict" for base in node.bases) or any(map(is_typed_dict, bases))

    return {":".join(key): len(members(key)) for key in found if not is_typed_dict(key)}


def class_depths(of=None):
    """The depth of each class, in classes of the package one above the other: 1 for one that inherits none.

    Errors are left out: what a user catches is a tree.
    """
    found = _classes(of or modules())

    def depth(key):
        return 1 + max(map(depth, found[key][1]), default=0)

    return {":".join(key): depth(key) for key in found if key[0] != "errors"}


# --- types ---


def names(wanted, folders=None, of=None):
    """Count a name in some folders or in all, alone or after a dot, in code and in annotations that are strings."""
    return sum(
        _names(node, wanted)
        for module in of or modules()
        if folders is None or module.folder in folders
        for node in [*module.nodes, *_texts_of_annotations(module)]
    )


def _names(node, wanted):
    return (isinstance(node, ast.Name) and node.id == wanted) or (
        isinstance(node, ast.Attribute) and node.attr == wanted
    )


def _texts_of_annotations(module):
    for node in module.nodes:
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            for part in ast.walk(annotation) if annotation else ():
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isprintable():
                    try:
                        yield from ast.walk(ast.parse(part.value, mode="eval"))
                    except SyntaxError:
                        continue


def calls(wanted, folders=None, of=None):
    """Calls of a function by name."""
    return sum(
        isinstance(node, ast.Call) and _called(node) == wanted
        for module in of or modules()
        if folders is None or module.folder in folders
        for node in module.nodes
    )


def defaulted_attributes(of=None):
    """Calls ``getattr(x, "name", default)``: an interface is missing."""
    return sum(
        isinstance(node, ast.Call)
        and _called(node) == "getattr"
        and len(node.args) == 3
        and isinstance(node.args[1], ast.Constant)
        for module in of or modules()
        for node in module.nodes
    )


def ignored_types(of=None):
    return sum(len(re.findall(r"#\s*type:\s*ignore", module.source)) for module in of or modules())


# --- imports ---


def deferred_imports(of=None):
    """Statements in functions that import modules of our own."""
    return sum(
        found.inside_a_function and bool(found.targets) for module in of or modules() for found in module.imports
    )


def circles(of=None):
    """Sets of modules of one folder that import each other."""
    of = of or modules()
    known = {module.name for module in of}
    edges = defaultdict(set)
    for module in of:
        for found in module.imports:
            targets = {_module_of(target, known) for target in found.targets} - {None, module.name}
            edges[module.name] |= {target for target in targets if target.split(".")[0] == module.folder}
    return _circles(edges, known)


def circles_at_import(of=None):
    """Sets of modules of all folders that need each other while they are imported.

    A module also needs the packages above what it imports, if it does not stand in them itself. Without such circles
    every module can be imported first.
    """
    of = of or modules()
    known = {module.name for module in of}
    edges = defaultdict(set)
    for module in of:
        for found in module.imports:
            if found.inside_a_function or found.for_types_alone:
                continue
            for target in {_module_of(target, known) for target in found.targets} - {None, module.name}:
                parents = [target[:place] for place, letter in enumerate(target) if letter == "."]
                above = {f"{name}.__init__" for name in parents if not module.name.startswith(f"{name}.")}
                edges[module.name] |= {target} | (above & known)
    return _circles(edges, known)


def _circles(edges, known):
    reached = {name: _reached(name, edges) for name in known}
    found = {frozenset(other for other in reached[name] if name in reached[other]) for name in known}
    return sorted(sorted(circle) for circle in found if len(circle) > 1)


def _module_of(target, known):
    """The module that an imported name stands in."""
    parts = target.split(".")
    for end in (len(parts), len(parts) - 1):
        start = ".".join(parts[:end])
        for name in (start, f"{start}.__init__"):
            if name in known:
                return name
    return None


def _reached(start, edges):
    seen, waiting = set(), [start]
    while waiting:
        for target in edges[waiting.pop()] - seen:
            seen.add(target)
            waiting.append(target)
    return seen


# --- words ---


def inverted_returns(of=None):
    """Docstrings that go on with a relative clause after "Return"."""
    documented = (ast.Module, ast.ClassDef, *FUNCTIONS)
    return sum(
        bool(RELATIVE_CLAUSE.match(ast.get_docstring(node) or ""))
        for module in of or modules()
        for node in module.nodes
        if isinstance(node, documented)
    )
