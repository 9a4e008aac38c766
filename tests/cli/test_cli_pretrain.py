"""``bothways pretrain``: from a text file to an encoder, with options from a file, again and again."""

import json

import pytest
from command_line import call, fails, ok, saved_of

from bothways.data.shards import MANIFEST

TEXTS = [f"the cat sat on the mat number {number}. and saw {number * 7} birds." for number in range(150)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A text file and a tokenizer that was trained on it."""
    folder = tmp_path_factory.mktemp("pretraining")
    (folder / "texts.txt").write_text("\n\n".join(TEXTS) + "\n")
    words = ("--vocabulary", 300, "--data", folder / "texts.txt", "--output", folder / "tok", "--quiet")
    ok("tokenizer", "train", *words)
    return folder


def words_of(made, output, *more, recipe="electra"):
    data = ("--tokenizer", made / "tok", "--data", made / "texts.txt", "--output", output, "--device", "cpu")
    small = ("--updates", 4, "--batch-size", 4, "--length", 32)
    return ("pretrain", "--recipe", recipe, "--scale", "tiny", *data, *small, *more)


# All are trained in tests/pretraining.
@pytest.mark.parametrize("recipe", ["bert", "deberta-v3", "xlnet"])
def test_a_text_file_becomes_an_encoder(made, tmp_path, recipe):
    outcome = call(*words_of(made, tmp_path / "pt", "--quiet", recipe=recipe))
    assert (outcome.code, outcome.err) == (0, "")
    assert "trained      4 updates" in outcome.out
    assert f"recipe       {recipe}" in outcome.out
    assert f"next         bothways train classification --model {tmp_path / 'pt'}" in outcome.out
    ok("tokenize", tmp_path / "pt", "the cat")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["pt", "pt.shards"]
    (shards,) = (tmp_path / "pt.shards").iterdir()
    manifest = json.loads((shards / MANIFEST).read_text())
    assert manifest["documents"] == len(TEXTS)


def test_what_a_recipe_leaves_out_is_said(made, tmp_path):
    outcome = call(*words_of(made, tmp_path / "pt", recipe="distilbert"))
    assert "only masked language modelling: to train with one, use bothways distill." in outcome.err


def test_shards_are_taken_again_and_can_be_given(made, tmp_path):
    first = call(*words_of(made, tmp_path / "pt"))
    assert "tokens of 150 documents are in" in first.err
    again = ok(*words_of(made, tmp_path / "pt", "--overwrite"))
    assert "documents are in" not in again.err
    (shards,) = (tmp_path / "pt.shards").iterdir()
    given = [*words_of(made, tmp_path / "other", "--json", "--quiet")]
    given[given.index(made / "texts.txt")] = shards
    found = ok(*given)
    assert (found.json()["updates"], found.json()["recipe"]) == (4, "electra")
    assert not (tmp_path / "other.shards").exists()


def test_a_file_that_has_changed_is_encoded_anew(made, tmp_path):
    data = tmp_path / "texts.txt"
    words = [*words_of(made, tmp_path / "pt", "--overwrite")]
    words[words.index(made / "texts.txt")] = data
    for count in (100, 120):
        data.write_text("\n\n".join(TEXTS[:count]) + "\n")
        assert f"tokens of {count} documents are in" in call(*words).err
    assert len([*(tmp_path / "pt.shards").iterdir()]) == 2


def test_options_can_come_from_a_file(made, tmp_path):
    (tmp_path / "run.toml").write_text(
        f'recipe = "roberta"\ntokenizer = "{made / "tok"}"\ndata = ["{made / "texts.txt"}"]\nlength = 32\n'
        'updates = 9\nbatch_size = 4\nquiet = true\noverwrite = false\ndevice = "cpu"\n'
    )
    words = ("pretrain", "--config", tmp_path / "run.toml", "--output", tmp_path / "pt", "--updates", 3, "--json")
    outcome = call(*words)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.json()["updates"] == 3
    assert call(*words).code == 1  # the output is there


def test_lengths_and_batches_are_the_same_from_a_file_and_the_command_line(made, tmp_path):
    (tmp_path / "run.toml").write_text(
        'tokens = "2k"\nbatch-size = 4\nlength = 32\nbatch-from = 1\nbatch-warmup-tokens = 500\nlayer_decay = 0.9\n'
    )
    data = ("--tokenizer", made / "tok", "--data", made / "texts.txt", "--device", "cpu", "--json", "--quiet")
    words = ("pretrain", "--recipe", "roberta", *data)
    flags = ("--tokens", "2k", "--batch-size", 4, "--length", 32, "--batch-from", 1, "--batch-warmup-tokens", 500)
    first = call(*words, "--output", tmp_path / "a", "--config", tmp_path / "run.toml")
    second = call(*words, "--output", tmp_path / "b", *flags, "--layer-decay", 0.9)
    assert (first.code, second.code, first.err) == (0, 0, "")
    assert first.json()["tokens"] == second.json()["tokens"] == pytest.approx(2_000, abs=4 * 32)
    cards = [saved_of(tmp_path / each)["card"]["training"] for each in "ab"]
    assert cards[0]["validations"] == cards[1]["validations"]
    assert cards[0]["settings"]["layer_decay"] == 0.9


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--tokens", "5k"), "expected only one of epochs, updates and total_tokens, got updates=4, total_tokens=5000"),
        (("--tokens", "50x"), "a number of tokens such as 50M"),
        (("--tokens", "0"), "a number of tokens such as 50M"),
        (("--layer-decay", 1.5), "`layer_decay` must be a number above 0 and at most 1"),
        (("--batch-from", 2), "a batch warm-up needs --batch-from and one of"),
        (("--batch-warmup-updates", 2), "a batch warm-up needs"),
        (("--batch-from", 2, "--batch-warmup-updates", 2, "--batch-warmup-tokens", "5k"), "a batch warm-up needs"),
        (("--batch-from", 0, "--batch-warmup-updates", 2), "batch-from"),
    ],
)
def test_a_wrong_length_or_batch_is_refused(made, tmp_path, more, said):
    fails(2, said, *words_of(made, tmp_path / "pt", "--quiet", *more))
    assert not (tmp_path / "pt").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("batch_sise = 3", "Unknown option: --batch-sise. Did you mean --batch-size?"),
        ("[training]\nupdates = 3", "has a table [training]"),
        ("updates =", "is not TOML"),
        ('updates = "many"', "updates"),
    ],
)
def test_a_wrong_file_of_options_is_refused(made, tmp_path, content, said):
    (tmp_path / "run.toml").write_text(content)
    fails(2, said, *words_of(made, tmp_path / "pt")[:-6], "--config", tmp_path / "run.toml")
    assert not (tmp_path / "pt").exists()


def test_a_file_of_options_that_is_not_there_is_named(made, tmp_path):
    fails(2, "none.toml': No such file", *words_of(made, tmp_path / "pt", f"--config={tmp_path / 'none.toml'}"))
    assert "--config needs a file" in call("pretrain", "--config").err


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--recipe", "electro"), 2, 'Did you mean "electra"?'),
        (("--length", 2000), 2, "at most 512 tokens, the limit of the recipe's model, got 2,000"),
        (("--updates", 0), 2, "updates"),
        (("--tokenizer", "nowhere"), 1, "nowhere"),
        (("--data", "nowhere.txt"), 1, "nowhere.txt"),
    ],
)
def test_what_makes_no_sense_is_refused(made, tmp_path, more, code, said):
    words = [*words_of(made, tmp_path / "pt", "--quiet")]
    words[words.index(more[0]) + 1] = more[1]
    fails(code, said, *words)
    assert not [*tmp_path.iterdir()]  # not even shards of the data


def test_an_empty_corpus_is_refused(made, tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    words = [*words_of(made, tmp_path / "pt", "--quiet")]
    words[words.index(made / "texts.txt")] = tmp_path / "empty.txt"
    fails(1, "there is no text to write", *words)


def test_a_damaged_shard_is_named_and_not_trained_on(made, tmp_path):
    ok(*words_of(made, tmp_path / "pt", "--quiet"))
    (tokens,) = (tmp_path / "pt.shards").glob("*/*.tokens.npy")
    content = bytearray(tokens.read_bytes())
    content[-1] ^= 1
    tokens.write_bytes(content)
    fails(1, "tokens.npy' is damaged", *words_of(made, tmp_path / "pt", "--quiet", "--overwrite"))
