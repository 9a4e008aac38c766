"""The benchmarks lie beside the tests and are in no installed package."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@pytest.fixture(scope="module")
def tiny(minilm_folder, tmp_path_factory):
    """The folder of a random BERT with MiniLM's tokenizer."""
    import torch
    import transformers

    pytest.importorskip("accelerate", reason="transformers' Trainer asks for it")
    folder = tmp_path_factory.mktemp("tiny") / "bert"
    shutil.copytree(minilm_folder, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=30_522, position_embedding_type="absolute", **shape)
    transformers.BertModel(config).save_pretrained(folder)
    return folder
