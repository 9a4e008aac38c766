"""The recipe of XLNet from a corpus of long documents to a model that transformers opens, with its head."""

import json

import pytest
import torch
import transformers

from bothways.checkpoints import load
from bothways.data.shards import ShardSource, TokenCorpus, write_shards
from bothways.pretraining.pretrainer import Pretrainer
from bothways.pretraining.recipes import find_recipe, scaled


@pytest.fixture(scope="module")
def corpus(trained_tokenizers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    texts = ["\n".join(f"the cat number {row * 7 + line} sat on the mat" for line in range(9)) for row in range(12)]
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": each}) for each in texts))
    source = ShardSource([folder / "texts.jsonl"], deduplicate=False)
    write_shards(source, folder / "shards", trained_tokenizers["unigram"], show_progress=False)
    return TokenCorpus.open(folder / "shards")


def test_xlnet(trained_tokenizers, corpus, tmp_path):
    recipe = scaled(find_recipe("xlnet"), "tiny").changed(updates=6, batch=4, length=32)
    pretrainer = Pretrainer(recipe, trained_tokenizers["unigram"], device="cpu")
    record = pretrainer.fit(corpus, seed=0, show_progress=False)
    assert record.updates == 6
    assert record.validations[-1].metrics.keys() == {"loss", "perplexity", "accuracy"}
    assert record.validations[-1].metrics["loss"] < record.validations[0].metrics["loss"]
    pretrainer.save(tmp_path / "model")
    theirs = transformers.XLNetLMHeadModel.from_pretrained(tmp_path / "model").eval()
    ours = load(tmp_path / "model", heads=["permutation_lm"], device="cpu")
    blank = pretrainer.fitted.model.encoder.embedding.blank
    assert blank.abs().sum() > 0
    assert torch.equal(theirs.transformer.mask_emb.flatten(), blank)
    ids = torch.tensor([[*range(10, 20)]])
    with torch.no_grad():
        expected = theirs(ids).logits
        found = ours.apply_head("permutation_lm", input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    assert torch.allclose(found, expected, atol=1e-5)
