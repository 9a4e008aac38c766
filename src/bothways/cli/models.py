"""``bothways models``: the catalogue of published models, and the card of one."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bothways.choices import FamilyName
from bothways.cli.options import Flag, usage_error
from bothways.cli.terminal import plain_table, print_json, print_table, printable

if TYPE_CHECKING:
    from rich.table import Table

    from bothways.advice import ModelCard, Score

EXAMPLE = """\
Example:
  bothways models --family roberta
  bothways models FacebookAI/roberta-base
  bothways models FacebookAI/roberta-base --download"""


def models(
    name: str | None = None,
    /,
    *,
    family: FamilyName | None = None,
    download: Flag = False,
    revision: str | None = None,
    allow_pickle: Flag = False,
    json: Flag = False,
) -> None:
    """List the catalogue of models, or show one card.

    Parameters are counted here, on models that take no memory. Scores are those of the publications, each with its
    metric, split and source. Any other model of these families opens as well.

    Args:
        name: A model of the catalogue; its name on the hub, or the part behind the slash.
        family: Only this family.
        download: Fetch the model from the hub if it is not here, whether the catalogue knows it or not, and print its
            commit and its folder. A name alone is resolved to a commit once, and stands for it from then on.
        revision: With --download: the commit (40 hexadecimal digits) to fetch.
        allow_pickle: With --download: also fetch weights in a .bin file, where there is nothing else.
        json: Print JSON: a list, or the one card, or what was fetched.
    """
    from bothways.advice import card, catalogue
    from bothways.families import FAMILIES

    if download:
        if name is None or family is not None:
            raise usage_error("--download needs the name of a model, and no --family.")
        _fetch(name, revision, allow_pickle=allow_pickle, json=json)
        return
    if revision is not None or allow_pickle:
        raise usage_error("--revision and --allow-pickle say what to fetch: give --download too.")
    if name is not None:
        if family is not None:
            raise usage_error("give a model's name, or --family, not both.")
        chosen = card(name)
        if json:
            print_json(_as_json(chosen))
        else:
            _print_card(chosen)
        return
    cards = catalogue() if family is None else catalogue(FAMILIES[family])
    if json:
        print_json([_as_json(each) for each in cards])
    else:
        _print_table(cards)


def _fetch(name: str, revision: str | None, *, allow_pickle: bool, json: bool) -> None:
    """Have a model in the local hub cache, and say where it is.

    Raises:
        UnsafeCheckpoint: The hub has its weights in a pickle alone, and that was not allowed.
    """
    from bothways.advice.cards import find_model, model_names
    from bothways.checkpoints.hub import has_weights, locate
    from bothways.errors import UnsafeCheckpoint

    short = {each.split("/")[-1].lower() for each in model_names()}
    full = find_model(name)[1].name if name.lower() in short else name
    found = locate(full, revision=revision, download=True, allow_pickle=allow_pickle)
    if not has_weights(found.folder, allow_pickle=allow_pickle):
        raise UnsafeCheckpoint(
            f"{full!r} has no weights in safetensors on the hub. Add --allow-pickle to fetch a .bin file, "
            "which is scanned before it is read."
        )
    if json:
        print_json({"name": full, "revision": found.revision, "folder": str(found.folder)})
    else:
        print(f"{printable(full)} {f'at {found.revision}' if found.revision else 'of an installed package'}")
        print(printable(str(found.folder)))


def _as_json(card: "ModelCard") -> dict[str, Any]:
    from bothways.advice.cards import published_facts

    sources = published_facts().sources
    counted, lineage = card.counted, card.lineage
    return {
        "name": card.name,
        "family": card.family,
        "lineage": card.title,
        "year": card.year,
        "paper": card.paper,
        "parameters": counted.parameters,
        "embedding_parameters": counted.embedding_parameters,
        "backbone_parameters": counted.backbone_parameters,
        "stated_parameters": [{**asdict(each), "source": sources[each.source]} for each in card.stated],
        "layers": counted.layers,
        "hidden": counted.hidden,
        "heads": counted.heads,
        "context": counted.context,
        "vocabulary": counted.vocabulary,
        "language": card.language,
        "cased": card.cased,
        "made_for": card.made_for,
        "objective": lineage and lineage.objective,
        "innovation": lineage and lineage.innovation,
        "strengths": lineage and lineage.strengths,
        "weaknesses": lineage and lineage.weaknesses,
        "uses": lineage and lineage.uses,
        "scores": [{**asdict(each), "source": sources[each.source]} for each in card.scores],
        "installed": _is_installed(card.name),
    }


def _is_installed(name: str) -> bool:
    """Return whether an installed package carries this model."""
    import importlib.util

    from bothways.checkpoints.hub import EMBEDDED

    return name in EMBEDDED and importlib.util.find_spec(EMBEDDED[name].package) is not None


def _print_table(cards: "Sequence[ModelCard]") -> None:
    from rich.text import Text

    table = plain_table()
    table.add_column("name", overflow="fold")
    for column in ("year", "params", "layers", "hidden", "heads", "context"):
        table.add_column(column, justify="right", no_wrap=True)
    heading = ""
    for card in cards:
        title = f"{card.title} ({card.family})"
        if title != heading:
            table.add_row(Text(title, style="bold"))
            heading = title
        counted = card.counted
        numbers = (card.year, f"{counted.parameters / 1e6:.1f} M", counted.layers, counted.hidden, counted.heads)
        name = f"{card.name} *" if _is_installed(card.name) else card.name
        table.add_row(name, *map(str, numbers), str(counted.context or "any"))
    print_table(table)
    print("\n* is here already. The others: bothways models NAME --download takes them from the model hub.")


def _print_card(card: "ModelCard") -> None:
    table = plain_table()
    table.show_header = False
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for label, value in _card_lines(card):
        table.add_row(label, value)
    print(f"{card.name}\n")
    print_table(table)
    if card.scores:
        print("\nPublished scores, in percent. Only those of one benchmark, metric and split can be compared.\n")
        print_table(_score_table(card.scores))


def _card_lines(card: "ModelCard") -> list[tuple[str, str]]:
    from bothways.advice.cards import published_facts

    counted = card.counted
    parts = f"{counted.embedding_parameters:,} embedding, {counted.backbone_parameters:,} backbone"
    lines = [
        ("family", f"{card.title} ({card.family})"),
        ("year", str(card.year)),
        ("paper", card.paper),
        ("parameters", f"{counted.parameters:,}: {parts}"),
    ]
    for each in card.stated:
        why = f"; {each.differs}" if each.differs else ""
        lines.append(("stated", f"{each.millions:g} M {each.what} ({published_facts().sources[each.source]}){why}"))
    lines.append(("layers", f"{counted.layers} of width {counted.hidden:,} with {counted.heads} heads"))
    lines.append(("context", f"{counted.context:,} tokens" if counted.context else "no fixed limit"))
    lines.append(("vocabulary", f"{counted.vocabulary:,} tokens"))
    if card.language is not None:
        lines.append(("language", f"{card.language}, {'cased' if card.cased else 'lower case only'}"))
    if card.lineage is not None:
        lineage = card.lineage
        lines += [("trained on", lineage.objective), ("innovation", lineage.innovation)]
        lines += [("strengths", each) for each in lineage.strengths]
        lines += [("weaknesses", each) for each in lineage.weaknesses]
        lines += [("best for", each) for each in lineage.uses]
    if card.made_for != "fine-tuning":
        lines.append(("made for", card.made_for))
    # A label stands before the first of its lines only.
    return [(label if at == 0 or lines[at - 1][0] != label else "", value) for at, (label, value) in enumerate(lines)]


def _score_table(scores: "Sequence[Score]") -> "Table":
    from bothways.advice.cards import published_facts

    table = plain_table()
    table.add_column("benchmark")
    table.add_column("metric", overflow="fold")
    table.add_column("split")
    table.add_column("score", justify="right")
    table.add_column("source", overflow="fold")
    for score in scores:
        source = published_facts().sources[score.source] + (f"; {score.note}" if score.note else "")
        table.add_row(score.benchmark, score.metric, score.split, f"{score.value:g}", source)
    return table
