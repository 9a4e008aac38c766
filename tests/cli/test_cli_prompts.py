"""Prompts on the command line: ``embed`` and ``search`` with a folder of sentence-transformers."""

import json
import re
import shutil

import numpy as np
import pytest
from command_line import call, fails, ok, write_jsonl

from bothways import SentenceEmbedder

PROMPTS = {"query": "w20 w21 ", "document": "w22 ", "other": "w23 "}
ROWS = [
    {"id": "d1", "text": "w5 w7 w9"},
    {"id": "d2", "text": "w6 w8 w10"},
    {"id": "d3", "text": "w11 w13 w15"},
    {"id": "d4", "text": "w12 w14 w16"},
]
TEXTS = [row["text"] for row in ROWS]
CARD = "the model card of intfloat/e5-base asks for 'query: ' before queries and 'passage: ' before documents"
SOURCE = "https://huggingface.co/intfloat/e5-base"


@pytest.fixture(scope="module")
def made(files, tmp_path_factory):
    """A folder with models (prompted, without names of prompts e5-base), data, and an index of the first."""
    folder = tmp_path_factory.mktemp("prompts")
    shutil.copytree(files / "tiny", folder / "prompted")
    (folder / "prompted" / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))
    shutil.copytree(files / "tiny", folder / "e5-base")
    write_jsonl(folder / "corpus.jsonl", ROWS)
    write_jsonl(folder / "queries.jsonl", [{"id": "q1", "text": "w7"}, {"id": "q2", "text": "w14"}])
    (folder / "qrels.tsv").write_text("query_id\tdoc_id\trelevance\nq1\td1\t1\nq2\td4\t1\n")
    outcome = call(*build_words(folder, "prompted", "index"), "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
    # The nearest text, so that the others are not nearer than the answer.
    nearest = ok("search", "query", folder / "index", "w7", "--mode", "dense", "--json").json()[0]["text"]
    write_jsonl(folder / "pairs.jsonl", [{"anchor": "w7", "positive": nearest}])
    return folder


@pytest.fixture(scope="module")
def embedder(made):
    return SentenceEmbedder.from_pretrained(made / "prompted", device="cpu")


def with_modules(folder, settings, *kinds):
    """Add the files of sentence-transformers to the folder of an encoder."""
    paths = [f"{place}_{kind}" if place else "" for place, kind in enumerate(kinds)]
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    for path in paths[1:]:
        (folder / path).mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True})
    )
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


def build_words(folder, model, index):
    data = ("--data", folder / "corpus.jsonl", "--device", "cpu")
    return "search", "build", "--model", folder / model, "--output", folder / index, *data


def embed_words(folder, model, output):
    return "embed", folder / model, "--data", folder / "corpus.jsonl", "--output", output, "--device", "cpu"


# embed


@pytest.mark.parametrize(
    ("words", "prompt"),
    [([], ""), (["--prompt-name", "query"], "w20 w21 "), (["--prompt", "w24 "], "w24 "), (["--prompt", ""], "")],
)
def test_embed_puts_a_prompt_before_each_text(made, embedder, tmp_path, words, prompt):
    found = ok(*embed_words(made, "prompted", tmp_path / "v.npy"), *words, "--json").json()
    assert found["prompt"] == prompt
    expected = embedder.encode([prompt + text for text in TEXTS], prompt="")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-5)


def test_embed_says_which_prompt_it_used_and_which_there_are(made, tmp_path):
    words = (*embed_words(made, "prompted", tmp_path / "v.jsonl"), "--overwrite")
    assert "prompt before each text: 'w20 w21 '" in ok(*words, "--prompt-name", "query").err
    none = ok(*words).err
    assert "no prompt before the texts; the model has prompts named query, document, other (--prompt-name)" in none
    assert "prompt" not in ok(*words, "--quiet").err


def test_empty_rows_stay_empty_with_a_prompt(made, embedder, tmp_path):
    data = write_jsonl(tmp_path / "gaps.jsonl", [{"text": "w5"}, {"text": " "}, {"text": "w6"}])
    words = ("embed", made / "prompted", "--data", data, "--output", tmp_path / "v.npy", "--prompt", "w24 ")
    fails(1, "--on-empty skip", *words)
    ok(*words, "--on-empty", "null")
    vectors = np.load(tmp_path / "v.npy")
    assert np.isnan(vectors[1]).all()
    np.testing.assert_allclose(vectors[[0, 2]], embedder.encode(["w5", "w6"], prompt="w24 "), atol=1e-5)


def test_a_name_that_no_prompt_has_and_two_prompts_are_wrong_usage(made, tmp_path):
    words = embed_words(made, "prompted", tmp_path / "v.npy")
    fails(2, ("got 'passage'", "'query', 'document', 'other'"), *words, "--prompt-name", "passage")
    fails(2, "a prompt or the name of one, not both", *words, "--prompt-name", "query", "--prompt", "w5 ")
    build = build_words(made, "prompted", "never")
    fails(2, "got 'passage'", *build, "--prompt-name", "passage")
    fails(2, "got 'passage'", *build, "--query-prompt-name", "passage")
    fails(2, "not both", *build, "--query-prompt-name", "query", "--query-prompt", "w5 ")
    assert not (tmp_path / "v.npy").exists()
    assert not (made / "never").exists()


# search


def test_an_index_is_built_and_searched_with_the_prompts_of_the_folder(made, embedder):
    hits = ok("search", "query", made / "index", "w7", "w14", "--mode", "dense", "--json").json()
    texts_ND, query_D = embedder.encode(["w22 " + text for text in TEXTS]), embedder.encode("w20 w21 w7 w14")
    scores = dict(zip(("d1", "d2", "d3", "d4"), (texts_ND @ query_D).tolist(), strict=True))
    assert [hit["id"] for hit in hits] == sorted(scores, key=lambda name: -scores[name])
    assert [hit["score"] for hit in hits] == pytest.approx([scores[hit["id"]] for hit in hits], abs=1e-5)


def test_search_info_names_prompts_and_similarity(made):
    facts = ok("search", "info", made / "index", "--json").json()
    assert (facts["query_prompt"], facts["document_prompt"], facts["similarity"]) == ("w20 w21 ", "w22 ", "cosine")
    assert (facts["texts"], facts["model"], facts["notes"]) == (4, str(made / "prompted"), [])
    shown = ok("search", "info", made / "index").out
    for name, value in (("query prompt", "'w20 w21 '"), ("document prompt", "'w22 '"), ("similarity", "cosine")):
        assert re.search(rf"^{name} +{value}$", shown, re.MULTILINE)
    fails(1, "is not a search index", "search", "info", made)


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("query", ["w7"]),
        ("evaluate", ["--queries", "queries.jsonl", "--qrels", "qrels.tsv"]),
        ("mine", ["--data", "pairs.jsonl", "--share", "1"]),
        ("add", ["--data", "more.jsonl"]),
    ],
)
def test_a_prompt_that_the_index_does_not_have_is_refused(made, tmp_path, verb, words):
    index = shutil.copytree(made / "index", tmp_path / "index")
    write_jsonl(made / "more.jsonl", [{"id": "d5", "text": "w17"}])
    words = [made / word if word.endswith((".jsonl", ".tsv")) else word for word in words]
    own, name, texts = ("w22 ", "document", "documents") if verb == "add" else ("w20 w21 ", "query", "queries")
    plain = ok("search", verb, shutil.copytree(index, tmp_path / "one"), *words)
    assert verb == "add" or plain.out
    for same in (("--prompt", own), ("--prompt-name", name)):
        given = ok("search", verb, shutil.copytree(index, tmp_path / same[0]), *words, *same)
        assert given.out == plain.out
    option = "--prompt" if verb == "add" else "--query-prompt"
    said = (f"was built for {texts} with the prompt {own!r}, got 'w23 '", option)
    fails(2, said, "search", verb, index, *words, "--prompt-name", "other")
    fails(2, f"was built for {texts} with the prompt {own!r}, got ''", "search", verb, index, *words, "--prompt", "")
    assert ok("search", "info", index, "--json").json()["texts"] == 4


def test_texts_are_added_with_the_document_prompt_of_the_index(made, embedder, tmp_path):
    index = shutil.copytree(made / "index", tmp_path / "index")
    ok("search", "add", index, "--data", write_jsonl(tmp_path / "more.jsonl", [{"id": "d5", "text": "w17 w18"}]))
    vectors = np.load(index / "data-2" / "vectors.npy")
    np.testing.assert_allclose(vectors[-1], embedder.encode("w22 w17 w18"), atol=1e-5)


def test_given_prompts_are_recorded(made):
    words = build_words(made, "prompted", "given")
    ok(*words, "--prompt", "", "--query-prompt-name", "other")
    facts = ok("search", "info", made / "given", "--json").json()
    assert (facts["query_prompt"], facts["document_prompt"]) == ("w23 ", "")
    shown = ok("search", "info", made / "given").out
    assert re.search(r"^document prompt +none$", shown, re.MULTILINE)


def test_an_index_ranks_by_the_dot_product_if_the_model_says_so_and_refuses_distances(made, files):
    settings = {"prompts": PROMPTS, "similarity_fn_name": "dot"}
    folder = with_modules(shutil.copytree(files / "tiny", made / "product"), settings, "Transformer", "Pooling")
    ok(*build_words(made, "product", "product-index"))
    assert ok("search", "info", made / "product-index", "--json").json()["similarity"] == "dot"
    embedder = SentenceEmbedder.from_pretrained(folder, device="cpu")
    scores_N = embedder.encode_document(TEXTS) @ embedder.encode_query("w7")
    hits = ok("search", "query", made / "product-index", "w7", "--mode", "dense", "--json").json()
    assert [hit["id"] for hit in hits] == [f"d{row + 1}" for row in np.argsort(-scores_N)]
    assert [hit["score"] for hit in hits] == pytest.approx(sorted(scores_N.tolist(), reverse=True), rel=1e-4)
    assert hits[0]["score"] > 1
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"similarity_fn_name": "euclidean"}))
    fails(1, "is 'euclidean'", *build_words(made, "product", "distances"))


@pytest.mark.slow
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_embed_and_search_equal_sentence_transformers(made, files, tmp_path, similarity):
    theirs = pytest.importorskip("sentence_transformers")
    kinds = ("Transformer", "Pooling", *(["Normalize"] if similarity == "cosine" else []))
    settings = {"prompts": PROMPTS, "default_prompt_name": "other", "similarity_fn_name": similarity}
    folder = with_modules(shutil.copytree(files / "tiny", tmp_path / "model"), settings, *kinds)
    model = theirs.SentenceTransformer(str(folder), device="cpu")
    for words, options in (([], {}), (["--prompt-name", "query"], {"prompt_name": "query"})):
        ok(*embed_words(made, folder, tmp_path / "v.npy"), *words, "--overwrite")
        np.testing.assert_allclose(np.load(tmp_path / "v.npy"), model.encode(TEXTS, **options), rtol=1e-4, atol=1e-5)
    ok(*build_words(made, folder, tmp_path / "index"))
    hits = ok("search", "query", tmp_path / "index", "w7", "--mode", "dense", "--json").json()
    scores_N = model.similarity(model.encode_query("w7"), model.encode_document(TEXTS))[0].numpy()
    assert [hit["id"] for hit in hits] == [f"d{row + 1}" for row in np.argsort(-scores_N)]
    assert [hit["score"] for hit in hits] == pytest.approx(sorted(scores_N.tolist(), reverse=True), rel=1e-4)


# Prompts that the card of a published model asks for


def test_commands_note_the_prompts_of_a_card_that_are_left_out(made, tmp_path):
    embed = (*embed_words(made, "e5-base", tmp_path / "v.npy"), "--overwrite")
    for words in (embed, build_words(made, "e5-base", "bare")):
        said = ok(*words).err
        assert CARD in said
        assert SOURCE in said
        assert "--prompt" in said.rpartition(SOURCE)[2]
    evaluate = (*("search", "evaluate", made / "bare"), "--queries", made / "queries.jsonl")
    evaluate = (*evaluate, "--qrels", made / "qrels.tsv")
    for words in (evaluate, ("search", "info", made / "bare")):
        assert CARD in ok(*words).err
    (note,) = ok("search", "info", made / "bare", "--json").json()["notes"]
    assert CARD in note
    build = (*build_words(made, "e5-base", "bare"), "--overwrite")
    for words in ((*embed, "--quiet"), (*evaluate, "--quiet"), (*build, "--quiet")):
        assert "card" not in ok(*words).err


def test_embed_names_the_prompts_of_the_files_rather_than_those_of_the_card(made, tmp_path):
    shutil.copytree(made / "prompted", tmp_path / "e5-base")
    said = ok(*embed_words(made, tmp_path / "e5-base", tmp_path / "v.npy")).err
    assert "prompts named query, document, other" in said
    assert "card" not in said


def test_no_note_when_the_prompts_of_the_card_are_given(made, tmp_path):
    embed = (*embed_words(made, "e5-base", tmp_path / "v.npy"), "--overwrite")
    build = build_words(made, "e5-base", "given-e5")
    for words in ((*embed, "--prompt", "query: "), (*build, "--prompt", "passage: ", "--query-prompt", "query: ")):
        assert "card" not in ok(*words).err
    assert "card" not in ok("search", "info", made / "given-e5").err
    half = ok(*build, "--overwrite", "--query-prompt", "query: ").err
    assert "asks for 'passage: ' before documents, which is left out" in half
