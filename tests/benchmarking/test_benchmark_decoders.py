"""How the benchmarks read the peers' outputs: a decoder that lost answers would flatter our side."""

import numpy as np
import pytest
import scipy.special
from benchmarks.peers import AnsweringPeer, SequencePeer, TaggingPeer

transformers = pytest.importorskip("transformers", reason="the oracle is not installed: pip install 'bothways[test]'")
pytest.importorskip("accelerate", reason="transformers' training settings ask for it")

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
WORDS = [["Ada", "Lovelace", "lived", "in", "Ockhamshire"], ["Unbelievably", "quiet"], ["Xylophonists", "met", "Ada"]]


def random_model(kind, **settings):
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.BertConfig(vocab_size=30_522, initializer_range=1.0, **TINY, **settings)
        return getattr(transformers, kind)(config).eval()


def test_tags_are_those_of_transformers_pipeline_at_the_first_pieces(minilm_folder):
    peer = TaggingPeer(1, "cpu")
    peer.labels = ["A", "B", "C", "D"]
    peer.model = random_model("BertForTokenClassification", id2label=dict(enumerate("ABCD")))
    pipeline = transformers.TokenClassificationPipeline(
        model=peer.model, tokenizer=peer.tokenizer, aggregation_strategy="none", ignore_labels=[]
    )
    found = peer.answers([{"tokens": words} for words in WORDS])
    assert len({tag for tags in found for tag in tags}) > 1
    for words, tags in zip(WORDS, found, strict=True):
        starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
        pieces = pipeline(" ".join(words))
        assert len(pieces) > len(words)
        of_start = {piece["start"]: piece["entity"] for piece in pieces}
        assert tags == [of_start[start] for start in starts]


def test_probabilities_of_pairs_are_the_softmax_of_each_pair_alone(minilm_folder):
    import torch

    peer = SequencePeer(1, "cpu")
    peer.labels, peer.model = ["A", "B", "C"], random_model("BertForSequenceClassification", num_labels=3)
    made = [{"text_a": " ".join(WORDS[n % 3]), "text_b": "They met. " * (1 + n % 5)} for n in range(40)]
    for row, answer in zip(made, peer.answers(made), strict=True):
        given = peer.tokenizer(row["text_a"], row["text_b"], return_tensors="pt")
        with torch.no_grad():
            expected = scipy.special.softmax(peer.model(**given).logits[0].double().numpy())
        assert list(answer.values()) == pytest.approx(list(expected), abs=1e-5)


def question(answer, before, after):
    context = (
        f"{'Filler words stand here, and there. ' * before}{answer}{' More of them follow; it never ends.' * after}"
    )
    golds = [{"text": answer, "start": context.index(answer)}]
    return {"question": " Who, or what?", "context": context, "answers": golds}


def test_the_places_that_are_learnt_are_read_as_the_answer_in_every_window(minilm_folder, monkeypatch):
    peer = AnsweringPeer(1, "cpu")
    made = [
        question("Ada Lovelace", 0, 1),
        question("the U.S.A. (2012)", 3, 0),
        question("Ockhamshire", 55, 40),  # several windows, the answer in two of them
    ]
    encoded = peer._encoded(made)
    windows = encoded["overflow_to_sample_mapping"]
    assert len(windows) > len(made)
    scores = []
    for window, index in enumerate(windows):
        scores_S2 = np.full((len(encoded["input_ids"][window]), 2), -5.0)
        # Where it is not, the first token; that of a window without the answer is less sure than one that has it.
        for side, place in enumerate(peer._places(encoded, window, made[index]["answers"])):
            scores_S2[place, side] = 5.0 if place else 1.0
        scores.append(scores_S2)
    monkeypatch.setattr(peer, "outputs", lambda _: scores)
    assert peer.answers(made) == [row["answers"][0]["text"] for row in made]


@pytest.mark.parametrize("seed", range(5))
def test_the_best_span_is_the_best_of_all_in_the_context(minilm_folder, seed):
    peer = AnsweringPeer(1, "cpu")
    made = [question("Ada Lovelace", 1, 0)]
    encoded = peer._encoded(made)
    scores_S2 = np.random.default_rng(seed).normal(size=(len(encoded["input_ids"][0]), 2))
    places = [place for place, part in enumerate(encoded.sequence_ids(0)) if part == 1]
    assert len(places) < 20  # so that every one is among the best
    score, first, last = max(
        (scores_S2[start, 0] + scores_S2[end, 1], start, end) for start in places for end in places if start <= end
    )
    offsets = encoded["offset_mapping"][0]
    text = made[0]["context"][offsets[first][0] : offsets[last][1]]
    assert peer._best_span(encoded, 0, scores_S2, made[0]["context"]) == (pytest.approx(score), text)
