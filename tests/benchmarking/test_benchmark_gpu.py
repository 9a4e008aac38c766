"""The made model and texts of the GPU benchmark, which no everyday run of it would notice to be broken."""

import tokenizers
import torch
from benchmarks.gpu_sides import FINE_TUNING, MASKED_LM, OurEmbedder, Ours, drawn_texts, drawn_windows, write_embedder

TINY = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
CPU = torch.device("cpu")


def test_drawn_texts_have_the_tokens_that_the_speed_divides(tmp_path):
    write_embedder(tmp_path, "bert", TINY, CPU)
    texts, tokens = drawn_texts(5, TINY["vocab_size"])
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert sum(len(each.ids) for each in tokenizer.encode_batch(texts)) == tokens
    assert OurEmbedder(tmp_path, CPU).encode(texts, 0).shape == (5, 32)


def test_a_contestant_computes_vectors_and_trains():
    ours, windows = Ours("bert", TINY, CPU), drawn_windows(3, 100)
    assert ours.vectors(windows, 0).shape == (3, 32)
    for work in (FINE_TUNING, MASKED_LM):
        ours.step(windows, work)
    moved = ours._stepper._optimizer.state()
    assert all(moved[f"exp_avg/{head}.weight"].any() for head in ("sequence.output", "masked_lm.transform.dense"))
