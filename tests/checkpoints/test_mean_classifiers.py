"""Classifiers above sentence embedders: they read the mean of the tokens, and sentence-transformers opens them."""

import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from above_embedders import HEAD, KINDS, QUICK, STILL, asked, contents, every_kind, logits, read_by, trained
from safetensors.torch import load_file, save_file

import bothways
from bothways import MultiTask, PairClassifier, SentenceEmbedder, TaggingData, TaskData, TextClassifier, TextTagger
from bothways.checkpoints import load, open_checkpoint
from bothways.encoder.head_kinds import MeanOfTokens
from bothways.errors import BothwaysError, CorruptCheckpoint, IncompatibleWeights, NotFitted, UnsupportedConfig
from bothways.export import export
from bothways.families import FAMILIES
from bothways.families.family import HEAD_POOLING
from contract_cases import as_embedder, pair_rows, rows, write_embedder
from everyday import some_families, some_of
from tiny_models import edit_config, write_checkpoint

POOLING_MODES = ("pooling_mode_cls_token", "pooling_mode_mean_tokens")


# One family for each kind of encoder and tokenizer.
DAILY = ("bert", "roberta", "distilbert", "albert", "deberta-v2", "xlnet", "modernbert")
# Pairs differ from texts in the template of the tokenizer: every day those of the families that have one of their own.
families_and_kinds = pytest.mark.parametrize(
    ("model_type", "kind"),
    some_of(
        # XLNet ends texts with their classification token, so it reads pairs as a whole.
        [(model_type, kind) for model_type in FAMILIES for kind in KINDS if (model_type, kind) != ("xlnet", "apart")],
        *((model_type, "text") for model_type in DAILY),
        *((model_type, "pair") for model_type in ("bert", "roberta", "xlnet", "modernbert")),
        *((model_type, "apart") for model_type in ("bert", "roberta", "distilbert", "deberta-v2", "modernbert")),
    ),
)

pytest.importorskip("transformers", reason="the oracle is not installed: pip install 'bothways[test]'")


def oracle(folder):
    library = pytest.importorskip("sentence_transformers", reason="the oracle is not installed")
    return library.SentenceTransformer(str(folder), device="cpu")


@pytest.fixture
def spoilt(saved, tmp_path):
    """A copy of a saved classifier that a test may change."""
    shutil.copytree(saved()[1], tmp_path / "copy")
    return tmp_path / "copy"


# Saved and opened


@families_and_kinds
def test_a_saved_classifier_answers_the_same_to_the_bit_and_saves_the_same(saved, model_type, kind, tmp_path):
    classifier, folder = saved(model_type, kind)
    again = bothways.open_trained(folder, device="cpu")
    for each in (classifier, again):
        assert isinstance(read_by(each), KINDS[kind][2])
    texts = [*asked(kind), "w5 " * 40 if kind == "text" else ("w5", "w6 " * 40)]
    assert again.predict(texts) == classifier.predict(texts)
    np.testing.assert_array_equal(logits(again, texts), logits(classifier, texts))
    again.save(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(folder)


@pytest.mark.parametrize(("kind", "normalize"), [("text", True), ("text", False), ("apart", True)])
@pytest.mark.parametrize("target", ["single", "multi", "regression"])
def test_every_target_comes_back(saved, kind, target, normalize):
    classifier, folder = saved(kind=kind, target=target, normalize=normalize)
    again, texts = KINDS[kind][0].from_pretrained(folder, device="cpu"), asked(kind)
    assert again.fitted.outputs.target == classifier.fitted.outputs.target
    assert again.predict(texts) == classifier.predict(texts)
    if kind == "text":
        np.testing.assert_allclose(oracle(folder).encode(texts), logits(classifier, texts), rtol=0, atol=1e-5)


@families_and_kinds
def test_sentence_transformers_gives_the_logits(saved, model_type, kind):
    classifier, folder = saved(model_type, kind)
    if kind == "apart":  # of pairs it gives the vectors of their texts
        ours = SentenceEmbedder.from_pretrained(folder.parent / "base", device="cpu")
        np.testing.assert_allclose(oracle(folder).encode(["w5 w6"]), ours.encode(["w5 w6"]), rtol=0, atol=1e-5)
        return
    found = oracle(folder).encode(asked(kind), batch_size=5)
    assert found.shape == (16, 3)
    np.testing.assert_allclose(found, logits(classifier, asked(kind)), rtol=0, atol=1e-5)


@some_families(*DAILY)
def test_sentence_transformers_cuts_long_texts_where_windows_end_here(saved, model_type):
    classifier, folder = saved(model_type)
    cut = TextClassifier.from_pretrained(folder, device="cpu", on_overflow="truncate")
    texts = [" ".join(f"w{5 + (7 * place) % 50}" for place in range(600)), "w5"]
    theirs = oracle(folder)
    assert theirs.max_seq_length == classifier.backend.reading.max_length
    np.testing.assert_allclose(theirs.encode(texts), logits(cut, texts), rtol=0, atol=1e-5)


@some_families(*DAILY)
def test_the_folder_is_a_bare_encoder_with_its_modules(saved, model_type):
    import transformers

    classifier, folder = saved(model_type)
    settings = json.loads((folder / "config.json").read_text())
    assert (settings["architectures"], settings[HEAD_POOLING]) == ([FAMILIES[model_type].base_architecture], "mean")
    assert list(settings["id2label"].values()) == list(classifier.labels)
    modules = json.loads((folder / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == ["Transformer", "Pooling", "Dense"]
    assert load_file(folder / HEAD).keys() == {"linear.weight", "linear.bias"}
    stored = json.loads((folder / "bothways.json").read_text())
    assert stored["checksums"].keys() >= {"model.safetensors", HEAD}
    model, info = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    assert type(model).__name__ == FAMILIES[model_type].base_architecture


def test_the_checkpoint_says_what_it_holds(saved, recwarn):
    checkpoint = open_checkpoint(saved()[1])
    assert checkpoint.heads() == ("sequence",)
    assert checkpoint.score_count("sequence") == 3
    assert checkpoint.unread() == ()
    load(saved()[1], device="cpu")
    assert not [each for each in recwarn if issubclass(each.category, bothways.errors.TensorsLeftOver)]


@every_kind
def test_load_gives_the_head_by_its_usual_name(saved, kind, tmp_path):
    classifier, folder = saved(kind=kind)
    model = load(folder, heads=["sequence"], device="cpu")
    output = model.apply_head("sequence", asked(kind))
    assert output.labels == classifier.labels
    np.testing.assert_allclose(output.logits.detach().numpy(), logits(classifier, asked(kind)), rtol=0, atol=1e-5)
    model.save(tmp_path / "again")
    for name in ("model.safetensors", HEAD, "modules.json", "1_Pooling/config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name
    again = load(tmp_path / "again", heads=["sequence"], device="cpu")
    assert torch.equal(again.apply_head("sequence", asked(kind)).logits, output.logits)


def test_without_its_head_it_is_saved_as_a_bare_encoder(saved, tmp_path):
    load(saved()[1], device="cpu").save(tmp_path / "bare")
    assert HEAD_POOLING not in json.loads((tmp_path / "bare" / "config.json").read_text())
    assert not (tmp_path / "bare" / "head").exists()
    assert not (tmp_path / "bare" / "modules.json").exists()
    assert open_checkpoint(tmp_path / "bare").heads() == ()


# Exports


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("head", [None, "sequence"])
def test_a_safetensors_export_is_the_same_model(saved, tmp_path, head, dtype):
    classifier, folder = saved()
    written = export(folder, tmp_path / "out", format="safetensors", head=head, dtype=dtype)
    assert written.heads == ("sequence",)
    assert load_file(tmp_path / "out" / HEAD)["linear.weight"].dtype == getattr(torch, dtype)
    again = TextClassifier.from_pretrained(tmp_path / "out", device="cpu")
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(logits(again, asked()), logits(classifier, asked()), rtol=0, atol=tolerance)
    np.testing.assert_allclose(oracle(tmp_path / "out").encode(asked()), logits(again, asked()), rtol=0, atol=tolerance)
    if dtype == "float32":
        assert again.predict(asked()) == classifier.predict(asked())


@pytest.mark.slow  # every day: padded rows read as packed ones, and the exports of the contract
@pytest.mark.parametrize("kind", ["text", "apart"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_an_onnx_export_gives_the_same_logits(saved, model_type, kind, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    import tokenizers

    if (model_type, kind) == ("xlnet", "apart"):
        pytest.skip("XLNet reads pairs as a whole")
    classifier, folder = saved(model_type, kind)
    written = export(folder, tmp_path / "out", format="onnx", head="sequence")
    assert written.largest_difference < 1e-4
    described = json.loads((tmp_path / "out" / "export.json").read_text())
    assert (described["head"], described["labels"]) == ("sequence", list(classifier.labels))
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    tokenizer.enable_padding(direction="left" if model_type == "xlnet" else "right")
    encoded = tokenizer.encode_batch(asked(kind))
    fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    feed = {
        port.name: np.array([getattr(each, fields[port.name]) for each in encoded]) for port in session.get_inputs()
    }
    (found,) = session.run(["logits"], feed)
    np.testing.assert_allclose(found, logits(classifier, asked(kind)), rtol=0, atol=1e-4)


def test_an_export_of_another_head_has_none_of_this(tmp_path):
    write_checkpoint(tmp_path / "base", architecture="BertForMaskedLM")
    as_embedder(tmp_path / "base")
    trained(tmp_path / "base").save(tmp_path / "saved")
    with pytest.raises(IncompatibleWeights, match="holds no masked_lm head"):
        export(tmp_path / "saved", tmp_path / "out", format="safetensors", head="masked_lm")


# What is no embedder of the mean


def kept_kind(folder):
    """What a new classifier above a folder reads."""
    return type(read_by(trained(folder))).__name__


@pytest.mark.parametrize(
    ("pooling", "change"),
    [
        *((pooling, {}) for pooling in ("cls", "mean_sqrt_length")),
        *(("mean", {name: True}) for name in POOLING_MODES if name != "pooling_mode_mean_tokens"),
        ("mean", {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}),
        ("mean", {"include_prompt": False}),
        ("mean", {"pooling_mode": "attention"}),
    ],
)
def test_another_pooling_or_one_that_is_not_built_keeps_the_head_of_the_family(tmp_path, pooling, change):
    folder = write_embedder(tmp_path / "base", pooling=pooling)
    path = folder / "1_Pooling" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert kept_kind(folder) == "FirstToken"


def test_an_embedder_of_more_modules_keeps_the_head_of_the_family(tmp_path):
    folder = write_embedder(tmp_path / "base")
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 3, "name": "3", "path": "3_LSTM", "type": "sentence_transformers.models.LSTM"})
    (folder / "modules.json").write_text(json.dumps(modules))
    classifier = trained(folder)
    assert type(read_by(classifier)).__name__ == "FirstToken"
    classifier.save(tmp_path / "saved")
    assert HEAD_POOLING not in json.loads((tmp_path / "saved" / "config.json").read_text())
    assert not (tmp_path / "saved" / "modules.json").exists()


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json"])
def test_a_damaged_layout_is_reported(tmp_path, name):
    folder = write_embedder(tmp_path / "base")
    (folder / name).write_text("[{")
    with pytest.raises(CorruptCheckpoint, match=name.rpartition("/")[2]):
        trained(folder)


def test_a_classifier_with_a_head_of_its_own_keeps_it(tmp_path):
    write_checkpoint(tmp_path / "base", architecture="BertForSequenceClassification")
    edit_config(tmp_path / "base", id2label={"0": "ant", "1": "bee", "2": "cow"})
    as_embedder(tmp_path / "base")
    assert kept_kind(tmp_path / "base") == "FirstToken"


def test_an_embedder_that_was_saved_here_says_itself_what_it_pools(tmp_path):
    for pooling, read in (("mean", "MeanOfTokens"), ("max", "FirstToken")):
        embedder = SentenceEmbedder.from_pretrained(
            write_embedder(tmp_path / pooling, pooling=pooling), device="cpu", dimensions=8
        )
        embedder.save(tmp_path / f"saved-{pooling}")
        assert kept_kind(tmp_path / f"saved-{pooling}") == read


# Used further


def test_a_classifier_pickles(saved, tmp_path):
    classifier, folder = saved()
    opened = TextClassifier.from_pretrained(folder, device="cpu")
    small = pickle.dumps(opened)
    assert len(small) < 60_000
    for each in (classifier, opened):
        assert pickle.loads(pickle.dumps(each)).predict(asked()) == classifier.predict(asked())
    pickle.loads(small).save(tmp_path / "again")
    assert load_file(tmp_path / "again" / HEAD).keys() == {"linear.weight", "linear.bias"}
    model = load(folder, heads=["sequence"], device="cpu")
    found = pickle.loads(pickle.dumps(model)).apply_head("sequence", "w5").logits
    assert torch.equal(found, model.apply_head("sequence", "w5").logits)


def test_a_pickle_notices_that_the_head_has_changed(spoilt):
    small = pickle.dumps(TextClassifier.from_pretrained(spoilt, device="cpu"))
    tensors = load_file(spoilt / HEAD)
    save_file({name: value + 1 for name, value in tensors.items()}, spoilt / HEAD)
    with pytest.raises(CorruptCheckpoint, match="weights have changed since it was pickled"):
        pickle.loads(small).predict("w5")


@pytest.mark.parametrize(("kind", "options"), [("text", QUICK), ("apart", STILL)])
def test_further_training_keeps_the_head(saved, kind, options, tmp_path):
    task, made, read = KINDS[kind]
    classifier = task.from_pretrained(saved(kind=kind)[1], device="cpu")
    record = classifier.fit(made("single"), validation=made("single"), **options)
    assert record.baseline == "model before the training"
    assert isinstance(read_by(classifier), read)
    classifier.save(tmp_path / "again")
    again = task.from_pretrained(tmp_path / "again", device="cpu")
    assert again.predict(asked(kind)) == classifier.predict(asked(kind))


def test_other_labels_get_a_new_head_of_the_mean(saved, tmp_path):
    classifier = TextClassifier.from_pretrained(saved()[1], device="cpu")
    data = [{**row, "label": "other"} if number % 4 == 0 else row for number, row in enumerate(rows("single"))]
    classifier.fit(data, validation=data, **QUICK)
    assert read_by(classifier) == MeanOfTokens()
    classifier.save(tmp_path / "again")
    assert open_checkpoint(tmp_path / "again").score_count("sequence") == 4
    assert TextClassifier.from_pretrained(tmp_path / "again", device="cpu").predict("w5") == classifier.predict("w5")


def tagged(count=16):
    return [
        {"tokens": row["text"].split(), "tags": ["B-X", *["O"] * row["text"].count(" ")]}
        for row in rows("single", count)
    ]


def test_a_tagger_of_it_has_nothing_of_the_head(saved, tmp_path):
    tagger = TextTagger.from_pretrained(saved()[1], device="cpu")
    with pytest.raises(NotFitted, match="was trained for classification and not for tagging"):
        tagger.predict("w5")
    tagger.fit(tagged(), validation=tagged(), **QUICK)
    tagger.save(tmp_path / "tagger")
    assert HEAD_POOLING not in json.loads((tmp_path / "tagger" / "config.json").read_text())
    assert not (tmp_path / "tagger" / "head").exists()
    again = TextTagger.from_pretrained(tmp_path / "tagger", device="cpu")
    assert again.predict("w5 w20") == tagger.predict("w5 w20")


def test_pairs_above_it_get_a_head_of_the_mean(saved, tmp_path):
    classifier = PairClassifier.from_pretrained(saved()[1], device="cpu")
    with pytest.raises(NotFitted, match="was trained for classification and not for pairs"):
        classifier.predict(("w5", "w6"))
    classifier.fit(pair_rows("single"), validation=pair_rows("single"), **QUICK)
    classifier.save(tmp_path / "pairs")
    assert PairClassifier.from_pretrained(tmp_path / "pairs", device="cpu").predict(
        asked("pair")
    ) == classifier.predict(asked("pair"))


def test_an_embedder_of_it_is_refused(saved):
    with pytest.raises(UnsupportedConfig, match="Dense"):
        SentenceEmbedder.from_pretrained(saved()[1], device="cpu")


def several(first="kind"):
    tasks = {"kind": TaskData(rows("single"), rows("single")), "names": TaggingData(tagged(), tagged())}
    return {first: tasks[first], **tasks}


@pytest.mark.parametrize("first", ["kind", "names"])
def test_several_tasks_above_it_are_saved_and_opened(saved, tmp_path, first):
    model = MultiTask.from_pretrained(saved()[1], device="cpu")
    model.fit(several(first), **QUICK)
    texts = asked()
    model.save(tmp_path / "all")
    again = MultiTask.from_pretrained(tmp_path / "all", device="cpu")
    assert again.predict(texts) == model.predict(texts)
    again.save(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "all")
    for each in (model, again):
        for name in ("kind", "names"):
            each.part(name).save(tmp_path / f"{id(each)}-{name}")
            alone = bothways.open_trained(tmp_path / f"{id(each)}-{name}", device="cpu")
            assert alone.predict(texts) == each.part(name).predict(texts)
    if first == "kind":
        expected = logits(model.part("kind"), texts)
        np.testing.assert_allclose(oracle(tmp_path / "all").encode(texts), expected, rtol=0, atol=1e-5)
    again.fit(several(first), **QUICK)
    again.save(tmp_path / "further")
    assert MultiTask.from_pretrained(tmp_path / "further", device="cpu").predict(texts) == again.predict(texts)


def test_several_tasks_above_an_embedder_itself_are_saved_and_opened(tmp_path):
    model = MultiTask.from_pretrained(write_embedder(tmp_path / "base"), device="cpu")
    model.fit(several(), **QUICK)
    model.save(tmp_path / "all")
    assert MultiTask.from_pretrained(tmp_path / "all", device="cpu").predict(asked()) == model.predict(asked())


# Damaged


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "a bit flipped"])
@pytest.mark.parametrize("known", [True, False])
def test_a_damaged_head_is_an_error_of_ours(spoilt, damage, known):
    path = spoilt / HEAD
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "truncated": content[:-50], "a bit flipped": content}[damage])
    if not known:  # no checksums: as another program may have written it
        (spoilt / "bothways.json").unlink()
    if damage == "a bit flipped" and not known:
        return
    with pytest.raises(BothwaysError, match=r"head|trained") as caught:
        TextClassifier.from_pretrained(spoilt, device="cpu").predict("w5")
    assert isinstance(caught.value, NotFitted if damage == "missing" and not known else CorruptCheckpoint)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda tensors: tensors.pop("linear.bias"), IncompatibleWeights, r"lacks 1 of the 2 .*output\.bias"),
        (lambda tensors: tensors.update({"linear.weight": torch.zeros(3, 7)}), IncompatibleWeights, "shape|size"),
        (lambda tensors: tensors.update({"linear.bias": torch.zeros(4)}), IncompatibleWeights, "shape|size"),
        (lambda tensors: tensors.update({"linear.weight": torch.zeros(3)}), IncompatibleWeights, "shape|size"),
    ],
)
def test_a_head_of_other_sizes_is_refused(spoilt, change, error, words):
    (spoilt / "bothways.json").unlink()
    tensors = load_file(spoilt / HEAD)
    change(tensors)
    save_file(tensors, spoilt / HEAD)
    with pytest.raises(error, match=words):
        load(spoilt, heads=["sequence"], device="cpu")


@pytest.mark.parametrize("pooling", ["max", "", 3, True, ["mean"], {}])
def test_another_pooling_of_the_head_is_refused(spoilt, pooling):
    edit_config(spoilt, **{HEAD_POOLING: pooling})
    with pytest.raises(UnsupportedConfig, match=r"sets head_pooling to .*not supported .*; only 'mean' or 'pair' is"):
        TextClassifier.from_pretrained(spoilt, device="cpu")
    with pytest.raises(UnsupportedConfig, match="head_pooling"):
        load(spoilt, heads=["sequence"], device="cpu")


def test_a_head_beside_a_model_that_does_not_name_it_is_refused(spoilt):
    edit_config(spoilt, **{HEAD_POOLING: None})
    with pytest.raises(BothwaysError):
        load(spoilt, heads=["sequence"], device="cpu")
    with pytest.raises(BothwaysError):
        TextClassifier.from_pretrained(spoilt, device="cpu").predict("w5")


def test_a_folder_called_head_of_another_program_is_no_classifier(tmp_path):
    write_checkpoint(tmp_path / "model")
    (tmp_path / "model" / "head").mkdir()
    save_file({"weight": torch.zeros(3)}, tmp_path / "model" / HEAD)
    with pytest.warns(bothways.errors.TensorsLeftOver, match="head/weight"):
        load(tmp_path / "model", device="cpu")
    with pytest.raises(NotFitted):
        TextClassifier.from_pretrained(tmp_path / "model", device="cpu").predict("w5")


def test_the_hub_gives_all_files_of_such_a_model(saved):
    from huggingface_hub.utils import filter_repo_objects

    from bothways.checkpoints.hub import FILES

    names = contents(saved()[1]).keys()
    assert set(filter_repo_objects(names, allow_patterns=list(FILES))) >= {HEAD, "head/config.json", "modules.json"}
