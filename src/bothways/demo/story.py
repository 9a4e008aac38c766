"""The sentences of the report, worked out from the results and not written beforehand."""

import os
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np

from bothways.demo.folder import DATA, INDEX, MODEL_FOLDER
from bothways.demo.news import file_name
from bothways.demo.results import Attended, Classified, FewShot, Searched, Shared, Told
from bothways.demo.settings import MODEL, PRONOUN
from bothways.evaluation import Estimate, Report, Temperature

_STRONGEST = 3
_FAINTEST = 0.005  # rounds to 0.01


def interval(estimate: Estimate, decimals: int = 3) -> str:
    """The ends of the 95 % interval."""
    return f"{_minus(estimate.low, decimals)} to {_minus(estimate.high, decimals)}"


def with_interval(estimate: Estimate, decimals: int = 3) -> str:
    """The value and, in brackets, the ends of its interval."""
    return f"{_minus(estimate.value, decimals)} ({interval(estimate, decimals)})"


def duration(seconds: float) -> str:
    """Seconds, or minutes and seconds.

    >>> duration(75.2)
    '1 min 15 s'
    """
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{seconds:.0f} s"


def beginning(text: str, width: int = 72) -> str:
    """As much of a text as fits on a line.

    >>> beginning("one two three", 9)
    'one two …'
    """
    return text if len(text) <= width else text[: width - 1].rsplit(" ", 1)[0] + " …"


def accuracy(classified: Classified) -> str:
    """Accuracy with its interval, in short."""
    return f"accuracy {with_interval(classified.after.accuracy, 2)}"


def calibration_in_short(classified: Classified) -> str:
    """Calibration error after calibration, in short."""
    return f"calibration error {classified.after.ece.value:.2f}"


def right_and_wrong(classified: Classified) -> str:
    """How many test texts were labelled right, and what the size of the test set means for that."""
    report = classified.after
    wrong = len(classified.mistakes)
    width = (report.accuracy.high - report.accuracy.low) * 100
    return (
        f"Of {report.n} test texts that the model never saw in training, {report.n - wrong} got the right label and "
        f"{wrong} a wrong one. So few texts leave much open: the 95\u00a0% interval of the accuracy is {width:.0f} "
        "points wide."
    )


def kept_epoch(classified: Classified) -> str:
    """Which epoch's weights were kept, and why."""
    record = classified.record
    if record.kept_epoch is None:
        return f"The weights of the last of {record.settings.epochs} epochs were kept."
    kept = next(each for each in record.validations if each.epoch == record.kept_epoch)
    highest = max(record.validations, key=lambda each: each.score)
    beside = ""
    if highest.score > kept.score:
        beside = (
            f" Epoch {highest.epoch} had {highest.metrics['accuracy']:.3f}, which so few texts do not tell apart "
            f"(standard error {highest.standard_error:.3f}), and of epochs alike the latest is kept."
        )
    return (
        f"After each epoch the model was tried on the validation texts; the weights of epoch {kept.epoch}, with an "
        f"accuracy of {kept.metrics['accuracy']:.3f} there, were kept.{beside}"
    )


def confusion(report: Report) -> str:
    """Which two classes are confused most often."""
    counts_CC = np.array(report.confusion)
    np.fill_diagonal(counts_CC, 0)
    if not counts_CC.any():
        return "No test text got a wrong label."
    most = int(counts_CC.max())
    places = np.argwhere(counts_CC == most)
    truth, predicted = (report.labels[at] for at in places[0])
    texts = "1 text" if most == 1 else f"{most} texts"
    alone = "The most frequent confusion" if len(places) == 1 else "One of the most frequent confusions"
    return f"{alone}: {texts} of {truth} labelled {predicted}."


def calibration(classified: Classified, validation_texts: int) -> tuple[str, ...]:
    """What the temperature does, what it changed on the test texts, and whether that is more than chance."""
    before, after = classified.before, classified.after
    return (
        "Calibration divides the outputs of the model by a temperature before they become probabilities. It was fitted "
        f"on the {validation_texts} validation texts: {_in_words(classified.temperature)}. The predicted labels stay "
        "the same.",
        f"On the {after.n} test texts the expected calibration error (ECE) goes from {with_interval(before.ece)} to "
        f"{with_interval(after.ece)}. {likelihood(classified.nll_change)}",
        f"With {after.n} texts, {len(after.reliability)} bins hold about {after.n / len(after.reliability):.0f} texts "
        "each. One text more or less moves such a bar far, and even a perfectly calibrated model would not reach an "
        "ECE of 0 here.",
    )


def _in_words(temperature: Temperature) -> str:
    value, slope = temperature.value, temperature.slope
    if slope:
        return (
            f"{value:.2f} for texts that the model is most undecided about, and less for the others (by the power "
            f"{slope:.2f} of the entropy)"
        )
    if value == 1:
        return "1.00, so nothing changes"
    return f"{value:.2f}, {'below 1, so stated confidence rises' if value < 1 else 'above 1, so it falls'}"


def likelihood(change: Estimate) -> str:
    """How calibration changed the negative log likelihood of the test texts, and whether that is more than chance."""
    return (
        f"Calibration changes the negative log likelihood of a text by {with_interval(change)}, where below 0 is "
        f"better. {_verdict(change)}"
    )


def _verdict(change: Estimate) -> str:
    if change.high < 0:
        return "The interval lies below 0: calibration helped on texts that it was not fitted on."
    if change.low > 0:
        return (
            "The interval lies above 0: calibration made the probabilities of the test texts worse. The validation "
            "texts were too few or too different to fit it on; here the uncalibrated probabilities are the better ones."
        )
    if change.value < 0:
        return "The interval holds 0: calibration helped a little here, but that may be chance."
    return "The interval holds 0: calibration did not help on these test texts, and what it changed may be chance."


def mistakes(classified: Classified, shown: int) -> str:
    """How many mistakes there are, and how sure the model was of them."""
    found = classified.mistakes
    if not found:
        return f"There were none: all {classified.after.n} test texts got the right label."
    sure = sum(each.probability >= 0.9 for each in found)
    listed = f"The {shown} most confident of {len(found)} mistakes" if shown < len(found) else _counted(len(found))
    return (
        f"{listed} on the test texts, by calibrated probability. The model gave its wrong label a probability of 0.9 "
        f"or more in {_of_them(sure)}. Some texts border on a second category by design, and each was labelled once, "
        "by one person."
    )


def headlines(told: tuple[Told, ...]) -> str:
    """How many headlines got the category that their author meant, and what became of the one that fits none."""
    meant = [each for each in told if each.headline.meant is not None]
    flagged = sum(bool(each.prediction.outside) for each in meant)
    right = sum(each.prediction.label == each.headline.meant for each in meant)
    sure = [each.prediction.probability for each in meant]
    strange = "".join(
        f" “{each.headline.text}” fits no category. Probabilities cannot say so, since they are shared out among the "
        f"categories that the model knows: it says {each.prediction.label} with {each.prediction.probability:.2f}, "
        f"where the headlines that fit get {min(sure):.2f} to {max(sure):.2f}. The distance from the training texts "
        f"can: by that the model {'calls' if each.prediction.outside else 'does not call'} it unlike them, and "
        f"{flagged or 'none'} of the {len(meant)} headlines that fit."
        for each in told
        if each.headline.meant is None
    )
    return (
        f"These headlines are in none of the files. {right} of the {len(meant)} that fit a category got the one that "
        f"was meant.{strange}"
    )


def label_sets(told: tuple[Told, ...], coverage: float) -> str:
    """What the sets of labels promise, and how large they are."""
    sizes = [len(each.prediction.label_set or ()) for each in told if each.headline.meant is not None]
    return (
        f"The sets of labels promise to hold the right one for {coverage:.0%} of texts like those of the training. "
        f"They are learnt from the validation texts, and the most probable label is always one of them. For the "
        f"headlines that fit a category they have {min(sizes)} to {max(sizes)} labels."
    )


def together(shared: Shared, alone: Classified) -> str:
    """How an encoder that learns two labels does beside one that learns one of them."""
    return (
        "One encoder learns the category and the sentiment of the texts, with a head for each; one pass over a text "
        f"answers both. Accuracy of the category {with_interval(shared.category.after.accuracy)}, where the model "
        f"above, which learnt nothing else, has {with_interval(alone.after.accuracy)}. Sentiment stands between the "
        "lines more than a topic does, and there are only a few hundred texts to learn it from: accuracy "
        f"{with_interval(shared.sentiment.after.accuracy)}, macro F1 "
        f"{with_interval(shared.sentiment.after.macro_f1)}, expected calibration error "
        f"{with_interval(shared.sentiment.before.ece)} before calibration and "
        f"{with_interval(shared.sentiment.after.ece)} after. {likelihood(shared.sentiment.nll_change)}"
    )


def few_texts(few: FewShot, all_texts: int, whole: Classified) -> str:
    """How far a few texts carry."""
    return (
        f"Where labels are dear, a few texts may do: this classifier was shown {few.texts} texts and not all "
        f"{all_texts}. It first learns which of them belong together, and then a linear head on their vectors. "
        f"Accuracy {with_interval(few.report.accuracy)}, macro F1 {with_interval(few.report.macro_f1)}, beside "
        f"{with_interval(whole.after.accuracy)} and {with_interval(whole.after.macro_f1)} with all texts."
    )


def attention(attended: Attended) -> tuple[str, ...]:
    """How much of what the head reads lies to the right, and what the pronoun reads with and without a causal mask."""
    tokens = attended.attention.tokens
    right = float(np.triu(attended.encoder_SS, 1).sum() / len(tokens))
    at = tokens.index(PRONOUN)
    layers, heads = attended.attention.weights_LNSS.shape[:2]
    return (
        "An encoder reads both ways: each token may look at those before it and at those behind it. A causal model, "
        f"as text generators are, looks to the left only. The figure shows head {attended.head.head + 1} of {heads} in "
        f"layer {attended.head.layer + 1} of {layers}, chosen by a rule: of the heads of the last layer, the one in "
        "which words read most from words that are not their neighbours.",
        f"{right:.0%} of the weight in this head lies to the right of the reading token. “{PRONOUN}” reads mostly "
        f"from {_strongest(attended.encoder_SS, tokens, at)}. With a causal mask on the same scores it would read "
        f"from {_strongest(attended.causal_SS, tokens, at)}.",
        "This is one head on one sentence: it shows where the head reads from, not why a model decides as it does. A "
        "model trained with a causal mask would have other scores too.",
    )


def search(searched: Searched) -> str:
    """How well the nearest texts agree in category, without any training for that."""
    return (
        "The model as it comes, without fine-tuning, turns each text into a vector; texts that mean similar things get "
        f"vectors that point the same way. Of all {len(searched.category_of)} texts, {searched.agreement:.0%} have a "
        f"nearest other text of the same category; by chance it would be {searched.agreement_by_chance:.0%}. "
        "A hit is near in what it is about; it may still tell the opposite, or use the same words for another thing."
    )


def commands(output: Path) -> tuple[str, ...]:
    """Commands that go on from what the demo left, as they can be typed where it ran."""
    program = _program()

    def place(*parts: str) -> str:
        return shlex.quote(str(output.joinpath(*parts)))

    train, validation, test = (place(DATA, file_name(split)) for split in ("train", "validation", "test"))
    return (
        f'{program} predict {place(MODEL_FOLDER)} "Parliament votes on the new chip subsidy"',
        f"{program} evaluate {place(MODEL_FOLDER)} --data {test} --label category",
        f'{program} search query {place(INDEX)} "a late goal decides the match"',
        f"{program} train classification --model {MODEL} --train {train} --validation {validation} "
        "--text text --label sentiment --output runs/sentiment --seed 1",
    )


def _program() -> str:
    """``bothways``, or where it lies if typing that would not find it."""
    if shutil.which("bothways"):
        return "bothways"
    beside = Path(sys.executable).parent / "bothways"
    return shlex.quote(os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside))


def _strongest(weights_SS: np.ndarray[tuple[int, ...], np.dtype[np.floating]], tokens: tuple[str, ...], at: int) -> str:
    order = np.argsort(-weights_SS[at], kind="stable")[:_STRONGEST]
    named = [f"“{tokens[to]}” ({weights_SS[at, to]:.2f})" for to in order if weights_SS[at, to] >= _FAINTEST]
    return _listed(named)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _counted(number: int) -> str:
    return "The only mistake" if number == 1 else f"All {number} mistakes"


def _of_them(number: int) -> str:
    counted = {0: "none", 1: "one"}.get(number, str(number))
    return f"{counted} of them"


def _minus(value: float, decimals: int) -> str:
    return f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "\u2212")
