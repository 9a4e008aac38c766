"""Going on with masked language modelling: what is learnt, measured, resumed and refused."""

import math

import numpy as np
import pytest
import torch

from bothways.errors import InvalidInput, NotFitted, TextsTruncated, TextTooLong
from bothways.evaluation.outcomes import TokenLosses, token_outcomes
from bothways.objectives.masked_lm import MaskedLM
from bothways.objectives.masking import Masker, Masking, WholeWordMasking
from bothways.objectives.pretraining import PretrainingObjective
from bothways.objectives.sequences import TextWindows
from bothways.packing import unpad
from bothways.tasks import FillMask
from bothways.tasks.backend import stored_windows
from bothways.text.windows import TextsRead
from everyday import some_of
from tiny_models import write_checkpoint

TEXTS = [" ".join(f"w{5 + (7 * start + place) % 50}" for place in range(1 + start % 14)) for start in range(24)]
SETTINGS = {"max_tokens": 30, "checkpoint_every_updates": 1}
OPTIONS = {"epochs": 2, "learning_rate": 1e-2, "batch_size": 5, "seed": 4, **SETTINGS}


@pytest.fixture
def bare(base):
    """A tiny BERT without a head, opened."""
    return FillMask.from_pretrained(base, device="cpu")


def weights(model):
    return {name: value.clone() for name, value in model.fitted.model.state_dict().items()}


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


class CrashError(Exception):
    pass


@pytest.mark.parametrize("call", some_of([1, 4, 7, 12], 4))
def test_an_interrupted_run_resumes_to_the_same_bits(base, tmp_path, monkeypatch, call):
    whole = FillMask.from_pretrained(base, device="cpu")
    expected = whole.fit(TEXTS, validation=TEXTS[:6], **OPTIONS)
    loss, calls = PretrainingObjective.loss, [0]

    def dying(self, payload):
        calls[0] += 1
        if calls[0] > call:
            raise CrashError
        return loss(self, payload)

    with monkeypatch.context() as patch:
        patch.setattr(PretrainingObjective, "loss", dying)
        with pytest.raises(CrashError):
            FillMask.from_pretrained(base, device="cpu").fit(
                TEXTS, validation=TEXTS[:6], checkpoints=tmp_path / "c", **OPTIONS
            )
    resumed = FillMask.from_pretrained(base, device="cpu")
    record = resumed.fit(TEXTS, validation=TEXTS[:6], checkpoints=tmp_path / "c", resume=True, **OPTIONS)
    assert record.losses == expected.losses
    assert record.validations == expected.validations
    assert equal(weights(resumed), weights(whole))
    assert resumed.fitted.facts() == whole.fitted.facts()


def test_resuming_with_other_masks_is_refused(bare, base, tmp_path):
    bare.fit(TEXTS, checkpoints=tmp_path / "c", **OPTIONS)
    again = FillMask.from_pretrained(base, device="cpu")
    with pytest.raises(InvalidInput, match=r"identity\.chosen tokens was 0\.15 and is now 0\.3"):
        again.fit(TEXTS, checkpoints=tmp_path / "c", resume=True, masking=Masking(fraction=0.3), **OPTIONS)
    assert not again.has_head


def test_masks_and_order_change_from_epoch_to_epoch_and_an_update_weighs_its_chosen_places(bare):
    store = stored_windows(bare.backend, TEXTS)
    masker = Masker(bare.model.tokenizer, Masking(), 0)
    head = bare.backend.files.new_masked_lm_head()
    windows = TextWindows(store, masker, "training")
    model = MaskedLM(bare.model.encoder, head)
    objective = PretrainingObjective.in_epochs(model, windows, windows, masker, batch_size=5, tokens=60)

    def seen(epoch, start=0):
        parts = [part.payload for update in objective.updates(epoch, start) for part in update.micro_batches]
        return [(part.batch.packed.ids_T.tolist(), part.batch.rows_M.tolist()) for part in parts]

    assert seen(0) == seen(0)
    assert seen(0) != seen(1)
    ahead = sum(len(update.micro_batches) for update in list(objective.updates(0, 0))[:2])
    assert seen(0, start=2) == seen(0)[ahead:]
    for part in (part for update in objective.updates(0, 0) for part in update.micro_batches):
        payload = part.payload.batch
        assert part.weight == len(payload.rows_M) == len(payload.targets_M)
        assert part.tokens == len(payload.packed.ids_T)
        assert not torch.isin(payload.targets_M, torch.tensor(sorted(bare.model.tokenizer.special_ids))).any()


def test_texts_without_ordinary_tokens_are_left_out_of_training(bare):
    record = bare.fit(["zebra", "w5 w6", "zebra zebra"], validation=["w7 w8"], epochs=1, batch_size=1)
    assert record.updates == 1


def test_before_and_after_are_measured_at_the_same_places(bare):
    bare.fit(TEXTS, validation=TEXTS[:6], **OPTIONS)
    report = bare.evaluate(TEXTS[:6], seed=OPTIONS["seed"], resamples=50)
    after = bare.fitted.facts()["after"]
    assert report.loss.value == pytest.approx(after["loss"], abs=1e-5)
    assert report.accuracy.value == pytest.approx(after["accuracy"])
    assert bare.evaluate(TEXTS[:6], seed=99, resamples=5).loss.value != pytest.approx(after["loss"], abs=1e-3)


def test_evaluation_is_the_mean_loss_at_the_chosen_places(tmp_path):
    model = masked_lm_model(tmp_path)
    store = stored_windows(model.fitted.backend, TEXTS)
    masker = Masker(model.model.tokenizer, Masking(), 3)
    losses, right = [], []
    for window, (start, end) in enumerate(zip(store.starts[:-1], store.starts[1:], strict=True)):
        masked = masker.validation(store.ids_T[start:end], window)
        ids = torch.from_numpy(masked.ids_n.astype(np.int64))[None]
        with torch.no_grad():
            logits = model.fitted.model(unpad(ids), torch.from_numpy(masked.places_M))
        targets = torch.from_numpy(masked.targets_M.astype(np.int64))
        losses += torch.nn.functional.cross_entropy(logits, targets, reduction="none").tolist()
        right += (logits.argmax(-1) == targets).tolist()
    report = model.evaluate(TEXTS, seed=3, resamples=200)
    assert (report.n, report.counts["tokens"]) == (len(TEXTS), len(losses))
    assert report.loss.value == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert report.perplexity.value == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)
    assert report.accuracy.value == pytest.approx(sum(right) / len(right))
    assert report.loss.low < report.loss.value < report.loss.high
    assert set(report.to_dict()) >= {"n", "tokens", "loss", "loss_low", "perplexity_high", "accuracy"}
    assert "masked tokens" in report.summary()


def test_texts_that_do_not_fit_into_memory_are_read_in_smaller_batches(tmp_path, monkeypatch):
    model = masked_lm_model(tmp_path)
    expected = model.evaluate(TEXTS, resamples=5)
    outputs, tried = MaskedLM.outputs, []

    def short_of_memory(model, batch):
        tried.append(batch.packed.count)
        if batch.packed.count > 2 and not torch.is_grad_enabled():
            raise RuntimeError("out of memory")
        return outputs(model, batch)

    monkeypatch.setattr(MaskedLM, "outputs", short_of_memory)
    found = model.evaluate(TEXTS, resamples=5)
    assert max(tried) > 2
    assert found.loss.value == pytest.approx(expected.loss.value, abs=1e-5)


def test_the_card_names_the_unit_of_masking(bare):
    bare.fit(TEXTS, validation=TEXTS[:6], masking=Masking(unit=WholeWordMasking(), dynamic=False), **OPTIONS)
    assert bare.fitted.card["masking"] == {
        "fraction": 0.15,
        "masked": 0.8,
        "random": 0.1,
        "unit": {"name": "whole-word"},
        "dynamic": False,
    }


def test_a_report_says_how_much_was_read(tmp_path):
    folder = masked_lm_model(tmp_path).model.folder
    texts = [" ".join(f"w{5 + number}" for number in range(count)) for count in (4, 40, 18)]
    windowed = FillMask.from_pretrained(folder, device="cpu").evaluate(texts, resamples=20)
    assert windowed.tokens_read == TextsRead(texts=3, in_windows=2, cut=0, dropped_tokens=0)
    with pytest.warns(TextsTruncated):
        cut = FillMask.from_pretrained(folder, device="cpu", on_overflow="truncate").evaluate(texts, resamples=20)
    assert cut.tokens_read == TextsRead(texts=3, in_windows=0, cut=2, dropped_tokens=26)
    assert cut.to_dict()["tokens_read"]["dropped_tokens"] == 26
    assert "2 of 3 texts were truncated: 26 tokens" in cut.summary()


def masked_lm_model(folder):
    write_checkpoint(folder / "model", architecture="BertForMaskedLM")
    return FillMask.from_pretrained(folder / "model", device="cpu")


def test_metrics_are_means_over_tokens_not_over_texts():
    losses = TokenLosses(np.array([3.0, 0.0, 1.0]), np.array([0.0, 0.0, 2.0]), np.array([1.0, 0.0, 3.0]))
    report = token_outcomes(losses).report(resamples=500)
    values = {name: each.value for name, each in report.estimates.items()}
    assert values == pytest.approx({"loss": 1.0, "perplexity": math.e, "accuracy": 0.5})
    assert report.counts["tokens"] == 4
    assert 1 / 3 <= report.loss.low <= 1.0 <= report.loss.high <= 3.0


def test_long_texts_are_learnt_in_windows_that_share_nothing(bare):
    bare.fit(["w5 " * 40], validation=["w6 w7"], epochs=1, batch_size=4)
    assert bare.card["training"]["tokens"] == 40 + 3 * 2


def test_the_columns_of_training_are_those_of_use(base, tmp_path):
    rows = [{"body": text} for text in TEXTS]
    model = FillMask.from_pretrained(base, device="cpu")
    model.fit(rows, text="body", epochs=1)
    model.save(tmp_path / "saved")
    again = FillMask.from_pretrained(tmp_path / "saved", device="cpu")
    assert again.columns.text == ("body",)
    assert again.evaluate(rows, resamples=5).n == len(rows)
    assert again.columns.rows_of(["w5 [MASK]"]) == [{"body": "w5 [MASK]"}]


def test_texts_come_from_files_lists_columns_and_arrays(base, tmp_path):
    pandas = pytest.importorskip("pandas")
    (tmp_path / "t.txt").write_text("\n\n".join(TEXTS) + "\n\n")
    rows = [{"title": text, "body": "", "text": 3} for text in TEXTS]
    quick = {**OPTIONS, "epochs": 1}
    models = [FillMask.from_pretrained(base, device="cpu") for _ in range(4)]
    expected = models[0].fit(TEXTS, validation=TEXTS[:2], **quick).losses
    assert models[1].fit(tmp_path / "t.txt", validation=np.array(TEXTS[:2]), **quick).losses == expected
    assert models[2].fit(rows, validation=rows[:2], text=("title", "body"), **quick).losses == expected
    assert models[3].fit(pandas.Series(TEXTS), validation=tuple(TEXTS[:2]), **quick).losses == expected
    asked = [f"{text} [MASK]" for text in TEXTS[:3]]
    for made in (pandas.Series, np.array, tuple):
        assert models[0].evaluate(TEXTS, resamples=5) == models[0].evaluate(made(TEXTS), resamples=5)
        assert models[0].predict(asked) == models[0].predict(made(asked))
        assert models[0].pseudo_log_likelihood(asked) == models[0].pseudo_log_likelihood(made(asked))


def test_a_missing_text_of_a_series_is_refused_by_its_number(bare):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InvalidInput, match="row 2 of the given list: 'text' is"):
        bare.fit(pandas.Series(["w5 w6", None, "w7"]))


@pytest.mark.parametrize("texts", [["w5 w6", "w7"], [{"text": "w5 w6"}, {"text": "w7"}]])
def test_labels_are_refused(bare, texts):
    with pytest.raises(InvalidInput, match="trains on texts alone: leave out the labels"):
        bare.fit(texts, ["a", "b"])


def test_a_new_head_that_learnt_nothing_is_not_kept(bare, monkeypatch):
    def failing(*_, **__):
        raise InvalidInput("no")

    monkeypatch.setattr("bothways.training.stages.train", failing)
    with pytest.raises(InvalidInput, match="no"):
        bare.fit(TEXTS)
    assert not bare.has_head
    with pytest.raises(NotFitted):
        bare.save("nowhere")


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (["zebra"] * 4, {}, "nothing to mask in the training texts.*tokenizer"),
        (TEXTS, {"validation": ["zebra"]}, "nothing to mask in the validation texts"),
        ([{"text": ""}, {"text": " "}], {}, "no text in the given data"),
        ([{"text": "w5"}, {"text": 4}], {}, "row 2 of the given list: 'text' is of type int"),
        ([{"body": "w5"}], {}, "no column 'text'"),
        ([], {}, "is empty"),
        (["w5"], {}, "none can be held out of 1 row: give at least two rows, or"),
        (TEXTS, {"batch_size": 0}, "`batch_size` must be a whole number, at least 1"),
        (TEXTS, {"epochs": 0}, "`epochs` must be"),
    ],
)
def test_data_and_settings_that_cannot_be_learnt_from_are_refused(bare, data, options, words):
    with pytest.raises(InvalidInput, match=words):
        bare.fit(data, **options)
    assert not bare.has_head


def test_a_text_that_is_too_long_is_refused_on_request(base):
    strict = FillMask.from_pretrained(base, device="cpu", on_overflow="error")
    with pytest.raises(TextTooLong, match="limit of 18"):
        strict.fit([*TEXTS, "w5 " * 40])
