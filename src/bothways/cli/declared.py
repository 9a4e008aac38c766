"""Options of commands, made from what tasks declare: dataclasses whose docstrings document each attribute.

An option that is not given is None, so that a default has one home: the declaration.
"""

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, make_dataclass, replace
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from bothways.cli.options import usage_error
from bothways.tasks.registry import SPECS, models, models_with
from bothways.tasks.spec import TaskSpec

CommandT = TypeVar("CommandT", bound=Callable[..., object])

# Groups of options in the order in which a user needs them; all others come after these, by name.
ORDER = ("Data", "Columns", "Task", "Predictions", "Vectors", "Loss", "Training", "Confidence", "As it was saved")
NOTHING = "none"  # what an option is given to be None, where that is not its default


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command.

    Attributes:
        name: In Python.
        type: What its words are converted into.
        help: What it does.
        default: As help shows it; None where there is none to show.
        negative: The name of a flag's opposite.
        nullable: Whether ``none`` stands for None.
    """

    name: str
    type: Any
    help: str
    default: str | None = None
    negative: str | None = None
    nullable: bool = False

    @property
    def spelled(self) -> str:
        """The option as it is typed."""
        return f"--{self.name.replace('_', '-')}"


def options_of(declaration: object) -> list[Option]:
    """Return the options that a dataclass declares, or an instance of one with its values as defaults.

    An attribute with a quoted annotation, or of a type that cannot be typed on a command line, is left out.
    """
    kind = declaration if isinstance(declaration, type) else type(declaration)
    documented, made = attribute_docs(kind), []
    for each in fields(kind):
        default = each.default if isinstance(declaration, type) else getattr(declaration, each.name)
        option = _option(each.name, each.type, default, documented.get(each.name, ""))
        made += [] if option is None else [option]
    return made


def group_of(title: str, options: Iterable[Option]) -> type:
    """Return a dataclass of options, one of each name, which help shows under a title."""
    unique: dict[str, Option] = {}
    for option in options:
        unique.setdefault(option.name, option)
    nullable = frozenset(name for name, each in unique.items() if each.nullable)
    made = make_dataclass(
        "Options",
        [(each.name, _annotated(each), field(default=None)) for each in unique.values()],
        kw_only=True,
        frozen=True,
        namespace={"__module__": __name__, "nullable": nullable},
    )
    order = next((place for place, begun in enumerate(ORDER) if title.startswith(begun)), len(ORDER))
    return Parameter(name="*", group=Group(title, sort_key=order))(made)


def given_of(options: object) -> dict[str, Any]:
    """Return the options of a group that were given, by name."""
    if not is_dataclass(options) or isinstance(options, type):
        return {}
    nullable: frozenset[str] = getattr(options, "nullable", frozenset())
    given = {name: value for name, value in asdict(options).items() if value is not None}
    return {name: None if name in nullable and value == NOTHING else value for name, value in given.items()}


def taking(**groups: type) -> Callable[[CommandT], CommandT]:
    """Let parameters of a command be groups of options that are made when the program starts."""

    def annotated(command: CommandT) -> CommandT:
        for name, group in groups.items():
            command.__annotations__[name] = group | None if fields(group) else Annotated[object, Parameter(parse=False)]
        return command

    return annotated


def of_all_tasks(declaration: Callable[[TaskSpec], Iterable[object]]) -> list[Option]:
    """Return the options of all tasks' declarations, each saying which models have it where others do not.

    What they are where they are left out, a trained model says.
    """
    found: dict[str, tuple[Option, list[TaskSpec]]] = {}
    for spec in SPECS.values():
        for each in declaration(spec):
            for option in options_of(each):
                _, specs = found.setdefault(option.name, (option, []))
                specs += [] if spec in specs else [spec]
    return [
        replace(option, help=f"{option.help} For {models(specs)}.", default=None) for option, specs in found.values()
    ]


def check_known(spec: TaskSpec, call: Literal["data_options", "predict_options"], given: Iterable[str]) -> None:
    """Raise a usage error unless a task has these options of a call.

    Args:
        spec: The task.
        call: Which of its declarations.
        given: Options by their names in Python.
    """
    foreign = [name for name in given if name not in {each.name for each in fields(getattr(spec, call))}]
    if foreign:
        named = " and ".join(f"--{name.replace('_', '-')}" for name in foreign)
        raise usage_error(f"{named} can be given for {models_with(call, foreign[0])}, but this one does not.")


def attribute_docs(kind: type) -> dict[str, str]:
    """Return what the docstrings of a dataclass and its bases say of each attribute, as plain text on one line."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, section = inspect.cleandoc(base.__dict__.get("__doc__") or "").partition("Attributes:\n")
        for name, text in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE):
            found[name] = _plain(text)
    return found


def _plain(text: str) -> str:
    """Return a docstring's text for people at a terminal: values without their marks, no references to modules."""
    text = re.sub(r"``\"?(.*?)\"?``", r"'\1'", " ".join(text.split()))
    text = re.sub(r" \(see `[^`]*`\)|[,;] see `[^`]*`|: `[^`]*`", "", text)
    return re.sub(r"\bNone\b", NOTHING, text.replace("`", ""))


def _option(name: str, annotation: object, default: object, text: str) -> Option | None:
    """Return the option of a declared attribute; None where it cannot be typed."""
    parts = get_args(annotation) if get_origin(annotation) in (typing.Union, types.UnionType) else (annotation,)
    kinds = [part for part in parts if part is not type(None)]
    if len(kinds) != 1 or isinstance(kinds[0], str):
        return None
    (kind,) = kinds
    usual = None if default is MISSING else default
    if get_origin(kind) is Literal:
        nullable = len(parts) > 1 and usual is not None
        choices = (*get_args(kind), NOTHING) if nullable else get_args(kind)
        return Option(name, Literal[choices], text, None if usual is None else str(usual), nullable=nullable)
    if kind is bool:
        return Option(name, bool, text, negative=f"--no-{name.replace('_', '-')}")
    if kind is int:
        # Whole numbers count something, unless 0 is what they begin with.
        least = Number(gte=0 if usual == 0 else 1)
        return Option(name, Annotated[int, Parameter(validator=least)], text, None if usual is None else str(usual))
    if kind in (float, str):
        return Option(name, kind, text, None if usual is None else f"{usual}")
    if get_origin(kind) in (tuple, Sequence) and get_args(kind)[0] in (str, int):
        shown = " ".join(map(str, usual)) if isinstance(usual, tuple) else None
        return Option(name, tuple[get_args(kind)[0], ...], text, shown)  # type: ignore[misc]
    return None


def _annotated(option: Option) -> Any:  # noqa: ANN401 (an annotation)
    shown: Any = False if option.default is None else option.default
    negative: tuple[str, ...] = () if option.negative is None else (option.negative,)
    return Annotated[option.type | None, Parameter(help=option.help, show_default=shown, negative=negative)]
