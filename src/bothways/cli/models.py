"""``bothways models``: the published models that can be opened."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from bothways.cli.options import FamilyName, Flag
from bothways.cli.terminal import plain_table, print_json, print_table

if TYPE_CHECKING:
    from bothways.families import Family

EXAMPLE = """\
Example:
  bothways models --family roberta"""


def models(*, family: FamilyName | None = None, json: Flag = False) -> None:
    """The families of encoders and their published sizes. Any other model of these families opens as well.

    Args:
        family: Only this one.
        json: Print a JSON list.
    """
    from bothways.families import FAMILIES
    from bothways.families.catalogue import published_sizes

    chosen = tuple(FAMILIES.values()) if family is None else (FAMILIES[family],)
    if json:
        sizes = (size for each in chosen for size in published_sizes(each))
        print_json([{**asdict(size), "installed": _is_installed(size.name)} for size in sizes])
    else:
        _print_table(chosen)


def _is_installed(name: str) -> bool:
    """Whether an installed package carries this model."""
    import importlib.util

    from bothways.checkpoints.hub import EMBEDDED

    return name in EMBEDDED and importlib.util.find_spec(EMBEDDED[name].package) is not None


def _print_table(families: "tuple[Family, ...]") -> None:
    from rich.text import Text

    from bothways.families.catalogue import published_sizes

    table = plain_table()
    table.add_column("name", overflow="fold")
    for heading in ("year", "params", "layers", "hidden", "heads", "context"):
        table.add_column(heading, justify="right", no_wrap=True)
    for family in families:
        table.add_row(Text(f"{family.title} ({family.model_type})", style="bold"))
        for size in published_sizes(family):
            numbers = (size.year, f"{size.parameters / 1e6:.1f} M", size.layers, size.hidden, size.heads, size.context)
            table.add_row(f"{size.name} *" if _is_installed(size.name) else size.name, *map(str, numbers))
    print_table(table)
    print("\n* is here already. The others: a folder, or --revision COMMIT --download to take them from the model hub.")
