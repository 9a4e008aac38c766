"""What the peers of the speed and retrieval benchmarks are given: batches, runtimes and fusion, and what is a tie."""

import numpy as np
import pytest
import torch
from benchmarks import embedders, embedding, retrieval
from benchmarks.embedders import BASELINE, OURS, TUNED
from benchmarks.harness import Options, Spread
from benchmarks.reference import PRODUCTS, Deviation, Trial
from benchmarks.texts import Workload

from bothways.evaluation.intervals import Estimate
from bothways.retrieval.ranking import ReciprocalRank, Weighted
from bothways.retrieval.ranking import fused as fused_by_us

# --- batches ---


@pytest.mark.parametrize(
    ("seconds", "most", "tried", "batch"),
    [
        ([9, 5, 4, 4.5, 4.8, 4.9], 64, 6, 4),
        ([9, 5, 4, 4.5, 5.1, 1.0], 64, 5, 4),
        ([9, 5, 4, 3.0, 2.0, 1.0], 8, 4, 8),
        ([9, 5, 4, 3.0, 2.0, 1.0], 7, 3, 4),
        ([9, 5, 4, 3.0, 2.0, 1.0], 1, 1, 1),
    ],
)
def test_the_fastest_batch_is_taken_of_those_that_can_be_filled(seconds, most, tried, batch):
    left = iter(seconds)
    trial = Trial.of(lambda _: next(left), most)
    assert (trial.batch, list(trial.seconds.values())) == (batch, seconds[:tried])


def test_a_ratio_is_a_tie_where_its_spread_includes_one():
    assert Spread(1.1, 1.05, 1.2).ratio() == "1.10 (1.05 to 1.20)"
    assert Spread(1.1, 1.0, 1.2).ratio() == "1.10 (1.00 to 1.20), tie"
    assert Spread(1.0, 1.0, 1.0).ratio() == "1.00 (1.00 to 1.00)"


# --- embedding ---


class CountingRuntime(embedders.Runtime):
    """Hidden states that tell ids and places, and garbage where there is padding; notes the shapes it was given."""

    def run(self, inputs):
        ids_BS, mask_BS, _ = inputs.values()
        self.shapes = [*getattr(self, "shapes", []), ids_BS.shape]
        hidden_BSH = np.stack([ids_BS, np.ones_like(ids_BS) * np.arange(ids_BS.shape[1])], axis=2).astype(np.float32)
        return np.where(mask_BS[..., None] == 1, hidden_BSH, 1e6)


def test_a_runtime_gives_the_same_vectors_in_batches_of_any_size(minilm_folder):
    texts = ["one", "one two three four", "one two", "a longer text than all of the others here", "five"]
    sorted_by_tokens = CountingRuntime()
    expected = np.concatenate([CountingRuntime().encode([text]) for text in texts])
    for batch in (1, 2, 5):
        np.testing.assert_allclose(sorted_by_tokens.encode(texts, batch), expected, rtol=1e-6)
    assert sorted_by_tokens.shapes[:5] == [(1, 11), (1, 6), (1, 4), (1, 3), (1, 3)]
    assert sorted_by_tokens.shapes[5:] == [(2, 11), (2, 4), (1, 3), (5, 11)]


def test_ctranslate2_reads_what_its_converter_wrote(tiny, tmp_path):
    pytest.importorskip("ctranslate2")
    import transformers

    embedders.convert(tmp_path / "made.onnx", tiny)
    runtime = embedders.CTranslate2(1, tmp_path / embedders.CTRANSLATE2, "float32")
    texts = ["one", "one two three four", "a longer text than all of the others here"]
    model = transformers.BertModel.from_pretrained(tiny).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    with torch.inference_mode():
        means = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in texts]
    expected = torch.nn.functional.normalize(torch.stack(means), dim=1).numpy()
    np.testing.assert_allclose(runtime.encode(texts, 2), expected, atol=1e-5)


def test_the_table_of_embedding_says_batch_tie_and_how_much_faster_ours_is():
    peer = TUNED[-1]
    load = Workload("made", ("a b", "c"), (4, 3), "made")
    walls = {OURS: [1.0, 1.0], BASELINE: [2.0, 2.2], peer: [0.9, 1.2]}
    rounds = {name: [{"wall": each, "cpu": each} for each in times] for name, times in walls.items()}
    rounds[PRODUCTS] = [{"rate": 1e9}] * 2
    deviations = dict.fromkeys(walls, Deviation(1.0, 0.0, 0, None))
    found, text = embedding._summary(load, rounds, deviations, {peer: Trial(4, {1: 2.0, 4: 1.0})}, Options())
    lines = {line.split(" | ")[0][2:]: line.split(" | ") for line in text.splitlines() if line.startswith("| ")}
    assert lines[OURS][1] == lines[BASELINE][1] == ""
    assert lines[OURS][7] == ""
    assert lines[BASELINE][7] == "2.10 (2.00 to 2.20)"
    assert (lines[peer][1], lines[peer][7]) == ("4", "1.05 (0.90 to 1.20), tie")
    assert found["contestants"][peer]["batch_trial"] == {1: 2.0, 4: 1.0}


# --- retrieval ---


def test_reciprocal_ranks_of_two_rankings_are_added():
    dense, lexical = {"q": {"a": 0.9, "b": 0.5, "c": 0.1}}, {"q": {"c": 3.0, "d": 2.0, "b": 0.0}}
    found = retrieval.fused(dense, lexical, retrieval.reciprocal_ranks)["q"]
    assert found == pytest.approx({"c": 1 / 63 + 1 / 61, "a": 1 / 61, "b": 1 / 62, "d": 1 / 62})
    assert list(found)[:2] == ["c", "a"]


def test_scores_of_two_rankings_are_brought_to_one_scale_and_added():
    dense, lexical = {"q": {"a": 0.9, "b": 0.5, "c": 0.1}}, {"q": {"c": 3.0, "d": 2.0, "b": 0.0}}
    found = retrieval.fused(dense, lexical, retrieval.zero_to_one)["q"]
    assert found == pytest.approx({"a": 1.0, "b": 0.5, "c": 1.0, "d": 0.0})
    assert retrieval.fused({"q": {"a": 0.9}}, {"q": {}}, retrieval.zero_to_one) == {"q": {"a": 0.0}}


@pytest.mark.parametrize(
    ("ours", "theirs"), [(ReciprocalRank(), retrieval.reciprocal_ranks), (Weighted(), retrieval.zero_to_one)]
)
def test_the_peers_rankings_are_fused_as_ours_are(ours, theirs):
    random = np.random.default_rng(0)
    dense_F, lexical_F = random.normal(size=30), random.random(30)
    lexical_F[0] = 1e-9  # the least that still counts as found, so that both scales begin alike

    def scored(scores_F):
        return {"q": {str(row): float(scores_F[row]) for row in np.argsort(-scores_F)}}

    found = retrieval.fused(scored(dense_F), scored(lexical_F), theirs)["q"]
    expected_F = fused_by_us(ours, dense_F, lexical_F, 1000)
    assert list(found) == [str(row) for row in np.argsort(-expected_F, kind="stable")]


def test_the_tables_of_retrieval_say_what_is_a_tie():
    clear, tie = Estimate(0.1, 0.05, 0.15), Estimate(0.1, 0.0, 0.2)
    measures = dict.fromkeys(retrieval.RANKING_MEASURES, tie) | {"map": clear}
    text = retrieval._tables({}, {"ours - theirs": measures}, {})
    assert "| ours - theirs | 0.1000 (0.0000 to 0.2000), tie | 0.1000 (0.0500 to 0.1500) |" in text
    assert "Each minus its peer" not in text
