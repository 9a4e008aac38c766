"""``bothways models``: the published models that can be opened."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from bothways.cli.options import Family, Flag
from bothways.cli.terminal import plain_table, print_json, print_table

if TYPE_CHECKING:
    from bothways.families.catalogue import PublishedSize

EXAMPLE = """\
Example:
  bothways models --family roberta"""


def models(*, family: Family | None = None, json: Flag = False) -> None:
    """The families of encoders and their published sizes. Any other model of these families opens as well.

    Args:
        family: Only this one.
        json: Print a JSON list.
    """
    from bothways.families import FAMILIES
    from bothways.families.catalogue import published_sizes

    chosen = FAMILIES.values() if family is None else [FAMILIES[family]]
    sizes = published_sizes(*chosen)
    if json:
        print_json([{**asdict(size), "installed": _is_installed(size.name)} for size in sizes])
    else:
        _print_table(sizes)


def _is_installed(name: str) -> bool:
    """Whether an installed package carries this model."""
    import importlib.util

    from bothways.checkpoints.hub import EMBEDDED

    return name in EMBEDDED and importlib.util.find_spec(EMBEDDED[name].package) is not None


def _print_table(sizes: "tuple[PublishedSize, ...]") -> None:
    table = plain_table()
    table.add_column("name", overflow="fold")
    table.add_column("family")
    for heading in ("year", "parameters", "layers", "hidden", "heads", "context"):
        table.add_column(heading, justify="right", no_wrap=True)
    for size in sizes:
        name = f"{size.name} *" if _is_installed(size.name) else size.name
        numbers = (size.year, f"{size.parameters / 1e6:.1f} M", size.layers, size.hidden, size.heads, size.context)
        table.add_row(name, size.family, *map(str, numbers))
    print_table(table)
    print("\n* is here already. The others: a folder, or --revision COMMIT --download to take them from the model hub.")
