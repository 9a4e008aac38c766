"""``bothways recommend`` and ``bothways compare-models``: which model to take."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from bothways.choices import Constraint, Language
from bothways.cli.options import Flag, PositiveFloat, PositiveInt, bad_usage
from bothways.cli.terminal import plain_table, print_json, print_table, printable
from bothways.threads import choose_threads

if TYPE_CHECKING:
    from bothways.advice import ModelComparison, Ranked, Recommendation

MAX_SHOWN = 10  # local models

RECOMMEND_EXAMPLE = """\
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
    threads: PositiveInt | None = None,
) -> None:
    """Recommend models for a task, with reasons.

    Lists local models, the kind of model that the task needs, and models in order. Models that exceed the free memory
    of this machine are left out; the speed of the others is estimated from one measurement of a second.

    Args:
        task: A task such as classification, ner, search or chat; an unknown one lists the known ones.
        constraint: What the order goes by: published accuracy, speed, memory, arithmetic, pre-training from scratch, or
            research.
        max_latency_ms: Maximum time for one text on this machine; needs --measure.
        max_memory_mb: Maximum memory of a process that reads one text.
        context: Tokens that must be read at once.
        language: Language of the texts.
        most: Number of models to name.
        measure: Build the candidates with random weights and go by their speed and memory on this machine. Nothing is
            downloaded; a few seconds for each.
        json: Print one JSON object.
        threads: CPU threads. Default: as OMP_NUM_THREADS says, else one for each core that the process is granted.
    """
    choose_threads(threads)
    from bothways.advice import find_local_models, this_machine
    from bothways.advice import recommend as advise
    from bothways.advice.tasks import find_task

    with bad_usage():
        encoder = find_task(task).architecture == "encoder"
        advised = advise(
            task,
            constraint,
            max_latency_ms=max_latency_ms,
            max_memory_mb=max_memory_mb,
            context=context,
            language=language,
            most=most,
            measured=measure,
            hardware=this_machine() if encoder else None,
            local_models=find_local_models(),
        )
    if json:
        print_json(asdict(advised))
    else:
        _show(advised)


def _show(advised: "Recommendation") -> None:
    _show_local_models(advised)
    task = advised.task
    print(f"\n{task.name}: {'an' if task.architecture[0] == 'e' else 'a'} {task.architecture}")
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
            print(f"   {_getting(model)}")
    if advised.left_out:
        print("\nLeft out:")
        named: dict[str, list[str]] = {}
        for each in advised.left_out:
            named.setdefault(each.reason, []).append(each.name)
        for reason, names in named.items():
            print(f"  {', '.join(names)}: {reason}")
    for remark in advised.notes:
        print(f"\n{remark[0].upper()}{remark[1:]}")


def _show_local_models(advised: "Recommendation") -> None:
    if advised.local_models:
        print("Here, without a download:")
    else:
        print("Here, without a download: no model in an installed package, in the hub cache, or in a folder.")
    for each in advised.local_models[:MAX_SHOWN]:
        kind = f"trained for {each.task}" if each.task else each.family
        pinned = f", --revision {each.commit}" if each.commit and not each.by_name else ""
        print(f"  {printable(each.name)}: {printable(kind)}, {each.weights_mb:,.0f} MB{pinned}")
    if len(advised.local_models) > MAX_SHOWN:
        print(f"  and {len(advised.local_models) - MAX_SHOWN} more (--json lists all)")
    here = advised.hardware
    if here is not None:
        free = "free memory unknown" if here.free_mb is None else f"{here.free_mb:,.0f} MB free"
        gpu = "no GPU" if here.device == "cpu" else here.device
        print(
            f"This machine: {here.cores} core{'s' * (here.cores > 1)}, {gpu}, {free}; "
            f"{here.flops_one / 1e9:,.0f} GFLOPs a second on one text, {here.flops_batch / 1e9:,.0f} on a batch "
            "(two layers of BERT-base, measured now)"
        )


def _getting(model: "Ranked") -> str:
    commit = f"commit {model.commit}" if model.commit else ""
    if model.local:
        return f"here{': ' if commit else ''}{commit}"
    return f"{commit or 'commit: the download resolves it'}; get it: {model.command}"


def _show_table(advised: "Recommendation") -> None:
    measured = advised.ranked[0].latency_ms is not None
    estimated = not measured and advised.hardware is not None
    table = plain_table()
    table.add_column("", justify="right")
    table.add_column("name", overflow="fold")
    for heading in (
        "accuracy",
        "MFLOPs/token",
        "MB",
        *(("ms", "tokens/s") if measured else ("~ms", "~tokens/s") * estimated),
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for place, model in enumerate(advised.ranked, start=1):
        accuracy = "?" if model.accuracy is None else f"{model.accuracy:.1f}"
        cells = [str(place), model.name, accuracy, f"{model.flops_per_token / 1e6:,.0f}", f"{model.memory_mb:,.0f}"]
        if model.latency_ms is not None and model.tokens_per_second is not None:
            cells += [f"{model.latency_ms:,.1f}", f"{model.tokens_per_second:,.0f}"]
        elif model.estimated_latency_ms is not None and model.estimated_tokens_per_second is not None:
            cells += [f"{model.estimated_latency_ms:,.0f}", f"{model.estimated_tokens_per_second:,.0f}"]
        table.add_row(*cells)
    print_table(table)
    if estimated:
        print(
            "\n~ estimated from counted operations and the speed above. Narrow models and those with relative\n"
            "positions take longer; --measure builds and times each."
        )


COMPARE_EXAMPLE = """\
Example:
  bothways compare-models
  bothways compare-models bert-base-uncased distilbert-base-uncased \\
    --lengths 64 --lengths 256"""


def compare_models(
    *names: str,
    lengths: tuple[PositiveInt, ...] = (32, 128, 512),
    batch: PositiveInt = 8,
    seconds: PositiveFloat = 0.5,
    json: Flag = False,
    threads: PositiveInt | None = None,
) -> None:
    """Measure speed and memory of models side by side.

    Each model is built with random weights, in a process of its own, and measured by length of text.

    Nothing is downloaded: speed and memory do not depend on what the weights are.

    Args:
        names: Models of the catalogue; BERT, DistilBERT, ALBERT, RoBERTa and ModernBERT of base size and the small
            ELECTRA and DeBERTa-v3 when none is given.
        lengths: Tokens of a text; give it once for each.
        batch: Texts in a batch.
        seconds: Time to spend on each figure.
        json: Print one JSON object.
        threads: CPU threads. Default: as OMP_NUM_THREADS says, else one for each core that the process is granted.
    """
    choose_threads(threads)
    from bothways.advice import compare_models as compare

    with bad_usage():
        comparison = compare(names, lengths=lengths, batch=batch, seconds=seconds)
    if json:
        print_json(_as_json(comparison))
    else:
        _show_measured(comparison)


def _as_json(comparison: "ModelComparison") -> dict[str, object]:
    return {
        "lengths": comparison.lengths,
        "batch": comparison.batch,
        "yardstick": comparison.yardstick,
        "machine": asdict(comparison.machine),
        "models": [
            {
                "name": model.card.name,
                "parameters": model.card.counted.parameters,
                "flops_per_token": model.flops_per_token,
                "speeds": [asdict(speed) for speed in model.measured.speeds],
                "runtime_bytes": model.measured.runtime_bytes,
                "peak_bytes": model.measured.peak_bytes,
                "accuracy": model.accuracy,
            }
            for model in comparison.models
        ],
    }


def _show_measured(comparison: "ModelComparison") -> None:
    table = plain_table()
    table.add_column("tokens a second", overflow="fold")
    for heading in ("params", *(f"at {length}" for length in comparison.lengths), "MB", "MNLI"):
        table.add_column(heading, justify="right", no_wrap=True)
    for model in comparison.models:
        peak = model.measured.peak_bytes
        table.add_row(
            model.card.name,
            f"{model.card.counted.parameters / 1e6:.1f} M",
            *(f"{speed.tokens_per_second:,.0f}" for speed in model.measured.speeds),
            "?" if peak is None else f"{peak / 1e6:,.0f}",
            "?" if model.accuracy is None else f"{model.accuracy:.1f}",
        )
    print_table(table)
    threads = comparison.models[0].measured.threads
    print(
        f"\nBatches of {comparison.batch} texts, float32, threads: {threads}. MB: the most that the process took. "
        f"MNLI: {comparison.yardstick}, as published."
    )
