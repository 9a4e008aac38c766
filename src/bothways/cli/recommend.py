"""``bothways recommend``: which model to take for a task."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from bothways.choices import Constraint, Language
from bothways.cli.options import Flag, PositiveFloat, PositiveInt, bad_usage
from bothways.cli.terminal import plain_table, print_json, print_table

if TYPE_CHECKING:
    from bothways.advice import Recommendation

EXAMPLE = """\
Example:
  bothways recommend --task sentiment --constraint latency --max-memory-mb 800
  bothways recommend --task ner --constraint latency \\
    --measure --max-latency-ms 50"""


def recommend(
    *,
    task: str,
    constraint: Constraint = "accuracy",
    max_latency_ms: PositiveFloat | None = None,
    max_memory_mb: PositiveFloat | None = None,
    context: PositiveInt | None = None,
    language: Language = "english",
    most: PositiveInt = 5,
    measure: Flag = False,
    json: Flag = False,
) -> None:
    """Which kind of model a task wants, and which models, in order, with reasons.

    Args:
        task: What to do with texts, such as classification, ner, search or chat; an unknown one lists the known ones.
        constraint: What the order goes by: published accuracy, speed, memory, arithmetic, pre-training from scratch, or
            research.
        max_latency_ms: Longest time for one text on this machine; needs --measure.
        max_memory_mb: Most memory of a process that reads one text.
        context: Tokens that must be read at once.
        language: Of the texts.
        most: How many models to name.
        measure: Build the candidates at random weights and go by their speed and memory on this machine. Nothing is
            downloaded; a few seconds for each.
        json: Print one JSON object.
    """
    from bothways.advice import recommend as advise

    with bad_usage():
        advised = advise(
            task,
            constraint,
            max_latency_ms=max_latency_ms,
            max_memory_mb=max_memory_mb,
            context=context,
            language=language,
            most=most,
            measured=measure,
        )
    if json:
        print_json(asdict(advised))
    else:
        _show(advised)


def _show(advised: "Recommendation") -> None:
    task = advised.task
    print(f"{task.name}: {'an' if task.architecture[0] == 'e' else 'a'} {task.architecture}")
    print(task.why)
    for example in task.examples:
        print(f"  {example}")
    if advised.ranked:
        print(
            f"\nModels by {advised.constraint}, at {advised.length} tokens a text; accuracy is {advised.yardstick}.\n"
        )
        _show_table(advised)
        for place, model in enumerate(advised.ranked, start=1):
            print(f"\n{place}. {model.name}")
            for reason in model.reasons:
                print(f"   {reason}")
    if advised.left_out:
        print("\nLeft out:")
        named: dict[str, list[str]] = {}
        for each in advised.left_out:
            named.setdefault(each.reason, []).append(each.name)
        for reason, names in named.items():
            print(f"  {', '.join(names)}: {reason}")
    for remark in advised.notes:
        print(f"\n{remark[0].upper()}{remark[1:]}")


def _show_table(advised: "Recommendation") -> None:
    measured = advised.ranked[0].latency_ms is not None
    table = plain_table()
    table.add_column("", justify="right")
    table.add_column("name", overflow="fold")
    for heading in ("accuracy", "MFLOPs/token", "MB", *(("ms", "tokens/s") if measured else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    for place, model in enumerate(advised.ranked, start=1):
        accuracy = "?" if model.accuracy is None else f"{model.accuracy:.1f}"
        cells = [str(place), model.name, accuracy, f"{model.flops_per_token / 1e6:,.0f}", f"{model.memory_mb:,.0f}"]
        if model.latency_ms is not None and model.tokens_per_second is not None:
            cells += [f"{model.latency_ms:,.1f}", f"{model.tokens_per_second:,.0f}"]
        table.add_row(*cells)
    print_table(table)
