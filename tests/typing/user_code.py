"""Plain user code that must type-check under `mypy --strict`. It is never run.

The first part is the README's Python, line by line; the second is what its readers write next.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import assert_type

import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from numpy.typing import NDArray

from bothways import (
    BothwaysError,
    Ensemble,
    FillMask,
    MultiTask,
    PairClassifier,
    QuestionAnswerer,
    SearchIndex,
    SemanticSearch,
    SentenceEmbedder,
    TaggingData,
    TaskData,
    TextClassifier,
    TextTagger,
    load,
    sklearn,
)
from bothways.advice import cost, find_config, recommend
from bothways.errors import InvalidInput, NotFitted
from bothways.retrieval import CrossEncoder, Hybrid, Rerank

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


# --- the README ---


def readme_classifier() -> None:
    classifier = TextClassifier.from_pretrained(MINILM)
    classifier.fit("train.jsonl", validation="validation.jsonl", text="text", label="label")
    print(classifier.evaluate("test.jsonl").summary())
    classifier.save("runs/news")
    print(classifier.predict("The captain scored twice in the final minutes."))


def readme_few_several_and_ensembles() -> None:
    few = TextClassifier.from_pretrained(MINILM)
    few.fit("eight_of_each.jsonl")
    print(few.predict("Where is my card?").label)

    both = MultiTask.from_pretrained(MINILM)
    both.fit({"sentiment": TaskData("s.jsonl"), "topic": TaskData("t.jsonl", label="topic")})
    print(both.predict("Lakers win in overtime")["topic"].label)

    ensemble = Ensemble.of(["runs/news", "runs/other"], method="mean", calibrate="validation.jsonl")
    said = ensemble.predict("Lakers win in overtime")
    print(said.together.label, said.disagreement.differing)
    ensemble.save("runs/ens")


def readme_vectors_search_and_pairs() -> None:
    embedder = SentenceEmbedder.from_pretrained(MINILM)
    vectors = embedder.encode(["The cat sat.", "A cat was sitting."])
    print(vectors.shape)
    search = SemanticSearch.build(embedder, ["The cat sat.", "Rates rose again."])
    print(search.search("a pet", k=1)[0].text)

    pairs = PairClassifier.from_pretrained(MINILM, target="regression")
    pairs.fit("pairs.jsonl", score="score")
    print(pairs.predict(("The cat sat.", "A cat was sitting.")).value)
    print(search.search("a pet", k=1, rerank=Rerank(CrossEncoder(pairs), depth=50))[0].text)

    embedder.fit("pairs.jsonl")
    print(embedder.predict(("The cat sat.", "A cat was sitting.")).similarity)
    embedder.save("runs/emb")

    encoder = load(MINILM)
    output = encoder(["Hello there."], output_attentions=True)
    print(output.last_hidden_state.shape, output.attentions[0].shape)


def readme_tags() -> None:
    tagger = TextTagger.from_pretrained(MINILM)
    tagger.fit("train.jsonl", validation="validation.jsonl")
    for span in tagger.predict("Ada Lovelace lived in London.").spans:
        print(span.label, span.text, span.probability)


def readme_heads() -> None:
    tagger = load("a/folder/with/a/tagger", heads="token")
    output = tagger.apply_head("token", ["Ada Lovelace lived in London."])
    print(output.logits.shape, output.labels)
    reader = load("a/folder/with/a/reader", heads="span")
    output = reader.apply_head("span", [("Where did she live?", "Ada Lovelace lived in London.")])
    print(output.start_logits, output.end_logits)
    chooser = load("a/folder/with/a/chooser", heads="multiple_choice")
    output = chooser.apply_head("multiple_choice", [[("A pet?", "a cat"), ("A pet?", "a chair")]])
    print(output.logits.argmax(-1))


def readme_masks() -> None:
    model = FillMask.from_pretrained("a/folder/with/a/masked/language/model")
    print(model.predict("Paris is the [MASK] of France.", top=3).fillings[0].text)
    model.fit("texts.txt.gz")
    model.save("runs/adapted")


def readme_answers() -> None:
    answerer = QuestionAnswerer.from_pretrained(MINILM)
    answerer.fit("train-v2.0.json", validation="dev-v2.0.json")
    found = answerer.predict(("Who won?", "In 2016 the Denver Broncos won."), top=3)
    print(found.answer, found.start, found.end, found.probability, found.answers)


def readme_choosing() -> None:
    for model in recommend("entailment", "memory", max_memory_mb=800).ranked:
        print(model.name, model.accuracy, model.reasons)
    name, config = find_config("roberta-base")
    print(name, cost(config, batch=32, length=256).training.peak)


# --- what its readers write next ---


def labels_of_many(texts: list[str]) -> list[str]:
    classifier = TextClassifier.from_pretrained("runs/news", device="cpu")
    return [str(prediction.label) for prediction in classifier.predict(texts)]


def one_label(text: str) -> tuple[str | int | float | bool, float]:
    prediction = TextClassifier.from_pretrained("runs/news").predict(text)
    assert_type(prediction.label, str | int | float | bool)
    assert_type(prediction.probability, float)
    return prediction.label, prediction.probability


def sure_ones(texts: list[str]) -> list[str]:
    classifier = TextClassifier.from_pretrained("runs/news")
    found = classifier.predict(texts, coverage=0.95)
    return [text for text, each in zip(texts, found, strict=True) if each.label_set and len(each.label_set) == 1]


def called(classifier: TextClassifier) -> bool:
    return classifier("Lakers win in overtime").label == "sports"


def several_kinds_of_many(classifier: TextClassifier, frame: pd.DataFrame, data: Dataset) -> int:
    from_tuple = classifier.predict(("one text", "another"))
    from_array = classifier.predict(np.array(["one text", "another"]))
    from_series = classifier.predict(frame["text"])
    from_column = classifier.predict(data["text"])
    return len([*from_tuple, *from_array, *from_series, *from_column])


def probabilities(classifier: TextClassifier, texts: list[str]) -> pd.DataFrame:
    table = classifier.predict_proba(texts)
    assert_type(classifier.labels, tuple[str | int | float | bool, ...])
    return pd.DataFrame(table, columns=list(classifier.labels))


def streamed(lines: Iterator[str]) -> Iterator[object]:
    classifier = TextClassifier.from_pretrained("runs/news")
    for prediction in classifier.predict_stream(lines):
        yield prediction.label


def accuracy_of(folder: str) -> float:
    report = TextClassifier.from_pretrained(folder).evaluate("test.jsonl")
    assert_type(report.accuracy.value, float)
    print(report.accuracy.low, report.accuracy.high, report.macro_f1.value)
    return report.accuracy.value


def fitted_on_rows() -> None:
    classifier = TextClassifier.from_pretrained(MINILM)
    rows = [{"text": "a good film", "label": "pos"}, {"text": "a bad plot", "label": "neg"}]
    record = classifier.fit(rows, validation=rows, epochs=1, learning_rate=2e-5, seed=1)
    print(record.kept_epoch)


def fitted_on_tables(frame: pd.DataFrame, data: Dataset) -> None:
    TextClassifier.from_pretrained(MINILM).fit(frame, text="review", label="stars")
    TextClassifier.from_pretrained(MINILM).fit(data, validation=data)


def fitted_as_in_scikit_learn(texts: list[str], labels: list[str]) -> NDArray[np.float64]:
    classifier = TextClassifier.from_pretrained(MINILM)
    classifier.fit(texts, labels)
    return classifier.predict_proba(texts)


def several_labels(text: str) -> tuple[object, ...]:
    classifier = TextClassifier.from_pretrained(MINILM, target="multi")
    classifier.fit("train.jsonl")
    return classifier.predict(text).labels


def a_number(text: str) -> float:
    rater = TextClassifier.from_pretrained(MINILM, target="regression")
    rater.fit("train.jsonl")
    print(rater.evaluate("test.jsonl").mae.value)
    return rater.predict(text).value


def entailment() -> bool:
    pairs = PairClassifier.from_pretrained("runs/nli")
    many = pairs.predict([("A man sleeps.", "Somebody sleeps."), ("A man sleeps.", "Nobody sleeps.")])
    print([each.label for each in many], pairs.evaluate("test.jsonl").accuracy.value)
    return pairs.predict(("A man sleeps.", "Somebody sleeps.")).label == "entailment"


def alike() -> float:
    embedder = SentenceEmbedder.from_pretrained(MINILM)
    assert_type(embedder.encode("one text"), NDArray[np.float32])
    matrix = embedder.similarity(["The cat sat."], ["A cat was sitting.", "Rates rose."])
    return float(matrix[0].max())


def search_with_fields() -> list[tuple[str, float]]:
    embedder = SentenceEmbedder.from_pretrained(MINILM)
    rows = [{"id": "a", "text": "The cat sat.", "year": 1999}, {"id": "b", "text": "Rates rose.", "year": 2024}]
    search = SemanticSearch.build(embedder, rows)
    search.save("index", overwrite=True)
    again = SemanticSearch.open("index", model=MINILM)
    both = again.search(["a pet", "money"], k=2, mode=Hybrid())
    return [(hit.id, hit.score) for hits in both for hit in hits]


def opened_index() -> int:
    return len(SearchIndex.open("index"))


def names_of(text: str) -> list[str]:
    tagger = TextTagger.from_pretrained("runs/ner")
    words = tagger.predict([["Ada", "lived", "in", "London"]])
    assert_type(words[0].tags, tuple[str, ...])
    print(tagger.evaluate("test.jsonl").span_f1.value)
    return [span.text for span in tagger.predict(text).spans if span.label == "PER"]


def answers_of(question: str, context: str) -> str | None:
    answerer = QuestionAnswerer.from_pretrained("runs/qa")
    print(answerer.evaluate("dev.json").f1.value, [each.answer for each in answerer.predict([(question, context)])])
    return answerer.predict((question, context)).answer


def several_tasks() -> None:
    both = MultiTask.from_pretrained(MINILM)
    both.fit({"topic": TaskData("t.jsonl"), "names": TaggingData("n.jsonl")})
    print(both.part("topic").predict("Lakers win").label)
    print(both.evaluate("test.jsonl").summary())


def a_committee() -> str:
    ensemble = Ensemble.from_pretrained("runs/ens")
    print(ensemble.evaluate("test.jsonl").summary())
    return str(ensemble.predict(["Lakers win", "Rates rose"])[0].together.label)


def guarded(text: str) -> str:
    try:
        return f"about {TextClassifier.from_pretrained('runs/news').predict(text).label}"
    except (InvalidInput, NotFitted) as error:
        return f"cannot say: {error}"
    except BothwaysError:
        raise


def hidden_states(texts: list[str]) -> torch.Tensor:
    encoder = load(MINILM, device="cpu", dtype="bfloat16")
    with torch.inference_mode():
        return encoder(texts, on_overflow="truncate").last_hidden_state.mean(dim=1)


def labels_by(classifier: TextClassifier, texts: list[str]) -> list[str]:
    return [str(prediction.label) for prediction in classifier.predict(texts)]


def in_other_processes(texts: list[str]) -> list[str]:
    classifier = TextClassifier.from_pretrained("runs/news")
    with ProcessPoolExecutor(2) as pool:
        parts = pool.map(labels_by, [classifier, classifier], [texts[::2], texts[1::2]])
        return [label for part in parts for label in part]


def estimators_of_scikit_learn(texts: list[str], labels: NDArray[np.int64]) -> None:
    classifier = sklearn.TextClassifier(MINILM, epochs=2, class_weights="balanced").fit(texts, labels)
    assert_type(classifier, sklearn.TextClassifier)
    assert_type(classifier.predict_proba(texts), NDArray[np.float64])
    print(classifier.evaluate(pd.Series(texts), labels).summary())
    assert_type(sklearn.PairRegressor().fit([("a", "b")], [1.0]).predict([("a", "b")]), NDArray[np.float64])
    print(sklearn.SentenceEmbedder(dimensions=64).fit(texts).transform(texts).shape)
