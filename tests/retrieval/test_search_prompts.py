"""Prompts and similarity of a model in its index: recorded, used, and refused if others are named."""

import json
import re
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest

from bothways import SemanticSearch, SentenceEmbedder
from bothways.errors import InvalidInput, PromptsDiffer
from bothways.retrieval import BiEncoder, Dense, Hybrid, Lexical, Mining, SearchIndex, mine_negatives
from bothways.retrieval.contents import SearchPrompts

GENERAL = "config_sentence_transformers.json"
PROMPTS = {"query": "w20 w21 ", "passage": "w22 ", "other": "w23 "}
TEXTS = ["w5 w6", "w7 w8 w9", "w10", "w11 w12 w13", "w14 w15"]
QUERIES = ["w6 w9", "w10 w11", "w15"]


def folder_of(tiny, path, **settings):
    """A copy of a model with these settings of sentence-transformers."""
    shutil.copytree(tiny, path)
    (path / GENERAL).write_text(json.dumps({"prompts": PROMPTS, **settings}))
    return path


def opened(folder, **options):
    return SentenceEmbedder.from_pretrained(folder, device="cpu", **options)


@pytest.fixture(scope="module")
def prompted(tiny_bert, tmp_path_factory):
    """The folder of an embedder with prompts, which no test changes."""
    return folder_of(tiny_bert, tmp_path_factory.mktemp("prompted") / "model")


@pytest.fixture(scope="module")
def embedder(prompted):
    return opened(prompted)


@pytest.fixture(scope="module")
def product(tiny_bert, tmp_path_factory):
    """An embedder whose vectors have any length and are compared by their inner product."""
    folder = folder_of(tiny_bert, tmp_path_factory.mktemp("product") / "model", similarity_fn_name="dot")
    return opened(folder, unit_length=False)


def prefixed(texts, prompt):
    return [prompt + text for text in texts]


def ranked(queries_QD, texts_ND):
    return [[str(row) for row in np.argsort(-scores, kind="stable")] for scores in queries_QD @ texts_ND.T]


# Defaults: the prompts of the model


def test_texts_and_queries_are_embedded_with_the_prompts_of_the_model(embedder, tmp_path):
    search = SemanticSearch.build(embedder, TEXTS)
    assert search.index.encoder.prompts == SearchPrompts("w20 w21 ", "w22 ")
    texts_ND, queries_QD = (
        embedder.encode(prefixed(texts, prompt), prompt="")
        for texts, prompt in ((TEXTS, "w22 "), (QUERIES, "w20 w21 "))
    )
    np.testing.assert_allclose(search.index.vectors_ND, texts_ND, atol=1e-5)
    assert not np.allclose(search.index.vectors_ND, embedder.encode(TEXTS, prompt=""), atol=1e-3)
    found = search.search(QUERIES, k=5, mode=Dense())
    assert [[hit.id for hit in hits] for hits in found] == ranked(queries_QD, texts_ND)
    scores = [[hit.score for hit in hits] for hits in found]
    np.testing.assert_allclose(scores, -np.sort(-(queries_QD @ texts_ND.T)), atol=1e-5)
    search.save(tmp_path / "index")
    again = SemanticSearch.open(tmp_path / "index", device="cpu")
    assert again.search(QUERIES, k=5, mode=Dense()) == found
    again.add(["w16 w17"])
    (added_D,) = embedder.encode(["w22 w16 w17"], prompt="")
    np.testing.assert_allclose(again.index.vectors_ND[-1], added_D, atol=1e-5)


def test_given_prompts_replace_those_of_the_model(embedder):
    by_text = SemanticSearch.build(embedder, TEXTS, prompt="w23 ", query_prompt="")
    by_name = SemanticSearch.build(embedder, TEXTS, prompt_name="other", query_prompt="")
    assert by_text.index.encoder.prompts == by_name.index.encoder.prompts == SearchPrompts("", "w23 ")
    np.testing.assert_array_equal(by_text.index.vectors_ND, by_name.index.vectors_ND)
    np.testing.assert_allclose(by_text.index.vectors_ND, embedder.encode(TEXTS, prompt="w23 "), atol=1e-5)
    queries_QD = embedder.encode(QUERIES, prompt="")
    answers = [[hit.id for hit in hits] for hits in by_text.search(QUERIES, k=5, mode=Dense())]
    assert answers == ranked(queries_QD, by_text.index.vectors_ND)
    swapped = SemanticSearch.build(embedder, TEXTS, prompt_name="query", query_prompt_name="passage")
    assert swapped.index.encoder.prompts == SearchPrompts("w22 ", "w20 w21 ")


def test_a_default_prompt_is_for_texts_without_a_role(tiny_bert, tmp_path):
    settings = {"prompts": {"other": "w23 "}, "default_prompt_name": "other"}
    embedder = opened(folder_of(tiny_bert, tmp_path / "model", **settings))
    assert SemanticSearch.build(embedder, TEXTS).index.encoder.prompts == SearchPrompts("", "")


# Refusals


@pytest.mark.parametrize("mode", [Dense(), Lexical(), Hybrid()])
def test_a_query_with_another_prompt_than_the_index_has_is_refused(embedder, mode):
    search = SemanticSearch.build(embedder, TEXTS)
    plain = search.search("w6", k=2, mode=mode)
    assert search.search("w6", k=2, mode=mode, prompt="w20 w21 ") == plain
    assert search.search("w6", k=2, mode=mode, prompt_name="query") == plain
    for given, came in (({"prompt": ""}, "''"), ({"prompt": "w9 "}, "'w9 '"), ({"prompt_name": "other"}, "'w23 '")):
        expected = f"built for queries with the prompt 'w20 w21 ', got {came}.*--query-prompt"
        with pytest.raises(InvalidInput, match=expected):
            search.search("w6", mode=mode, **given)
    with pytest.raises(InvalidInput, match=r"the name of a prompt of this embedder.* got 'absent'"):
        search.search("w6", mode=mode, prompt_name="absent")


def test_texts_are_added_with_the_prompt_of_the_index_alone(embedder):
    search = SemanticSearch.build(embedder, TEXTS, prompt="")
    with pytest.raises(
        InvalidInput, match=r"built for documents without a prompt, got 'w22 '.*prompt='w22 ' \(--prompt"
    ):
        search.add(["w16"], prompt_name="passage")
    assert len(search.index) == 5
    search.add(["w16"], prompt="")
    np.testing.assert_allclose(search.index.vectors_ND[-1], embedder.encode("w16", prompt=""), atol=1e-5)


def test_a_prompt_and_the_name_of_one_are_not_given_together(embedder):
    search = SemanticSearch.build(embedder, TEXTS)
    for call in (
        lambda: SemanticSearch.build(embedder, TEXTS, prompt="w5 ", prompt_name="other"),
        lambda: SemanticSearch.build(embedder, TEXTS, query_prompt="w5 ", query_prompt_name="other"),
        lambda: search.search("w6", prompt="w20 w21 ", prompt_name="query"),
    ):
        with pytest.raises(InvalidInput, match="a prompt or the name of one, not both"):
            call()


def test_words_are_searched_without_the_model_but_not_by_the_name_of_a_prompt(embedder):
    words = SemanticSearch(None, SemanticSearch.build(embedder, TEXTS).index)
    assert words.search("w6", k=1, mode=Lexical(), prompt="w20 w21 ")[0].id == "0"
    with pytest.raises(InvalidInput, match="opened without its model"):
        words.search("w6", mode=Lexical(), prompt_name="query")


# Changes


def test_an_index_keeps_its_prompts_when_the_model_names_others(tiny_bert, tmp_path):
    folder = folder_of(tiny_bert, tmp_path / "model")
    search = SemanticSearch.build(opened(folder), TEXTS)
    search.save(tmp_path / "index")
    answers = search.search(QUERIES, k=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PromptsDiffer)
        SemanticSearch.open(tmp_path / "index", device="cpu")
    (folder / GENERAL).write_text(json.dumps({"prompts": {"query": "w9 "}}))
    expected = (
        r"names the prompts 'w9 ' \(queries\) and '' \(documents\); .* they were 'w20 w21 ' .* uses the prompts of"
    )
    with pytest.warns(PromptsDiffer, match=expected):
        later = SemanticSearch.open(tmp_path / "index", device="cpu")
    assert later.search(QUERIES, k=3) == answers
    later.add(["w16"])
    np.testing.assert_allclose(later.index.vectors_ND[-1], opened(folder).encode("w16", prompt="w22 "), atol=1e-5)


def test_an_index_without_a_record_of_prompts_is_searched_without_them(embedder):
    built = SemanticSearch.build(embedder, TEXTS, prompt="", query_prompt="").index
    before = SearchIndex.build(
        built.vectors_ND,
        texts=TEXTS,
        encoder=replace(built.encoder, prompts=SearchPrompts(), model_prompts=None, vectors=None),
    )
    with pytest.warns(PromptsDiffer, match=re.escape("when the index was built, they were '' (queries)")):
        search = SemanticSearch(embedder, before)
    answers = [[hit.id for hit in hits] for hits in search.search(QUERIES, k=5, mode=Dense())]
    assert answers == ranked(embedder.encode(QUERIES, prompt=""), built.vectors_ND)


# Mining and rerankers


def test_mining_compares_queries_with_documents_by_the_prompts_of_the_index(embedder):
    texts = [f"w{number} w{number + 1}" for number in range(5, 29)]
    search, pair = SemanticSearch.build(embedder, texts, prompt="w23 ", query_prompt="w24 "), ("w5", "w5 w6")
    query_D = embedder.encode(pair[0], prompt="w24 ").astype(np.float64)
    scores_N = embedder.encode(texts, prompt="w23 ").astype(np.float64) @ query_D
    share = 0.999
    expected = [texts[row] for row in np.argsort(-scores_N) if scores_N[row] <= share * scores_N[0]]
    (mined,) = mine_negatives(search, [pair], Mining(per_query=6, depth=24, share=share))
    assert mined.negatives == tuple(expected[:6])
    without = embedder.encode(texts, prompt="") @ embedder.encode(pair[0], prompt="")
    assert mined.negatives != tuple([texts[row] for row in np.argsort(-without) if row][:6])


@pytest.mark.parametrize("kind", ["embedder", "product"])
def test_an_embedder_reranks_by_its_prompts_and_its_similarity(kind, request):
    each = request.getfixturevalue(kind)
    expected = each.encode_document(TEXTS) @ each.encode_query(QUERIES[0])
    np.testing.assert_allclose(BiEncoder(each).score(QUERIES[0], TEXTS), expected, rtol=1e-5)


# Similarity


def test_an_index_of_a_dot_model_ranks_by_the_product_of_its_vectors(product, tmp_path):
    search = SemanticSearch.build(product, TEXTS)
    texts_ND, queries_QD = product.encode_document(TEXTS), product.encode_query(QUERIES)
    assert np.linalg.norm(texts_ND, axis=1).min() > 1.5
    np.testing.assert_allclose(search.index.vectors_ND, texts_ND, rtol=1e-5)
    found = search.search(QUERIES, k=5, mode=Dense())
    assert [[hit.id for hit in hits] for hits in found] == ranked(queries_QD, texts_ND)
    np.testing.assert_allclose(found[0][0].score, (queries_QD[0] @ texts_ND.T).max(), rtol=1e-5)
    search.save(tmp_path / "index")
    again = SemanticSearch.open(tmp_path / "index", device="cpu")  # which keeps the vectors' length as it was built
    assert again.search(QUERIES, k=5, mode=Dense()) == found
    again.add(["w16 w17"])
    np.testing.assert_allclose(again.index.vectors_ND[-1], product.encode_document("w16 w17"), rtol=1e-5)
    with pytest.raises(InvalidInput, match="vector options"):
        SemanticSearch(opened(product.name, unit_length=True), search.index)


@pytest.mark.parametrize("options", [{}, {"dimensions": 12}], ids=["as stored", "as given"])
def test_added_vectors_are_truncated_before_or_after_scaling_as_those_of_the_index(tiny_bert, tmp_path, options):
    settings = {"similarity_fn_name": "dot", "truncate_dim": 16}
    model = opened(folder_of(tiny_bert, tmp_path / "model", **settings), **options)
    SemanticSearch.build(model, TEXTS).save(tmp_path / "index")
    again = SemanticSearch.open(tmp_path / "index", device="cpu")
    again.add(["w16 w17"])
    added_D = again.index.vectors_ND[-1]
    np.testing.assert_allclose(added_D, model.encode_document("w16 w17"), atol=1e-6)
    assert len(added_D) == (12 if options else 16)
    assert (np.linalg.norm(added_D) > 0.999) == bool(options)


@pytest.mark.parametrize("similarity", ["euclidean", "manhattan"])
def test_an_index_of_a_model_of_another_similarity_is_refused(tiny_bert, tmp_path, similarity):
    model = opened(folder_of(tiny_bert, tmp_path / "model", similarity_fn_name=similarity))
    with pytest.raises(InvalidInput, match=f"similarity is cosine or dot .* is '{similarity}'. .* similarity_fn_name"):
        SemanticSearch.build(model, TEXTS)


# Prompts that the card of a published model asks for


def test_a_published_model_without_the_prompts_of_its_card_is_noted_in_a_warning_and_in_the_header(tiny_bert, tmp_path):
    embedder = opened(shutil.copytree(tiny_bert, tmp_path / "E5-small-v2"))
    with pytest.warns(PromptsDiffer, match="e5-small-v2 asks for 'query: ' before queries and 'passage: ' before"):
        search = SemanticSearch.build(embedder, TEXTS)
    search.save(tmp_path / "index")
    (note,) = json.loads((tmp_path / "index" / "index.json").read_bytes())["notes"]
    assert note.endswith("(source: https://huggingface.co/intfloat/e5-small-v2).")
    with warnings.catch_warnings():
        warnings.simplefilter("error", PromptsDiffer)
        given = SemanticSearch.build(embedder, TEXTS, prompt="passage: ", query_prompt="query: ")
        SemanticSearch.open(tmp_path / "index", device="cpu")
    given.save(tmp_path / "given")
    assert json.loads((tmp_path / "given" / "index.json").read_bytes())["notes"] == []
    with pytest.warns(PromptsDiffer, match="asks for 'passage: ' before documents, which"):
        SemanticSearch.build(embedder, TEXTS, query_prompt="query: ")
