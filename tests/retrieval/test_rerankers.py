"""Models as rerankers, lists of candidates, and hard negatives."""

import warnings

import numpy as np
import pytest

from bothways import PairClassifier, SemanticSearch, SentenceEmbedder, TextClassifier
from bothways.errors import InvalidInput, NotFitted, TextsTruncated
from bothways.retrieval import (
    BiEncoder,
    CandidateRanking,
    Candidates,
    CrossEncoder,
    Dense,
    Hit,
    Mining,
    Rerank,
    evaluate_reranker,
    mine_negatives,
    read_candidates,
    reranked,
)
from bothways.retrieval.reranking import search_reranked

ROWS = [
    {"text_a": f"w{5 + query}", "text_b": f"w{5 + other} w{30 + other}", "label": "yes" if query == other else "no"}
    for query in range(4)
    for other in range(4)
]


@pytest.fixture(scope="module")
def pairs(tiny_bert):
    made = PairClassifier.from_pretrained(tiny_bert, device="cpu")
    made.fit(ROWS, validation=ROWS, epochs=2, learning_rate=3e-3, batch_size=8)
    return made


def renamed(yes, no):
    """The rows under other labels."""
    return [{**row, "label": {"yes": yes, "no": no}[row["label"]]} for row in ROWS]


def trained(tiny_bert, rows, **options):
    made = PairClassifier.from_pretrained(tiny_bert, device="cpu")
    made.fit(rows, validation=rows, epochs=1, **options)
    return made


@pytest.fixture(scope="module")
def graded(tiny_bert):
    """A model of three grades, and its rows."""
    rows = [{**row, "label": str(place % 3)} for place, row in enumerate(ROWS)]
    return trained(tiny_bert, rows), rows


@pytest.fixture(scope="module")
def similar(tiny_bert):
    """A model of scores."""
    rows = [{**row, "score": float(row["label"] == "yes")} for row in ROWS]
    return trained(tiny_bert, rows, target="regression", label="score")


PASSAGES = [f"w{word} w{word + 20}" for word in range(5, 17)]
ASKED = [("w5", text) for text in PASSAGES]


def test_a_model_of_labels_ranks_by_the_probability_of_the_relevant_one(pairs):
    expected = [found.probabilities["yes"] for found in pairs.predict(ASKED, calibrated=False)]
    np.testing.assert_allclose(CrossEncoder(pairs, "yes").score("w5", PASSAGES), expected, rtol=1e-9)
    hits = [Hit(str(place), text, 1.0, place + 1) for place, text in enumerate(PASSAGES)]
    found = reranked(hits, "w5", Rerank(CrossEncoder(pairs, "yes")))
    assert [int(hit.id) for hit in found] == np.argsort(-np.array(expected), kind="stable").tolist()
    with pytest.raises(InvalidInput, match=r"one of the labels 'no', 'yes', got 'maybe'"):
        CrossEncoder(pairs, "maybe")


def test_a_calibration_that_states_the_same_for_all_does_not_take_their_order_away(tiny_bert):
    rows = [{"text_a": "w5", "text_b": text, "label": ("no", "yes")[n % 2]} for n, text in enumerate(PASSAGES)]
    made = trained(tiny_bert, rows, calibration="isotonic", seed=1)
    stated = [found.probabilities["yes"] for found in made.predict(ASKED)]
    assert len(set(stated)) < len(PASSAGES) == len(set(CrossEncoder(made).score("w5", PASSAGES)))


def test_a_model_of_grades_ranks_by_the_expected_grade(graded):
    made, _ = graded
    found = made.predict(ASKED, calibrated=False)
    expected = [each.probabilities["1"] + 2 * each.probabilities["2"] for each in found]
    reranker = CrossEncoder(made)
    assert reranker.relevant is None
    np.testing.assert_allclose(reranker.score("w5", PASSAGES), expected, rtol=1e-9)
    chosen = [each.probabilities["2"] for each in found]
    np.testing.assert_allclose(CrossEncoder(made, "2").score("w5", PASSAGES), chosen, rtol=1e-9)


def test_a_model_of_scores_ranks_by_its_score(similar):
    expected = [found.value for found in similar.predict(ASKED)]
    np.testing.assert_allclose(CrossEncoder(similar).score("w5", PASSAGES), expected, rtol=1e-9)
    with pytest.raises(InvalidInput, match="must be None, as it predicts scores, got 'yes'"):
        CrossEncoder(similar, "yes")


def test_a_model_without_a_trained_head_is_no_reranker(tiny_bert):
    with pytest.raises(NotFitted, match="needs a trained pair model"):
        CrossEncoder(PairClassifier.from_pretrained(tiny_bert, device="cpu"))


def test_the_label_that_is_usually_called_so_need_not_be_named(tiny_bert, pairs):
    assert CrossEncoder(pairs).relevant == "yes"
    made = trained(tiny_bert, renamed("ant", "bee"))
    assert CrossEncoder(made, "ant").relevant == "ant"
    with pytest.raises(InvalidInput, match=r"one of the labels 'ant', 'bee', got None"):
        CrossEncoder(made)


def test_candidates_are_gathered_by_query_and_grades_or_a_label_say_what_answers():
    by_label = read_candidates(ROWS, relevant="yes")
    assert [each.query for each in by_label] == ["w5", "w6", "w7", "w8"]
    assert by_label[1].grades == (0, 1, 0, 0)
    graded = read_candidates([{"text_a": "q", "text_b": "p", "label": 2}, {"text_a": "q", "text_b": "r", "label": "0"}])
    assert graded == [Candidates("q", ("p", "r"), (2, 0))]
    assert read_candidates(ROWS) == by_label
    with pytest.raises(InvalidInput, match=r"whole numbers of at least 0, or .*'ant', 'bee'.*--relevant"):
        read_candidates(renamed("ant", "bee"))


def test_a_label_that_the_data_have_not_is_named_beside_those_that_they_have(tiny_bert, tmp_path):
    rows = renamed("entailment", "neutral")
    trained(tiny_bert, rows).save(tmp_path / "nli")
    ranking = CandidateRanking.open(tmp_path / "nli", device="cpu")
    assert ranking.evaluate(rows).n
    with pytest.raises(
        InvalidInput, match=r"no passage has the label 'entailment' .* in 'label' are 'no', 'yes'.*--relevant"
    ):
        ranking.evaluate(ROWS)


def test_opened_models_are_evaluated_as_their_rerankers(tiny_bert, pairs, graded, similar, tmp_path):
    made, graded_rows = graded
    for model, rows in ((pairs, ROWS), (made, graded_rows), (similar, ROWS)):
        model.save(tmp_path / "model", overwrite=True)
        found = CandidateRanking.open(tmp_path / "model", device="cpu").evaluate(rows)
        assert found.estimates == evaluate_reranker(CrossEncoder(model), read_candidates(rows)).estimates
    # A model of scores has no labels: the name of passages that answer is the data's alone.
    again = CandidateRanking.open(tmp_path / "model", relevant="good", device="cpu").evaluate(renamed("good", "bad"))
    assert again.estimates == found.estimates
    embedder = BiEncoder(SentenceEmbedder.from_pretrained(tiny_bert, device="cpu"))
    found = CandidateRanking.open(tiny_bert, device="cpu").evaluate(ROWS)
    assert found.estimates == evaluate_reranker(embedder, read_candidates(ROWS)).estimates
    assert {grade for each in read_candidates(graded_rows) for grade in each.grades} == {0, 1, 2}


class Scoring:
    """A reranker whose scores are a function of the passages."""

    def __init__(self, scores_of):
        self.scores_of = scores_of

    def score(self, _query, passages):
        return np.array(self.scores_of(passages))


BY_LENGTH = Scoring(lambda passages: [float(len(each)) for each in passages])


def test_the_measures_are_those_of_the_rankings_and_queries_without_contrast_are_left_out():
    lists = [
        Candidates("one", ("aaa", "bb", "c"), (0, 1, 0)),
        Candidates("two", ("a", "bb"), (0, 1)),
        Candidates("all", ("a", "bb"), (1, 1)),
        Candidates("none", ("a",), (0,)),
    ]
    report = evaluate_reranker(BY_LENGTH, lists)
    assert report.counts["queries"] == report.n == 2
    assert (report.counts["queries_without_contrast"], report.to_dict()["queries_without_contrast"]) == (2, 2)
    assert "2 queries (2 more whose documents are all relevant, or all irrelevant)" in report.summary()
    assert "more" not in evaluate_reranker(BY_LENGTH, lists[:2]).summary()
    assert report.estimates["map"].value == pytest.approx((1 / 2 + 1) / 2)
    assert report.estimates["mrr"].value == pytest.approx((1 / 2 + 1) / 2)
    with pytest.raises(InvalidInput, match="nothing to measure"):
        evaluate_reranker(BY_LENGTH, lists[2:])


@pytest.mark.parametrize("grades", [(2, 1, 0, 0), (0, 0, 1, 2)])
def test_nobody_gains_by_equal_scores_nor_by_the_order_of_the_data(grades):
    undecided = Scoring(lambda passages: [0.0] * len(passages))
    report = evaluate_reranker(undecided, [Candidates("q", tuple("abcd"), grades)])
    assert report.estimates["map"].value == pytest.approx((1 / 3 + 2 / 4) / 2)
    assert report.estimates["mrr"].value == pytest.approx(1 / 3)


@pytest.mark.parametrize("scores", [[0.5, np.nan, 0.1], [0.5, np.inf, 0.1], [0.5, 0.1], [[0.5, 0.1, 0.2]]])
def test_a_reranker_that_does_not_score_every_passage_is_refused(scores):
    reranker, passages = Scoring(lambda _: scores), ("a", "b", "c")
    for use in (
        lambda: evaluate_reranker(reranker, [Candidates("q", passages, (0, 1, 0))]),
        lambda: reranked([Hit(text, text, 1.0, 1) for text in passages], "q", Rerank(reranker)),
    ):
        with pytest.raises(InvalidInput, match="one finite number for each of the 3 passages"):
            use()


def test_grades_out_of_range_are_refused_with_their_row():
    rows = [{"text_a": "q", "text_b": "a", "label": 1}, {"text_a": "q", "text_b": "b", "label": 2**31}]
    with pytest.raises(InvalidInput, match=r"row 2 .* relevance must lie between -1000 and 1000, got 2147483648"):
        read_candidates(rows)


def test_a_checkpoint_from_elsewhere_with_a_head_for_texts_is_a_model_of_pairs(pairs, tmp_path):
    pairs.save(tmp_path / "published")
    (tmp_path / "published" / "bothways.json").unlink()
    opened = CandidateRanking.open(tmp_path / "published", device="cpu")
    assert isinstance(opened.reranker, CrossEncoder)
    assert opened.evaluate(ROWS).estimates == evaluate_reranker(CrossEncoder(pairs), read_candidates(ROWS)).estimates


def test_a_model_of_another_task_ranks_nothing(tiny_bert, tmp_path):
    classifier = TextClassifier.from_pretrained(tiny_bert, device="cpu")
    classifier.fit([{"text": f"w{5 + place}", "label": str(place % 2)} for place in range(20)], epochs=1)
    classifier.save(tmp_path / "texts")
    with pytest.raises(InvalidInput, match=r"'.*texts' is a model for classification"):
        CandidateRanking.open(tmp_path / "texts", device="cpu")


def test_search_reranks_with_a_cross_encoder(tiny_bert, pairs):
    embedder = SentenceEmbedder.from_pretrained(tiny_bert, device="cpu")
    texts = [f"w{5 + number} w{30 + number}" for number in range(4)]
    search = SemanticSearch.build(embedder, texts)
    hits = search.search("w6", k=4, rerank=Rerank(CrossEncoder(pairs)))
    scores = CrossEncoder(pairs).score("w6", texts)
    assert [hit.text for hit in hits] == [texts[place] for place in np.argsort(-scores, kind="stable")]


def test_a_bi_encoder_scores_by_cosine(tiny_bert):
    embedder = SentenceEmbedder.from_pretrained(tiny_bert, device="cpu", unit_length=False)
    one, *others = embedder.encode(["w5", "w6 w7", "w8"]).astype(np.float64)
    expected = [one @ each / np.linalg.norm(one) / np.linalg.norm(each) for each in others]
    np.testing.assert_allclose(BiEncoder(embedder).score("w5", ["w6 w7", "w8"]), expected, atol=1e-6)


# --- texts that are cut ---

# Passages of twelve words, of which a window of eight tokens has room for four beside a query of one word.
LONG = [{**row, "text_b": row["text_b"] + " w40" * 10} for row in ROWS]
CUTTING = {"device": "cpu", "max_length": 8, "on_overflow": "truncate"}


@pytest.fixture(scope="module")
def cutting(pairs, tmp_path_factory):
    """The folder of the model of pairs."""
    pairs.save(folder := tmp_path_factory.mktemp("cutting") / "pairs")
    return folder


def test_a_reranker_says_once_a_call_what_it_did_not_read(tiny_bert, cutting):
    cross = CrossEncoder(PairClassifier.from_pretrained(cutting, **CUTTING))
    cosine = BiEncoder(SentenceEmbedder.from_pretrained(tiny_bert, **CUTTING))
    passages = ["w6", LONG[0]["text_b"], LONG[1]["text_b"]]
    hits = [Hit(str(place), text, 1.0, place + 1) for place, text in enumerate(passages)]
    for by, whole, two in ((cross, "2 of 3", "4 of 6"), (cosine, "2 of 4", "4 of 8")):
        of_one, of_two = (16, 32) if by is cross else (12, 24)
        for ask, said in (
            (lambda by=by: by.score("w5", passages), f"{whole} texts were truncated: {of_one} tokens were not read."),
            (
                lambda by=by: reranked(hits, "w5", Rerank(by)),
                f"{whole} texts were truncated: {of_one} tokens were not read.",
            ),
            (
                lambda by=by: search_reranked(lambda _: [hits, hits], ["w5", "w6"], 1, Rerank(by)),
                f"{two} texts were truncated: {of_two} tokens were not read.",
            ),
        ):
            with pytest.warns(TextsTruncated) as caught:
                ask()
            assert [str(each.message) for each in caught] == [said]
            assert caught[0].filename == __file__


def test_a_ranking_of_candidates_counts_what_was_not_read(tiny_bert, cutting):
    for folder, read in (
        (cutting, {"texts": 16, "in_windows": 0, "cut": 16, "dropped_tokens": 16 * 8}),
        (tiny_bert, {"texts": 4 + 16, "in_windows": 0, "cut": 16, "dropped_tokens": 16 * 6}),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error", TextsTruncated)
            report = CandidateRanking.open(folder, **CUTTING).evaluate(LONG, resamples=5)
        assert report.to_dict()["tokens_read"] == read
        assert report.summary().endswith(
            f"16 of {read['texts']} texts were truncated: {read['dropped_tokens']} tokens were not read"
        )
    assert "tokens_read" not in evaluate_reranker(BY_LENGTH, read_candidates(LONG), resamples=5).to_dict()


@pytest.fixture(scope="module")
def search(tiny_bert):
    return SemanticSearch.build(
        SentenceEmbedder.from_pretrained(tiny_bert, device="cpu"),
        [f"w{5 + number} w{20 + number}" for number in range(30)],
    )


def test_negatives_are_the_nearest_passages_that_are_no_answer(search):
    pairs = [("w5 w20", "w5 w20"), ("w5 w20", "w6 w21")]
    first, second = mine_negatives(search, pairs, Mining(per_query=4, share=None))
    nearest = [hit.text for hit in search.search("w5 w20", 30, mode=Dense()) if hit.text not in ("w5 w20", "w6 w21")]
    assert search.search("w5 w20", 1)[0].text == "w5 w20"
    (alone,) = mine_negatives(search, pairs[1:], Mining(per_query=4, share=None))
    assert alone.negatives == tuple(nearest[:4])  # the query stands among the passages, and is not its own negative
    assert first.negatives == second.negatives == tuple(nearest[:4])
    assert (second.query, second.positive) == pairs[1]


def test_what_scores_nearly_as_high_as_the_answer_is_passed_over(search):
    hits = search.search("w5 w20", 30, mode=Dense())
    pair, bound = ("w5 w20", hits[10].text), hits[10].score
    (mined,) = mine_negatives(search, [pair], Mining(per_query=30, depth=30, share=0.9))
    expected = [hit.text for hit in hits if hit.score <= 0.9 * bound]
    assert list(mined.negatives) == expected
    assert len(expected) < 19


def test_work_on_many_queries_shows_progress_and_can_be_told_not_to(search, pairs, capfd, monkeypatch):
    monkeypatch.setattr("bothways.progress.FIRST_LINE_AFTER", 0)
    rerank, lists = Rerank(CrossEncoder(pairs), depth=2), read_candidates(ROWS)
    pair = ("w5", "w6 w21")
    for shown in (True, False):
        search.search(["w5", "w6"], rerank=rerank, show_progress=shown)
        list(mine_negatives(search, [pair, pair], Mining(per_query=1, depth=5), show_progress=shown))
        evaluate_reranker(rerank.by, lists, resamples=2, show_progress=shown)
        said = capfd.readouterr().err
        for name in ("embedding", "reranking", "mining", "ranking"):
            assert (f"{name}: " in said) is shown


@pytest.mark.parametrize(
    ("given", "words"),
    [({"per_query": 0}, "per_query"), ({"depth": 1}, "depth"), ({"share": 0.0}, "share"), ({"share": 1.5}, "share")],
)
def test_mining_that_makes_no_sense_is_refused(given, words):
    with pytest.raises(InvalidInput, match=words):
        Mining(**given)
