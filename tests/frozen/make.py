"""Write what bothways leaves on its users' disks, and what it answers, for `test_frozen_models.py`.

Run it from the repository's root when the format of a saved folder changes:

    PYTHONPATH=src:tests python tests/frozen/make.py

It writes ``tests/frozen/models/``: a folder for each saved model, as ``save`` writes it, and beside it ``<name>.json``
with calls of the public API and their answers. It refuses to overwrite: remove the folder first.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from test_frozen_models import MODELS, answer_of, opened, printed_by, search_words

import bothways
import tiny_models
from answering_cases import long_question, questions, write_pair_tokenizer
from bothways.cli import main
from bothways.training import optimizers
from bothways.training.checkpoints import recorded_arithmetic
from task_cases import choices

HERE = Path(__file__).resolve().parent
# Where the files are made: paths that are written into them are then nobody's own.
WORKSHOP = Path(tempfile.gettempdir()) / "bothways-frozen"

# Narrower than those of the other tests: what is committed is to be small.
NARROW = {"hidden_size": 12, "num_hidden_layers": 2, "intermediate_size": 14}
SMALLER = {
    **dict.fromkeys(("bert", "roberta", "camembert", "electra", "deberta-v2"), NARROW),
    "albert": {"hidden_size": 12, "intermediate_size": 14, "embedding_size": 10},
    "distilbert": {"dim": 12, "n_layers": 2, "hidden_dim": 14},
    "xlnet": {"d_model": 12, "n_layer": 2, "d_inner": 14},
    "modernbert": {**NARROW, "hidden_size": 16},
}
# DeBERTa's table and ELECTRA's embeddings have widths of their own.
SMALLER["deberta-v2"] = {**NARROW, "embedding_size": 12}
SMALLER["electra"] = {**NARROW, "embedding_size": 10}

# So small a model learns little with dropout; each family has some of these names.
DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "embedding_dropout"),
    *("mlp_dropout", "classifier_dropout", "seq_classif_dropout", "summary_last_dropout"),
)

ANIMALS = ("ant", "bee", "cow")
LONG = "w6 " + " ".join(f"w{20 + (7 * place) % 40}" for place in range(44))
TEXTS = ["w5 w20 w31", "w6 w22, w40", "w7 w9 never-seen w11 w50", "w5 w6", LONG]
PAIRS = [["w5 w20", "w5"], ["w6 w30 w31", "w9 w40"], ["w5 w6", LONG], ["w12", "w13 w14"]]


# --- data ---


def labelled(count, first=0, wrong=0):
    """Texts whose first word says the label; every ``wrong``-th label is another one."""
    made = []
    for number in range(first, first + count):
        other = int(wrong > 0 and number % wrong == 0)
        words = [f"w{5 + number % 3}", *(f"w{20 + (7 * number + place) % 40}" for place in range(1 + number % 6))]
        made.append({"text": " ".join(words), "label": ANIMALS[(number + other) % 3]})
    return made


def renamed(rows, **names):
    """Rows with other names of columns: ``text="body"``."""
    return [{names.get(name, name): value for name, value in row.items()} for row in rows]


def long(rows):
    """Texts of several windows, with their first word in the last one."""
    filler = " ".join(f"w{25 + (3 * place) % 30}" for place in range(20))
    return [{**row, "text": f"{filler} {row['text']}"} for row in rows]


def many_labelled(count):
    names = ("odd", "second", "third")
    made = []
    for number in range(count):
        labels = [name for bit, name in enumerate(names) if number >> bit & 1]
        words = [f"w{20 + number % 30}", *(f"w{8 + len(name)}" for name in labels)]
        made.append({"text": " ".join(words), "label": labels})
    return made


def numbered(count, first=0):
    return [{"text": row["text"], "label": 10.0 * ANIMALS.index(row["label"])} for row in labelled(count, first, 5)]


def paired(count, first=0):
    """Two texts that are the same when their first words are."""
    made = []
    for number in range(first, first + count):
        same = number % 2
        filler = " ".join(f"w{20 + (7 * number + place) % 40}" for place in range(1 + number % 3))
        second = f"w{5 + number % 4 if same else 9 + number % 4}"
        label = ("other", "same")[same if number % 7 else 1 - same]
        made.append({"text_a": f"w{5 + number % 4} {filler}", "text_b": second, "label": label})
    return made


def scored(count, first=0):
    return [
        {"text_a": row["text_a"], "text_b": row["text_b"], "score": (0.5, 4.5)[row["label"] == "same"] + number % 3 / 4}
        for number, row in enumerate(paired(count, first))
    ]


def tagged(count, first=0):
    """w5 begins a person and w6 goes on with it; w7 is a place."""
    made = []
    for number in range(first, first + count):
        names = (["w5", "w6"], ["w7"], ["w5"], ["w5", "w6", "w6"])[number % 4]
        words = [f"w{20 + number % 7 + place}" for place in range(number % 3)] + names + [f"w{20 + number % 30}"]
        made.append(
            {"tokens": words, "tags": [{"w5": "B-PER", "w6": "I-PER", "w7": "B-LOC"}.get(word, "O") for word in words]}
        )
    return made


def plainly_tagged(count):
    rows = tagged(count)
    return [{"tokens": row["tokens"], "tags": [{"O": "X"}.get(tag, tag[2:]) for tag in row["tags"]]} for row in rows]


def sentences(count):
    words = ("the", "cat", "sat", "happy", "unhappy", "cats", "a", "catcat")
    return [
        " ".join(words[(3 * number + place * place) % 8] for place in range(4 + number % 5)) for number in range(count)
    ]


# --- models ---


def base(model_type, architecture=None):
    """The name of a checkpoint in the workshop; made once."""
    folder = Path(f"base-{model_type}{'-' + architecture if architecture else ''}")
    if not folder.exists():
        tiny_models.write_checkpoint(folder, model_type, architecture=architecture)
        write_pair_tokenizer(folder, model_type)
        tiny_models.edit_config(folder, **dict.fromkeys(DROPOUTS, 0.0))
    return str(folder)


def trained(kind, name, start, *data, open_with=None, settings=None, **options):
    """Train a model and save it in the workshop."""
    task = kind.from_pretrained(start, device="cpu", **(open_with or {}))
    usual = {"epochs": 20, "learning_rate": 1e-2, "batch_size": 6, "seed": 1, "show_progress": False}
    task.fit(*data, **(settings or {}), **{**usual, **options})
    task.save(f"v/{name}")


def frozen(name, *calls, **case):
    """Write what the saved model answers to these calls, each (method, what it is given, options)."""
    made = {**case, "calls": []}
    for method, given, *options in calls:
        call = {"method": method, "given": given, "options": options[0] if options else {}}
        made["calls"].append(call)
    model = opened(Path("v"), name, made)
    for call in made["calls"]:
        call["answer"] = answer_of(model, call)
    write_answers(name, made)


def write_answers(name, made):
    """Write a file of answers: an entry a line, and a line for each item of a list."""
    lines = []
    for key, value in {"format": 1, **made}.items():
        items = (
            [json.dumps(each, ensure_ascii=False, allow_nan=False) for each in value] if isinstance(value, list) else []
        )
        lines.append(f"{json.dumps(key)}: " + ("[\n " + ",\n ".join(items) + "\n]" if items else json.dumps(value)))
    (Path("v") / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def asked(given, *options):
    """The same inputs with each of these options."""
    return [("predict", given, each) for each in ({}, *options)]


def printed(name, *words):
    """Write what a command prints; the words may name ``{v}``, the folder of the models."""
    write_answers(name, {"words": list(words), "lines": printed_by(Path("v"), words)})


def text_models():
    kind, held = bothways.TextClassifier, labelled(40, 100, wrong=4)
    both, raw = {"coverage": 0.8}, {"calibrated": False}
    named = {"text": "body", "label": "animal"}
    trained(
        kind, "classifier", base("bert"), renamed(labelled(36), **named), validation=renamed(held, **named), **named
    )
    rows = renamed(labelled(12, 300), **named)
    frozen("classifier", *asked(TEXTS, both, raw), ("evaluate", rows, {"resamples": 50}), kind="TextClassifier")
    trained(
        kind,
        "classifier_plain",
        base("bert"),
        labelled(36),
        validation=held,
        settings={"calibration": None, "detector": None},
    )
    frozen("classifier_plain", *asked(TEXTS), kind="TextClassifier")
    for name, method, detector, model_type in (
        ("classifier_neighbours", "temperature", "neighbours", "modernbert"),
        ("classifier_layers", "isotonic", "mahalanobis_layers", "xlnet"),
        ("classifier_isotonic", "isotonic", "energy", "electra"),
        ("classifier_temperature", "temperature", "cosine", "roberta"),
    ):
        settings = {"calibration": method, "detector": detector}
        trained(kind, name, base(model_type), labelled(36), validation=held, **settings, seed=2)
        frozen(name, *asked(TEXTS, both, raw), kind="TextClassifier")
    trained(kind, "multi_label", base("camembert"), many_labelled(32), validation=many_labelled(24), target="multi")
    frozen("multi_label", *asked(["w9 w11 w14", "w40", LONG], raw), kind="TextClassifier")
    trained(kind, "regression", base("distilbert"), numbered(36), validation=numbered(30, 60), target="regression")
    frozen("regression", *asked(TEXTS, both), kind="TextClassifier")
    trained(
        kind,
        "long_texts",
        base("deberta-v2"),
        long(labelled(24)),
        validation=long(labelled(12, 60)),
        open_with={"merge": "max", "stride": 3},
    )
    frozen("long_texts", *asked([LONG, TEXTS[0], long(labelled(1))[0]["text"]], both), kind="TextClassifier")


def pair_models():
    both, raw = {"coverage": 0.8}, {"calibrated": False}
    kind = bothways.PairClassifier
    trained(kind, "pairs", base("electra"), paired(40), validation=paired(30, 60))
    frozen("pairs", *asked(PAIRS, both, raw), kind="PairClassifier")
    trained(kind, "pair_scores", base("distilbert"), scored(36), validation=scored(24, 60), score="score", epochs=60)
    frozen("pair_scores", *asked(PAIRS, both), kind="PairClassifier")


def choosers():
    wanted = [{"context": row["context"], "choices": row["choices"]} for row in choices(5)]
    trained(bothways.MultipleChoice, "chooser", base("bert"), choices(30), validation=choices(12))
    frozen("chooser", *asked(wanted), ("evaluate", choices(12), {"resamples": 50}), kind="MultipleChoice")


def word_models():
    raw = {"calibrated": False}
    texts = ["w20 w5 w6, w22! w7", "  w9\tw7 \n w5", LONG.replace("w20", "w5"), ["w5", "two words", "w7"]]
    for seed, name in enumerate(("tagger", "tagger_b"), start=1):
        trained(bothways.TextTagger, name, base("bert"), tagged(40), validation=tagged(24, 50), seed=seed)
    frozen("tagger", *asked(texts, raw), ("evaluate", tagged(12, 90), {"resamples": 50}), kind="TextTagger")
    frozen("tagger_b", *asked(texts, raw), kind="TextTagger")
    trained(
        bothways.TextTagger,
        "tagger_plain",
        base("modernbert"),
        plainly_tagged(40),
        validation=plainly_tagged(12),
        open_with={"on_overflow": "truncate"},
    )
    frozen("tagger_plain", *asked(texts[:3], raw), kind="TextTagger")
    tasks = {
        "animal": bothways.TaskData(labelled(36), labelled(30, 100, wrong=4)),
        "names": bothways.TaggingData(tagged(40), tagged(24, 50)),
        "amount": bothways.TaskData(renamed(numbered(24), label="amount"), label="amount", target="regression"),
    }
    trained(bothways.MultiTask, "multitask", base("distilbert"), tasks)
    frozen("multitask", *asked(texts), kind="MultiTask")
    # What was trained beside a tagger reads words with single spaces between them, also alone.
    bothways.MultiTask.from_pretrained("v/multitask", device="cpu").part("animal").save("v/classifier_of_words")
    frozen("classifier_of_words", *asked(TEXTS), kind="TextClassifier")
    frozen(
        "multitask_animal", *asked(TEXTS, {"coverage": 0.8}), kind="TextClassifier", folder="multitask", part="animal"
    )
    frozen("multitask_names", *asked(texts), kind="TextTagger", folder="multitask", part="names")


def answerers():
    wanted = [[row["question"], row["context"]] for row in (*questions(5), long_question())]
    for name, model_type, seed in (("answerer", "bert", 1), ("answerer_b", "xlnet", 2)):
        kind, held = bothways.QuestionAnswerer, questions(12)
        trained(kind, name, base(model_type), questions(30), validation=held, seed=seed)
        again = ("evaluate", questions(12), {"resamples": 50})
        frozen(name, *asked(wanted, {"top": 3}, {"calibrated": False}), again, kind="QuestionAnswerer")


def embedders():
    texts = [*TEXTS[:3], LONG]
    trained(bothways.SentenceEmbedder, "embedder", base("bert"), scored(30))
    calls = (("encode", texts), ("predict", PAIRS), ("evaluate", scored(12, 60), {"resamples": 50}))
    frozen("embedder", *calls, kind="SentenceEmbedder")
    small = {"pooling": "cls", "dimensions": 6, "unit_length": False, "max_length": 12}
    trained(bothways.SentenceEmbedder, "embedder_cut", base("xlnet"), scored(30), open_with=small)
    frozen("embedder_cut", *calls[:2], kind="SentenceEmbedder")


def mask_fillers():
    sys.path.insert(0, str(HERE.parent / "tasks"))
    from mask_cases import write_pieces

    start = base("bert", "BertForMaskedLM")
    write_pieces(Path(start))
    trained(bothways.FillMask, "masked_lm", start, sentences(30), validation=sentences(6))
    texts = ["the [MASK] sat", "[MASK] cat [MASK] happyly ."]
    few = {"words": ["happy", "cats", "unhappy"]}
    likely = [
        ("pseudo_log_likelihood", ["the cat sat", "cats unhappy sat " * 8], each)
        for each in ({}, {"whole_words": True})
    ]
    scores = ("evaluate", sentences(8), {"resamples": 50})
    frozen("masked_lm", *asked(texts, {"top": 2}, few, {"max_pieces": 2, "top": 3}), *likely, scores, kind="FillMask")


def ensembles():
    held = renamed(labelled(30, 200, wrong=4), text="body", label="animal")
    columns = {"text": ("body",), "label": "animal"}
    labels = ("v/classifier", "v/classifier_layers", "v/classifier_temperature")
    texts, covered = TEXTS, {"coverage": 0.8}
    for method in ("mean", "vote", "stacked"):
        ensemble(f"ensemble_{method}", labels, asked(texts, covered), method=method, calibrate=held, columns=columns)
    ensemble("ensemble_uncalibrated", ("v/classifier_neighbours", "v/classifier_isotonic"), asked(texts), max_length=12)
    ensemble("ensemble_tags", ("v/tagger", "v/tagger_b"), asked(["w20 w5 w6, w22! w7", LONG]), calibrate=tagged(16, 70))
    wanted = [[row["question"], row["context"]] for row in (*questions(4), long_question())]
    ensemble("ensemble_answers", ("v/answerer", "v/answerer_b"), asked(wanted), calibrate=questions(12))


def ensemble(name, members, calls, **options):
    bothways.Ensemble.of(members, device="cpu", show_progress=False, **options).save(f"v/{name}")
    frozen(name, *calls, kind="Ensemble")


# --- indexes ---


def indexes():
    texts = ["w5 w20 w31", "w6 w22, w40 running", "café w7 runs", "w12 w13 w14", LONG, "w5 w5"]
    embedder = bothways.SentenceEmbedder.from_pretrained(WORKSHOP / "v" / "embedder", device="cpu")
    fields = [{"year": 2000 + number, "kind": ("a", "b")[number % 2]} for number in range(len(texts))]
    ids = [f"d{number}" for number in range(len(texts))]
    queries = [("w5 w20", mode) for mode in ("dense", "lexical", "hybrid")] + [("running cafe\u0301", "lexical")]
    for name, prompts in {"index": {}, "index_prompts": {"prompt": "w22 ", "query_prompt": "w20 w31 "}}.items():
        bothways.SemanticSearch.build(embedder, texts, ids=ids, fields=fields, **prompts).save(f"v/{name}")
        found = [
            {"query": query, "mode": mode, "hits": printed_by(Path("v"), search_words(name, query, mode))[0]}
            for query, mode in queries
        ]
        write_answers(name, {"queries": found})


# --- an unfinished training ---


def unfinished():
    """A training that was interrupted in its second epoch: a checkpoint, a log, and the model of the first epoch."""
    folder = Path("v/unfinished")
    folder.mkdir()
    shutil.copytree(base("bert"), folder / "start")
    for name, rows in (("train", labelled(30)), ("held", labelled(24, 100, wrong=4))):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    words = [
        *("train", "classification", "--model", "start", "--train", "train.jsonl", "--validation", "held.jsonl"),
        *("--epochs", "4", "--learning-rate", "0.01", "--batch-size", "6", "--seed", "1"),
        *("--device", "cpu", "--quiet", "--output"),
    ]
    with contextlib.chdir(folder):
        whole = main([*words, str(WORKSHOP / "whole")])
        with interrupted_at(8):  # of five updates in an epoch
            partly = main([*words, "run"])
        shutil.copytree(".", WORKSHOP / "again")
    with contextlib.chdir(WORKSHOP / "again"):
        again = main([*words, "run", "--resume"])
    if (whole, partly, again) != (0, 130, 0):
        raise SystemExit(f"exit codes {whole}, {partly}, {again}")
    weights = [(WORKSHOP / name / "model.safetensors").read_bytes() for name in ("whole", "again/run")]
    if weights[0] != weights[1]:
        raise SystemExit("the resumed training ended with other weights than the one that was not interrupted")
    calls = [{"method": "predict", "given": TEXTS, "options": options} for options in ({}, {"coverage": 0.8})]
    made = {"resumed_by": [*words, "run", "--resume"], "arithmetic": recorded_arithmetic(), "calls": calls}
    for name, model in (("before", folder / "run"), ("after", WORKSHOP / "again" / "run")):
        opened = bothways.TextClassifier.from_pretrained(model, device="cpu")
        made[name] = [answer_of(opened, call) for call in calls]
    write_answers("unfinished", made)


@contextlib.contextmanager
def interrupted_at(number):
    """Press Ctrl-C during the update with this number."""
    usual, done = optimizers.Stepper.step, []

    def pressed(self, *arguments):
        done.append(1)
        if len(done) == number:
            os.kill(os.getpid(), signal.SIGINT)
        return usual(self, *arguments)

    optimizers.Stepper.step = pressed
    try:
        yield
    finally:
        optimizers.Stepper.step = usual


def on_the_command_line():
    rows = [{"id": f"r{number}", "body": text} for number, text in enumerate(TEXTS)]
    Path("v/rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    end = ("--device", "cpu", "--quiet")
    printed(
        "predict_rows", "predict", "{v}/classifier", "--data", "{v}/rows.jsonl", "--coverage", "0.8", "--keep", *end
    )
    printed("predict_question", "predict", "{v}/answerer", "w5", "w30 w5 w10 w11 w32", "--top", "3", *end)


def write_checksums():
    sums = {
        path: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(Path("v").rglob("*")) if path.is_file()
    }
    lines = (f"{digest}  {path.relative_to('v').as_posix()}\n" for path, digest in sums.items())
    Path("v/SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def everything():
    if MODELS.exists() or WORKSHOP.exists():
        raise SystemExit(f"{MODELS} or {WORKSHOP} exists: remove it first.")
    for model_type, smaller in SMALLER.items():
        tiny_models.TINY[model_type] = tiny_models.TINY[model_type] | smaller
    (WORKSHOP / "v").mkdir(parents=True)
    with contextlib.chdir(WORKSHOP):
        for part in (text_models, pair_models, choosers, word_models, answerers, embedders, mask_fillers):
            part()
        ensembles()
        indexes()
        unfinished()
        on_the_command_line()
        write_checksums()
    shutil.move(WORKSHOP / "v", MODELS)
    shutil.rmtree(WORKSHOP)


if __name__ == "__main__":
    everything()
