"""A small classifier without dropout, for explanations."""

from bothways import TextClassifier
from classifier_cases import rows, without_dropout

QUICK = {"epochs": 2, "learning_rate": 3e-3, "batch_size": 6, "show_progress": False}


def fitted(folder, **options):
    model = TextClassifier.from_pretrained(without_dropout(folder), device="cpu")
    model.fit(rows(18), validation=rows(9), **{**QUICK, **options})
    return model
