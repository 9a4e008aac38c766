"""The model card that is saved with a model, ``README.md``, written from ``bothways.json`` for people and the hub.

It is never read back, so users may edit it. The hub reads the lines between the dashes at its beginning
as YAML (https://huggingface.co/docs/hub/model-cards); values are written there as JSON, a subset of YAML.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeGuard

from bothways.checkpoints.files import read_json
from bothways.checkpoints.golden import stored_inputs
from bothways.checkpoints.schema import OURS
from bothways.families.family import HEAD_POOLING, PAIR
from bothways.progress import figure
from bothways.tasks.card import training_baseline
from bothways.tasks.registry import SPECS
from bothways.tasks.spec import SENTENCE_TRANSFORMER, Hub, TaskSpec

README = "README.md"
PLACE = "path/to/this/folder"

_MOST_LABELS = 40

# The class that opens an encoder without a head, and code for the logits of a head that reads vectors of a pair and of
# each of its texts (`bothways.encoder.heads`).
_ENCODER = "AutoModel"
_COMPARING = """\
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
encoder = AutoModel.from_pretrained("FOLDER")
head = load_file("FOLDER/head/model.safetensors")


def vector(*texts):
    mean = encoder(**tokenizer(*texts, return_tensors="pt")).last_hidden_state.mean(1)
    return torch.nn.functional.normalize(mean)


first, second = ASKED
one, other = vector(first), vector(second)
same = one * other
both = [(one - other).abs(), same * same.shape[1] ** 0.5, 4 * same.sum(1, keepdim=True)]
features = torch.cat([vector(first, second), *both], dim=1)
print(features @ head["linear.weight"].T + head["linear.bias"])""".splitlines()
_SETTINGS = ("learning_rate", "batch_size", "weight_decay", "warmup_fraction", "precision", "seed")

# The hub's names of metrics.
_METRICS = {
    "accuracy": "accuracy",
    "macro_f1": "f1",
    "micro_f1": "f1",
    "f1": "f1",
    "span_f1": "f1",
    "exact_match": "exact_match",
    "mcc": "matthews_correlation",
    "mse": "mse",
    "mae": "mae",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "perplexity": "perplexity",
}


def write_readme(folder: Path, kind: str, spec: TaskSpec) -> None:
    """Write the card of a model whose other files are already in the folder; it does not contain the folder's path.

    ``kind`` is the class that opens the model, such as ``"TextClassifier"``. For a model of several tasks, the specs of
    its heads are used instead of ``spec``.
    """
    content = read_json(folder / OURS)
    found = {str(head["name"]): head for head in map(_mapping, _list(content.get("heads")))} or {"": content}
    specs = _as_stored(folder, {name: SPECS[str(part["task"])] if name else spec for name, part in found.items()})
    cards = {task: _mapping(part.get("card")) for task, part in found.items()}
    parts = [_front(cards.values(), kind, specs), f"# {kind}", _summary(folder, content, kind, specs)]
    parts += ["## Use", *_usage(kind, specs, _mask(folder))]
    for task, part in found.items():
        parts += [f"## {task}: {specs[task].name.replace('_', ' ')}"] if task else []
        for title, lines in _sections(specs[task], part, cards[task]):
            parts += [f"{'###' if task else '##'} {title}", "\n".join(lines)]
    parts += _golden(folder)
    (folder / README).write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _as_stored(folder: Path, specs: Mapping[str, TaskSpec]) -> Mapping[str, TaskSpec]:
    """Return the specs, with another ``opens_as`` for a classifier on a sentence embedder.

    Such a classifier is opened with the class of sentence-transformers; for pairs, with the class of the plain encoder.
    """
    path = folder / "config.json"  # ensembles have none
    if not path.is_file() or (pooling := read_json(path).get(HEAD_POOLING)) is None:
        return specs
    opens_as = _ENCODER if pooling == PAIR else SENTENCE_TRANSFORMER
    return {
        name: replace(spec, hub=spec.hub and replace(spec.hub, opens_as=opens_as, gives_logits=True))
        for name, spec in specs.items()
    }


def _front(cards: Iterable[Mapping[str, object]], kind: str, specs: Mapping[str, TaskSpec]) -> str:
    """Return the metadata for the hub.

    A base model in a local folder, and metrics that the hub has no name for, are left out.
    """
    cards = list(cards)
    hub = _hub(specs)
    # Other libraries cannot open ensembles.
    values: dict[str, object] = {"library_name": "bothways" if kind == "Ensemble" else hub.library}
    values["pipeline_tag"] = hub.pipeline
    values["tags"] = list(dict.fromkeys(["bothways", *(spec.name.replace("_", "-") for spec in specs.values())]))
    values["base_model"] = next((card["base_model"] for card in cards if _on_hub(card.get("base_model"))), None)
    known = [_METRICS[name] for card in cards for name in _mapping(card.get("metrics")) if name in _METRICS]
    values["metrics"] = list(dict.fromkeys(known))
    return "\n".join(["---", *(f"{name}: {json.dumps(value)}" for name, value in values.items() if value), "---"])


def _hub(specs: Mapping[str, TaskSpec]) -> Hub:
    spec = next(iter(specs.values()))
    values = [spec.example[name] for name in spec.columns.input_columns if name in spec.example]
    return spec.hub or Hub("", repr(values[0] if len(values) == 1 else tuple(values)))


def _on_hub(name: object) -> bool:
    """Return True for a name on the hub, False for a path that looks like one."""
    pattern = r"[A-Za-z0-9][\w.-]*/[\w.-]+"
    return isinstance(name, str) and re.fullmatch(pattern, name, re.ASCII) is not None and not Path(name).exists()


def _golden(folder: Path) -> list[str]:
    """Return a section on the golden answers; empty without them."""
    golden = stored_inputs(folder)
    if golden is None:
        return []
    whose = "neutral texts" if golden.source == "neutral" else f"inputs, which quote {golden.source} data"
    return [
        "## Golden answers",
        f"`golden.json` has the answers to {len(golden.values)} {whose}. `bothways check {PLACE}` notices an upgrade "
        "that changes them.",
    ]


def _summary(folder: Path, content: Mapping[str, object], kind: str, specs: Mapping[str, TaskSpec]) -> str:
    if kind == "MultiTask":
        tasks = ", ".join(f"{_code(name)} ({spec.name.replace('_', ' ')})" for name, spec in specs.items())
        return f"One encoder with several tasks: {tasks}."
    spec = specs[""]
    if kind == "Ensemble":
        return f"An ensemble of models that {spec.does}. It has no weights, but refers to its members' folders."
    stored = _mapping(read_json(folder / "config.json").get("id2label")) if spec.hub and spec.hub.names_labels else {}
    labels = list(map(str, _list(content.get("labels")) or stored.values()))
    named = ", ".join(map(_code, labels[:_MOST_LABELS]))
    more = f" and {len(labels) - _MOST_LABELS:,} more" if len(labels) > _MOST_LABELS else ""
    return spec.summary + (f" Labels: {named}{more}." if labels else "")


def _usage(kind: str, specs: Mapping[str, TaskSpec], mask: str) -> Iterator[str]:
    """Yield code that uses the model in bothways and, if possible, in transformers or sentence-transformers."""
    hub = _hub(specs)
    asked, call = (text.replace("[MASK]", mask) for text in (hub.asked, hub.call))
    verb = "encode" if kind == "SentenceEmbedder" else "predict"
    yield _block(
        f"from bothways import {kind}",
        "",
        f'model = {kind}.from_pretrained("{PLACE}")',
        f"print(model.{verb}({asked}))",
    )
    if kind == "Ensemble" or not hub.opens_as:
        return
    if hub.opens_as == SENTENCE_TRANSFORMER:
        yield (
            "It also opens in sentence-transformers, which returns logits without calibration or windows:"
            if hub.gives_logits
            else "Its embedder also opens in sentence-transformers:"
        )
        yield _block(
            "from sentence_transformers import SentenceTransformer",
            "",
            f'model = SentenceTransformer("{PLACE}")',
            f"print(model.encode({f'[{asked}]' if hub.gives_logits else asked}))",
        )
    elif hub.opens_as == _ENCODER:
        yield "Its encoder also opens in transformers. This code prints logits, without calibration or windows:"
        yield _block(*(line.replace("FOLDER", PLACE).replace("ASKED", asked) for line in _COMPARING))
    else:
        own = f", as a model for {_code(next(iter(specs)))} alone" if kind == "MultiTask" else ""
        yield f"It also opens in transformers{own}, without calibration or windows for long texts:"
        shown = [f'print(model(**tokenizer({call}, return_tensors="pt")))'] if call else []
        yield _block(
            f"from transformers import {hub.opens_as}, AutoTokenizer",
            "",
            f'tokenizer = AutoTokenizer.from_pretrained("{PLACE}")',
            f'model = {hub.opens_as}.from_pretrained("{PLACE}")',
            *shown,
        )


def _sections(
    spec: TaskSpec, part: Mapping[str, object], card: Mapping[str, object]
) -> Iterator[tuple[str, Sequence[str]]]:
    members, limits, notes = card.get("members"), card.get("limits"), card.get("notes")
    yield from (
        (title, lines)
        for title, lines in (
            ("Data", list(_data(card))),
            ("Metrics", list(_metrics(_mapping(card.get("metrics"))))),
            ("Members", [_member(_mapping(each)) for each in _list(members)]),
            ("Calibration", list(_calibration(spec, part, card))),
            ("Training", list(_training(card))),
            ("Notes", [f"- {_line(note)}" for note in _list(notes)]),
            ("Limits", [f"- {_line(limit)}" for limit in _list(limits)]),
        )
        if lines
    )


def _data(card: Mapping[str, object]) -> Iterator[str]:
    for name, numbers in _mapping(card.get("data")).items():
        counts, sums = list[str](), list[str]()
        for key, value in _mapping(numbers).items():
            match value:
                case int():
                    counts.append(f"{value:,} {_named(key)}")
                case str():
                    sums.append(f"{_named(key)} {_code(value)}")
        yield f"- {_line(name)}: {'; '.join([', '.join(counts), *sums])}"
    if "validation" in card:
        yield f"- source of the validation rows: {_line(card['validation'])}"


def _metrics(metrics: Mapping[str, object]) -> Iterator[str]:
    if not metrics:
        return
    yield f"Measured on {_line(metrics.get('of'))} (n = {metrics.get('n')}).\n"
    yield "| metric | value | 95 % interval |\n| --- | ---: | --- |"
    for name, value in metrics.items():
        low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
        if _is_number(value) and _is_number(low) and _is_number(high):
            yield f"| {_named(name)} | {figure(value)} | {figure(low)} to {figure(high)} |"


def _member(member: Mapping[str, object]) -> str:
    """Return a member and its metrics on the rows that calibrated the ensemble."""
    numbers = [f"{_named(name)} {figure(value)}" for name, value in member.items() if _is_number(value)]
    return f"- {', '.join([_code(str(member.get('member'))), *numbers])}"


def _calibration(spec: TaskSpec, part: Mapping[str, object], card: Mapping[str, object]) -> Iterator[str]:
    calibratable = "calibrated" in (each.name for each in fields(spec.predict_options))
    if calibratable and part.get("target") != "regression":
        usual = "temperature" if part.get("temperature") else None
        method = _mapping(part.get("calibration")).get("method", usual)
        yield f"- Probabilities are {f'calibrated by {_named(str(method))}' if method else 'not calibrated'}."
    if thresholds := [each for each in _list(part.get("thresholds")) if _is_number(each)]:
        low, high = (f"{end:.4g}" for end in (min(thresholds), max(thresholds)))
        own = f"its own threshold, from {low} to {high}" if low != high else low
        yield f"- A label is predicted if its probability is at least {own}."
    rows = {**_mapping(card.get("confidence")), **card}.get("coverage_from_rows")
    if _is_number(rows):
        yield f"- Predictions can guarantee a coverage, which was fitted on {rows:,} rows."
    detection = _mapping(part.get("out_of_domain"))
    if _is_number(threshold := detection.get("threshold")):
        kind = _named(str(detection.get("kind")))
        yield f"- Texts unlike the training texts are flagged as out of domain by {kind}, threshold {threshold:.4g}."
    if _is_number(threshold := part.get("no_answer_threshold")):
        yield f"- An answer is returned only if its score is above {threshold:.4g}."


def _training(card: Mapping[str, object]) -> Iterator[str]:
    if "base_model" in card:
        revision = f" at {_code(str(card['revision']))}" if card.get("revision") else ""
        yield f"- base model: {_code(str(card['base_model']))}{revision}"
    if training := _mapping(card.get("training")):
        kept = training.get("kept_epoch")
        kept = "the last" if kept is None else kept
        yield f"- {training.get('updates')} updates, {training.get('epochs')} epochs; kept epoch: {kept}"
        if baseline := training_baseline(card):
            listed = ", ".join(f"{_named(name)} {figure(value)}" for name, value in baseline.metrics.items())
            yield f"- baseline, {_line(baseline.name)}: {listed}"
        settings = _mapping(training.get("settings"))
        shown = [f"{_named(name)} {settings[name]}" for name in _SETTINGS if settings.get(name) is not None]
        yield f"- {', '.join(shown)}"


def _mask(folder: Path) -> str:
    """Return the tokenizer's mask token."""
    path = folder / "tokenizer_config.json"
    match read_json(path).get("mask_token") if path.is_file() else None:
        case str(mask) | {"content": str(mask)}:
            return mask
    return "[MASK]"


def _list(value: object) -> list[object]:
    """Return a stored list; empty for anything else, as someone may have edited the card."""
    match value:
        case list():
            return value
    return []


def _mapping(value: object) -> Mapping[str, object]:
    """Return a value of the card if it is an object, else an empty one: someone may have edited the card."""
    match value:
        case Mapping():
            return value
    return {}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _named(name: str) -> str:
    return _line(name.replace("_", " "))


def _block(*lines: str) -> str:
    return "\n".join(["```python", *lines, "```"])


def _line(text: object) -> str:
    """Return a text on one line, with Markdown's characters escaped."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(str(text).split()))


def _code(text: str) -> str:
    """Return a text as inline code, between more backticks than any run of backticks in it."""
    text = " ".join(text.split())
    runs = [len(run) for run in re.findall("`+", text)]
    fence = "`" * (max(runs, default=0) + 1)
    return f"{fence} {text} {fence}" if runs else f"{fence}{text}{fence}"
