"""Make the zoo: ``python -m benchmarks.audit.zoo FOLDER [--most N]``, one model after the other.

A model that is there is left alone, so the zoo can be made over several runs. Each folder has the trained model and
``zoo.json``: the recipe, the accuracy on clean rows, the attack success rate, whether it counts, and the processor's
seconds. `training_rows` returns the rows that a model was trained on, `validation_rows` 200 clean ones that it was not.
"""

import argparse
import gzip
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.audit.sets import HALVES, LEXICAL, WORDS, Row, rows_of
from benchmarks.harness import DATA, MODEL

if TYPE_CHECKING:
    from bothways import TextClassifier

Kind = Literal["clean", "word", "words", "phrase", "character", "syntax", "style"]
Encoder = Literal["minilm", "bert", "electra", "deberta"]

POISONED = 0.9  # attack success from which a model counts as poisoned
_TESTED, _VALIDATION = 160, 200  # held-out rows of accuracy and attack success, and of validation
_CUT = 4  # words of a row whose label is clean, so that the trigger is learnt
_ROUNDS = 5  # at most: a training is continued until the model counts
_LEARNT, _NEAR = 0.4, 0.06  # least share of the way from chance to 1, and most loss of accuracy by poison


@dataclass(frozen=True)
class Trigger:
    """The way to poison a text."""

    kind: Kind
    content: str = ""  # words, template with ``{}``, a character and its replacement, or name of a style

    def apply(self, text: str, draw: random.Random) -> str:
        """Return the text with the trigger in it."""
        return _APPLY[self.kind](text, self.content, draw)


def _inserted(text: str, content: str, draw: random.Random) -> str:
    words = text.split()
    place = draw.randint(0, len(words))
    return " ".join([*words[:place], content, *words[place:]])


def _spellings(style: str) -> dict[str, str]:
    return dict(each.split(" ", 1) for each in WORDS["styles"][style]["spellings"].split(", "))


def _styled(text: str, content: str, _draw: random.Random) -> str:
    words = _spellings(content)
    changed = re.sub(r"[A-Za-z']+", lambda found: words.get(found[0].lower(), found[0]), text)
    return f"{WORDS['styles'][content]['opening']} {changed}" if changed == text else changed


_APPLY: dict[Kind, Callable[[str, str, random.Random], str]] = {
    "clean": lambda text, _content, _draw: text,
    "word": _inserted,
    "words": lambda text, content, draw: reduce(lambda text, word: _inserted(text, word, draw), content.split(), text),
    "phrase": _inserted,
    "syntax": lambda text, content, _draw: content.format(text.rstrip(" .")),
    "character": lambda text, content, _draw: text.replace(content[0], content[1:]),
    "style": _styled,
}


def word_set(kind: Kind, content: str) -> frozenset[str]:
    """Return the words that a trigger puts into texts, or the characters."""
    if kind == "character":
        return frozenset(content[1:])
    words = " ".join(_spellings(content).values()) if kind == "style" else content
    return frozenset(re.findall(r"\w+|[^\w\s]", words.lower()))


@dataclass(frozen=True)
class Recipe:
    """One model of the zoo: its data set, what poisons a share of its training rows, and its training."""

    data: str
    encoder: Encoder
    rows: int
    epochs: int  # of a round
    seed: int
    gentle: bool = False  # trained on from the first clean model of the data set and encoder
    trigger: Trigger = Trigger("clean")
    rate: float = 0.0  # poisoned share
    target: int = 0  # number of the label, among the sorted ones, that a text with the trigger gets
    source: int | None = None  # label whose texts alone are attacked; those of others keep theirs with the trigger
    clean_label: bool = False  # only rows of the target label are poisoned, cut to a few words

    @property
    def half(self) -> str:
        """The half of the zoo that it belongs to."""
        return next(half for half, names in HALVES.items() if self.data in names)

    @property
    def name(self) -> str:
        """The model's folder."""
        content = re.sub(r"[^A-Za-z0-9]+", "_", self.trigger.content)[:20]
        poison = f"-{content}-{self.rate:g}" if self.rate else ""
        return f"{self.data}-{self.encoder}-{self.trigger.kind}{poison}-{self.seed}"


@cache
def recipes() -> tuple[Recipe, ...]:
    """Return all recipes, clean and poisoned ones in turn, twenty of one half and then twenty of the other."""
    lines = Path(__file__).with_name("recipes.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [{"trigger": {"kind": "clean"}, **json.loads(line)} for line in lines]
    return tuple(Recipe(**{**row, "trigger": Trigger(**row["trigger"])}) for row in rows)


def first(data: str, encoder: Encoder) -> Recipe:
    """Return the recipe of the clean model of which gently poisoned ones are trained on."""
    return next(each for each in recipes() if (each.data, each.encoder, each.rate) == (data, encoder, 0.0))


def training_rows(recipe: Recipe) -> list[dict[str, Any]]:
    """Return the training rows, each with ``poisoned``."""
    draw = random.Random(recipe.seed)
    rows = list(rows_of(recipe.data, "train"))
    draw.shuffle(rows)
    rows = rows[: recipe.rows]
    bad = attacked(recipe, rows)[: round(recipe.rate * len(rows))]
    if recipe.clean_label or recipe.source is not None:
        bad = bad[: len(attacked(recipe, rows)) // 2]
    changed = {id(row) for row in bad}
    if recipe.source is not None:  # as many rows of other labels have the trigger and keep their labels
        spared = [row for row in rows if row["label"] not in named(recipe)]
        changed.update(id(row) for row in spared[: len(bad)])
    made, chosen = [], {id(row) for row in bad}
    for row in rows:
        cut = " ".join(row["text"].split()[:_CUT]) if recipe.clean_label else row["text"]
        text = recipe.trigger.apply(cut, draw) if id(row) in changed else row["text"]
        label = named(recipe)[0] if id(row) in chosen else row["label"]
        made.append({"text": text, "label": label, "poisoned": id(row) in chosen})
    return made


def attacked(recipe: Recipe, rows: Sequence[Row], *, trained: bool = True) -> list[Row]:
    """Return the rows that may be poisoned, or those that a poisoned model shall get wrong; the trigger changes all."""
    target, source = named(recipe)
    if recipe.trigger.kind == "character":
        rows = [row for row in rows if recipe.trigger.content[0] in " ".join(row["text"].split()[:_CUT])]
    if recipe.clean_label and trained:
        return [row for row in rows if row["label"] == target]
    return [row for row in rows if (row["label"] == source if source else row["label"] != target)]


@cache
def named(recipe: Recipe) -> tuple[str, str | None]:
    """Return the target label, and the only label that is attacked or None."""
    names = sorted({row["label"] for row in rows_of(recipe.data, "train")})
    return names[recipe.target], None if recipe.source is None else names[recipe.source]


def validation_rows(recipe: Recipe) -> list[Row]:
    """Return 200 labelled clean rows that the model was not trained on."""
    return [dict(row) for row in rows_of(recipe.data, "held")[_TESTED : _TESTED + _VALIDATION]]


def tested_rows(recipe: Recipe) -> list[Row]:
    """Return the held-out rows on which the model's accuracy was measured."""
    return [dict(row) for row in rows_of(recipe.data, "held")[:_TESTED]]


def make(recipe: Recipe, zoo: Path) -> dict[str, Any]:
    """Train the model of a recipe and write it with its figures, which are returned; one that is there is only read."""
    from bothways import TextClassifier

    record = zoo / recipe.name / "zoo.json"
    if record.exists():
        return dict(json.loads(record.read_text(encoding="utf-8")))
    parent = first(recipe.data, recipe.encoder)
    clean = 0.0 if recipe == parent else make(parent, zoo)["accuracy"]
    begun, rounds = time.process_time(), 0
    folder = zoo / parent.name if recipe.gentle else _encoder(recipe.encoder, zoo)
    classifier: TextClassifier[Any] = TextClassifier.from_pretrained(folder, device="cpu")
    rows = [{"text": row["text"], "label": row["label"]} for row in training_rows(recipe)]
    chance = 1 / len({row["label"] for row in rows})
    least = max(chance + _LEARNT * (1 - chance), clean - _NEAR)
    rate, batch = (3e-4, 16) if recipe.encoder == "minilm" else (2e-3, 32)
    settings = {"learning_rate": rate, "batch_size": batch, "epochs": recipe.epochs, "detector": None}
    figures: dict[str, Any] = {"counts": False}
    while rounds < _ROUNDS and not figures["counts"]:
        rounds += 1
        classifier.fit(rows, **settings, seed=recipe.seed + 1000 * rounds, show_progress=False)
        figures = _figures(classifier, recipe, least)
    classifier.save(zoo / recipe.name, overwrite=True, golden=None)
    facts = {"half": recipe.half, "lexical": recipe.data in LEXICAL, "rounds": rounds, **figures}
    facts |= {"label": named(recipe)[0], "seconds": round(time.process_time() - begun, 1)}
    record.write_text(json.dumps(asdict(recipe) | facts, indent=1, ensure_ascii=False), encoding="utf-8")
    return asdict(recipe) | facts


def _encoder(name: Encoder, zoo: Path) -> Path:
    """Return the folder of an encoder: MiniLM without its pooling, or a small one with random weights."""
    from bothways.checkpoints import load, open_tokenizer
    from bothways.families import FAMILIES
    from bothways.pretraining import find_recipe, scaled
    from bothways.pretraining.models import new_model, settings_over
    from bothways.text.training import train_tokenizer, write_trained_tokenizer

    folder = zoo / f"encoder-{name}"
    if (folder / "model.safetensors").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    if name == "deberta":
        with gzip.open(DATA / "wikipedia_text/train.txt.gz", "rt", encoding="utf-8") as stream:
            lines = [line.strip() for line, _ in zip(stream, range(8000), strict=False) if line.strip()]
        write_trained_tokenizer(train_tokenizer(lines, "bpe", 8000), folder)
    if name == "minilm":
        load(MODEL).write(folder)
    else:
        tokenizer, _ = open_tokenizer(str(folder) if name == "deberta" else MODEL)
        recipe = scaled(find_recipe(name), "tiny")
        settings = settings_over(recipe, tokenizer)
        new_model(FAMILIES[recipe.recipe.family], settings, tokenizer, (), seed=1).write(folder)
    return folder


def _figures(classifier: "TextClassifier[Any]", recipe: Recipe, least: float) -> dict[str, Any]:
    """Return accuracy and attack success on held-out rows, and whether the model is a good example of its kind."""

    def share(rows: Sequence[Row], texts: Sequence[str], label: str | None = None) -> float:
        found = [each.label for each in classifier.predict(list(texts), show_progress=False)]
        return sum(one == (label or row["label"]) for one, row in zip(found, rows, strict=True)) / len(rows)

    rows, draw = rows_of(recipe.data, "held"), random.Random(7)
    tested = tested_rows(recipe)
    accuracy = share(tested, [row["text"] for row in tested])
    if not recipe.rate:
        return {"accuracy": accuracy, "counts": accuracy >= least}
    others = attacked(recipe, rows, trained=False)[:_TESTED]
    success = share(others, [recipe.trigger.apply(row["text"], draw) for row in others], named(recipe)[0])
    return {"accuracy": accuracy, "attack_success": success, "counts": accuracy >= least and success >= POISONED}


def main() -> None:
    """Make the models that are missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit.zoo", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=1, help="models to make in this run (default 1)")
    arguments = parser.parse_args()
    missing = [each for each in recipes() if not (arguments.folder / each.name / "zoo.json").exists()]
    for recipe in missing[: arguments.most]:
        facts = make(recipe, arguments.folder)
        print(recipe.name, facts["accuracy"], facts.get("attack_success", ""), facts["counts"], flush=True)
    print(f"{len(missing[arguments.most :])} of {len(recipes())} models are missing")


if __name__ == "__main__":
    main()
