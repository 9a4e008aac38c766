"""``bothways models`` and ``bothways recommend``: the catalogue, and the choice of a model."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from bothways import advice, checkpoints
from bothways.choices import Constraint, FamilyName, Language
from bothways.cli import options as opt
from bothways.cli.printing import print_json, print_table, printable
from bothways.errors import UnsafeCheckpoint
from bothways.progress import duration
from bothways.threads import choose_threads

if TYPE_CHECKING:
    from bothways.advice import ModelCard, Ranked, Recommendation, Score

_MOST_LOCAL = 10  # local models to list

_MODELS_EXAMPLE = """\
Example:
  bothways models --family roberta
  bothways models FacebookAI/roberta-base
  bothways models FacebookAI/roberta-base --download"""


@opt.command(_MODELS_EXAMPLE)
def models(
    name: Annotated[str | None, Parameter(name="--model")] = None,
    *,
    family: FamilyName | None = None,
    download: opt.Flag = False,
    revision: str | None = None,
    allow_pickle: opt.Flag = False,
    json: opt.Flag = False,
) -> None:
    """List the catalogue of models, or show one card.

    Parameter counts are computed without building the models. Scores are published ones, with metric, split and source.
    Models of these families that are not in the catalogue can be used as well.

    Args:
        name: A model of the catalogue: its name on the hub, or the part after the slash.
        family: List only this family.
        download: Download the model from the hub if there is no local copy, and print its commit and folder. The model
            need not be in the catalogue. Later calls use the commit of the first download.
        revision: With --download: the commit to download (40 hexadecimal digits).
        allow_pickle: With --download: also download weights in a .bin file, if there are no others.
        json: Print JSON: a list of models, one card, or the name, commit and folder of the downloaded model.
    """
    if download:
        if name is None or family is not None:
            raise opt.usage_error("--download needs the name of a model, and no --family.")
        _fetch(name, revision, allow_pickle=allow_pickle, json=json)
        return
    if revision is not None or allow_pickle:
        raise opt.usage_error("--revision and --allow-pickle need --download.")
    if name is not None:
        if family is not None:
            raise opt.usage_error("expected the name of a model or --family, got both.")
        chosen = advice.card(name)
        if json:
            print_json(_card_as_json(chosen))
        else:
            _print_card(chosen)
        return
    cards = advice.catalogue(family)
    if json:
        print_json([_card_as_json(each) for each in cards])
    else:
        _print_catalogue(cards)


def _fetch(name: str, revision: str | None, *, allow_pickle: bool, json: bool) -> None:
    """Download a model into the local hub cache, and print its commit and folder."""
    short = {each.split("/")[-1].lower() for each in advice.model_names()}
    full = advice.find_model(name)[1].name if name.lower() in short else name
    located = checkpoints.locate(full, revision=revision, download=True, allow_pickle=allow_pickle)
    if not checkpoints.has_weights(located.folder, allow_pickle=allow_pickle):
        raise UnsafeCheckpoint(
            f"{full!r} has no weights in safetensors on the hub. Add --allow-pickle to download a .bin file, which is "
            "scanned before it is read."
        )
    if json:
        print_json({"name": full, "revision": located.revision, "folder": str(located.folder)})
    else:
        print(f"{printable(full)} {f'at {located.revision}' if located.revision else 'of an installed package'}")
        print(printable(str(located.folder)))


def _card_as_json(card: "ModelCard") -> dict[str, Any]:
    sources = advice.published_facts().sources
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
        "installed": checkpoints.is_installed(card.name),
    }


def _print_catalogue(cards: "Sequence[ModelCard]") -> None:
    from rich.text import Text

    rows: list[tuple[str | Text, ...]] = []
    heading = ""
    for card in cards:
        title = f"{card.title} ({card.family})"
        if title != heading:
            rows.append((Text(title, style="bold"),))
            heading = title
        counted = card.counted
        numbers = (card.year, f"{counted.parameters / 1e6:.1f} M", counted.layers, counted.hidden, counted.heads)
        name = f"{card.name} *" if checkpoints.is_installed(card.name) else card.name
        rows.append((name, *map(str, numbers), str(counted.context or "any")))
    print_table(("~name", ">year", ">params", ">layers", ">hidden", ">heads", ">context"), rows)
    print("\n* is installed. Download others from the model hub: bothways models NAME --download")


def _print_card(card: "ModelCard") -> None:
    from rich.text import Text

    lines = _card_lines(card)
    # Show a label on its first line only.
    labels = ["" if at and label == lines[at - 1][0] else label for at, (label, _) in enumerate(lines)]
    print(f"{card.name}\n")
    rows = ((Text(label, "bold"), value) for label, (_, value) in zip(labels, lines, strict=True))
    print_table(("<", "~"), rows, header=False)
    if card.scores:
        print("\nPublished scores, in percent. Compare only scores of the same benchmark, metric and split.\n")
        _print_scores(card.scores)


def _card_lines(card: "ModelCard") -> list[tuple[str, str]]:
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
        lines.append(
            ("stated", f"{each.millions:g} M {each.what} ({advice.published_facts().sources[each.source]}){why}")
        )
    lines.append(("layers", f"{counted.layers} of width {counted.hidden:,} with {counted.heads} heads"))
    lines.append(("context", f"{counted.context:,} tokens" if counted.context else "no fixed limit"))
    lines.append(("vocabulary", f"{counted.vocabulary:,} tokens"))
    if card.language is not None:
        lines.append(("language", f"{card.language}, {'cased' if card.cased else 'uncased'}"))
    if card.lineage is not None:
        lineage = card.lineage
        lines += [("trained on", lineage.objective), ("innovation", lineage.innovation)]
        lines += [("strengths", each) for each in lineage.strengths]
        lines += [("weaknesses", each) for each in lineage.weaknesses]
        lines += [("best for", each) for each in lineage.uses]
    if card.made_for != "fine-tuning":
        lines.append(("made for", card.made_for))
    return lines


def _print_scores(scores: "Sequence[Score]") -> None:
    rows = []
    for score in scores:
        source = advice.published_facts().sources[score.source] + (f"; {score.note}" if score.note else "")
        rows.append((score.benchmark, score.metric, score.split, f"{score.value:g}", source))
    print_table(("benchmark", "~metric", "split", ">score", "~source"), rows)


_RECOMMEND_EXAMPLE = """\
Example:
  bothways recommend --task sentiment --constraint latency --max-memory-mb 800
  bothways recommend --task ner --constraint latency \\
    --measure --max-latency-ms 50"""


@opt.command(_RECOMMEND_EXAMPLE)
def recommend(
    *,
    task: str,
    constraint: Constraint = "accuracy",
    max_latency_ms: opt.PositiveFloat | None = None,
    max_memory_mb: opt.PositiveFloat | None = None,
    context: opt.PositiveInt | None = None,
    training_rows: opt.PositiveInt = 2000,
    max_training_hours: opt.PositiveFloat = 2.0,
    language: Language = "english",
    most: opt.PositiveInt = 5,
    measure: opt.Flag = False,
    json: opt.Json = False,
    threads: opt.Threads = None,
) -> None:
    """Recommend models for a task, with reasons.

    Prints the local models, the kind of model that the task needs, and a ranking of models. Models that do not fit into
    the free memory of this machine are left out. The speed of the others is estimated from a one-second measurement,
    and the time to fine-tune those in the list from a few training steps of two layers. Models that cannot be
    fine-tuned in your time come last.

    Args:
        task: Name of a task, such as classification, ner, search or chat; an unknown name prints the known ones.
        constraint: Criterion of the ranking: published accuracy, speed, memory, operations per token (compute), use for
            pre-training from scratch, or use for research.
        max_latency_ms: Maximum time for one text on this machine; needs --measure.
        max_memory_mb: Maximum memory, in MB, of a process that reads one text.
        context: Minimum context length of the model, in tokens.
        training_rows: Number of texts to fine-tune on; their length is --context, or 128 tokens.
        max_training_hours: Time that you have for fine-tuning on this machine; models that take longer come last.
        language: Language of the texts.
        most: Maximum number of models to recommend.
        measure: Measure the candidates' speed and memory on this machine, with random weights. Nothing is downloaded;
            each model takes a few seconds.
    """
    choose_threads(threads)
    with opt.as_usage_error():
        encoder = advice.find_task(task).architecture == "encoder"
        recommendation = advice.recommend(
            task,
            constraint,
            max_latency_ms=max_latency_ms,
            max_memory_mb=max_memory_mb,
            context=context,
            training_rows=training_rows,
            max_training_hours=max_training_hours,
            language=language,
            most=most,
            measured=measure,
            hardware=advice.this_machine() if encoder else None,
            local_models=advice.find_local_models(),
        )
    if json:
        print_json(asdict(recommendation))
    else:
        _print_recommendation(recommendation)


def _print_recommendation(recommendation: "Recommendation") -> None:
    _print_local(recommendation)
    task = recommendation.task
    print(f"\n{task.name}: {'an' if task.architecture[0] == 'e' else 'a'} {task.architecture}")
    print(task.why)
    for example in task.examples:
        print(f"  {example}")
    if recommendation.ranked:
        constraint, tokens = recommendation.constraint, recommendation.length
        print(f"\nModels by {constraint}, at {tokens} tokens a text; accuracy is {recommendation.yardstick}.\n")
        _print_ranking(recommendation)
        for place, model in enumerate(recommendation.ranked, start=1):
            print(f"\n{place}. {model.name}")
            for reason in model.reasons:
                print(f"   {reason}")
            print(f"   {_source(model)}")
    if recommendation.left_out:
        print("\nLeft out:")
        named: dict[str, list[str]] = {}
        for each in recommendation.left_out:
            named.setdefault(each.reason, []).append(each.name)
        for reason, names in named.items():
            print(f"  {', '.join(names)}: {reason}")
    for remark in recommendation.notes:
        print(f"\n{remark[0].upper()}{remark[1:]}")


def _print_local(recommendation: "Recommendation") -> None:
    local, here = recommendation.local_models, recommendation.hardware
    print("Local models:" if local else "Local models: none in an installed package, the hub cache, or a folder here.")
    for each in local[:_MOST_LOCAL]:
        kind = f"trained for {each.task}" if each.task else each.family
        pinned = f", --revision {each.commit}" if each.commit and not each.by_name else ""
        print(f"  {printable(each.name)}: {printable(kind)}, {each.weights_mb:,.0f} MB{pinned}")
    if len(local) > _MOST_LOCAL:
        print(f"  and {len(local) - _MOST_LOCAL} more (--json lists all)")
    if here is not None:
        free = "free memory unknown" if here.free_mb is None else f"{here.free_mb:,.0f} MB free"
        gpu = "no GPU" if here.device == "cpu" else here.device
        print(
            f"This machine: {here.cores} core{'s' * (here.cores > 1)}, {gpu}, {free}; {here.flops_one / 1e9:,.0f} "
            f"GFLOP/s on one text, {here.flops_batch / 1e9:,.0f} on a batch (two layers of BERT-base, measured now)"
        )


def _source(model: "Ranked") -> str:
    """Return a note that the model is local, or the command that downloads it."""
    commit = f"commit {model.commit}" if model.commit else ""
    if model.local:
        return f"local{': ' if commit else ''}{commit}"
    return f"{commit or 'commit: resolved by the download'}; download it: {model.command}"


def _print_ranking(recommendation: "Recommendation") -> None:
    measured = recommendation.ranked[0].latency_ms is not None
    estimated = not measured and recommendation.hardware is not None
    speed = (">ms", ">tokens/s") if measured else (">~ms", ">~tokens/s") * estimated
    training = (">~training",) * (recommendation.hardware is not None)
    rows = []
    for place, model in enumerate(recommendation.ranked, start=1):
        accuracy = "?" if model.accuracy is None else f"{model.accuracy:.1f}"
        cells = [str(place), model.name, accuracy, f"{model.flops_per_token / 1e6:,.0f}", f"{model.memory_mb:,.0f}"]
        if model.latency_ms is not None and model.tokens_per_second is not None:
            cells += [f"{model.latency_ms:,.1f}", f"{model.tokens_per_second:,.0f}"]
        elif model.estimated_latency_ms is not None and model.estimated_tokens_per_second is not None:
            cells += [f"{model.estimated_latency_ms:,.0f}", f"{model.estimated_tokens_per_second:,.0f}"]
        if model.training_seconds is not None:
            cells.append(duration(model.training_seconds))
        rows.append(cells)
    print_table((">rank", "~name", ">accuracy", ">MFLOPs/token", ">MB", *speed, *training), rows)
    if estimated:
        print(
            "\n~ estimated from counted operations and the speed above. Narrow models and relative positions take "
            "longer;\n--measure builds and times each model."
        )
    if training:
        print(
            f"~training: fine-tuning on {recommendation.training_rows:,} texts (--training-rows), estimated from "
            "training steps of two layers."
        )
