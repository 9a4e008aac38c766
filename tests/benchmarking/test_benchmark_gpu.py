"""The made model and texts of the GPU benchmark, which no everyday run of it would notice to be broken."""

import tokenizers
import torch
from benchmarks.embedders import SPECIAL, Bothways, write_bert
from benchmarks.gpu_sides import FINE_TUNING, MASKED_LM, Ours, drawn_texts, drawn_windows, words

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
    known, windows = words(TINY["vocab_size"] - len(SPECIAL)), drawn_windows(5)
    write_bert(tmp_path, known, **TINY)
    texts = drawn_texts(windows, known)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    counts = [len(each.ids) for each in tokenizer.encode_batch(texts)]
    assert counts == [len(window.ids) for window in windows]
    assert Bothways(1, tmp_path).encode(texts).shape == (5, 32)


def test_a_contestant_computes_vectors_and_trains():
    ours, windows = Ours("bert", TINY, CPU), drawn_windows(3, 100)
    assert ours.encode(windows).shape == (3, 32)
    for work in (FINE_TUNING, MASKED_LM):
        ours.step(windows, work)
    moved = ours._stepper._optimizer.state()
    assert all(moved[f"exp_avg/{head}.weight"].any() for head in ("sequence.output", "masked_lm.transform.dense"))
