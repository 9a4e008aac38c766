"""Sources over token corpora: every token once, special tokens as the template has them, pairs in exact halves."""

import tracemalloc
from collections import Counter

import numpy as np
import pytest
from corpora import flat, random_documents, tiny_tokenizer, write_corpus

from bothways.data.shards import TokenCorpus
from bothways.errors import InvalidInput
from bothways.objectives.corpus import CorpusPieces, EitherDocument, NextSentence, SegmentPairs, SentenceOrder
from bothways.text import Frame, TextTokenizer, recipes
from bothways.text.training import train_tokenizer, write_trained_tokenizer

FAMILIES_OF_TEMPLATES = ["bert", "roberta", "xlnet"]
RELATIONS = [NextSentence(), SentenceOrder()]


@pytest.fixture(scope="module", params=FAMILIES_OF_TEMPLATES)
def tokenizer(request, tmp_path_factory):
    return tiny_tokenizer(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(params=[0, 2, 3, 5])
def documents(request):
    """Random corpora: of few and many documents, of one and of many sentences, of short and long ones."""
    seed = request.param
    return random_documents(
        seed, count=2 + 6 * (seed % 3 + seed // 3), sentences=1 + 3 * (seed % 3), words=2 + 7 * seed
    )


def read_all(source, epoch=0):
    return source.read(range(len(source)), epoch)


def contained(part, whole):
    return any(whole[at : at + len(part)] == part for at in range(len(whole) - len(part) + 1))


def segments(sequence, tokenizer):
    """The ordinary tokens of a sequence, cut at the special ones."""
    found = [[]]
    for number in sequence.ids.tolist():
        if number not in tokenizer.special_ids:
            found[-1].append(number)
        elif found[-1]:
            found.append([])
    return [each for each in found if each]


@pytest.mark.parametrize("max_length", [3, 8, 17, 400])
def test_pieces_read_every_token_once_within_the_template(tokenizer, documents, tmp_path, max_length):
    source = CorpusPieces.of(write_corpus(tmp_path, tokenizer, documents), tokenizer, max_length)
    read = read_all(source)
    assert [each.number for each in read] == list(range(len(read)))
    assert sorted(flat(documents) and [one for each in documents for one in flat(each)]) == sorted(
        one for each in read for part in segments(each, tokenizer) for one in part
    )
    for each in read:
        encoded = tokenizer.encode([tokenizer.decode(each.ids)], max_length=max_length)[0].windows[0]
        assert (each.ids.tolist(), each.types.tolist()) == (encoded.ids, encoded.types)
        assert len(each.ids) <= max_length
        assert each.relation == -1
        assert any(contained(segments(each, tokenizer)[0], flat(document)) for document in documents)


def test_a_group_has_as_many_tokens_as_a_sequence_of_the_recipes(bert, tmp_path):
    source = CorpusPieces.of(write_corpus(tmp_path, bert, random_documents(0, 80)), bert, 60)
    sizes = [sum(len(each.ids) - 2 for each in source.read([place], 0)) for place in range(len(source))]
    assert max(sizes) <= 58
    assert np.mean(sizes) > 45
    some = source.read([len(source) - 1, 0, 3], 0)
    assert [each.number for each in some] == [
        each.number for place in (len(source) - 1, 0, 3) for each in source.read([place], 0)
    ]
    assert source.read([], 0) == []


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.head)
def test_pairs_stand_in_the_template_and_fit(tokenizer, documents, tmp_path, relation):
    source = SegmentPairs.of(write_corpus(tmp_path, tokenizer, documents), tokenizer, 24, relation, 0)
    for epoch in range(3):
        for each in read_all(source, epoch):
            assert len(each.ids) <= 24
            parts = segments(each, tokenizer)
            assert len(parts) == (1 if each.relation < 0 else 2)
            texts = tuple(tokenizer.decode(part) for part in parts)
            text = texts if len(texts) == 2 else texts[0]
            encoded = tokenizer.encode([text], max_length=24)[0].windows[0]
            assert (each.ids.tolist(), each.types.tolist()) == (encoded.ids, encoded.types)


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.head)
@pytest.mark.parametrize("max_length", [6, 24])
def test_the_classes_are_halves_and_change_from_epoch_to_epoch(bert, documents, tmp_path, relation, max_length):
    source = SegmentPairs.of(write_corpus(tmp_path, bert, documents), bert, max_length, relation, 5)
    seen = []
    for epoch in range(20):
        labels = [each.relation for each in read_all(source, epoch)]
        counted = Counter(labels)
        assert abs(counted[0] - counted[1]) <= 1
        seen.append(labels)
    with_segments = np.array(seen)[:, np.array(seen[0]) >= 0]
    # Chance of a piece that has the same class in all of the epochs: 2 in a million.
    assert (with_segments.mean(0) > 0).all()
    assert (with_segments.mean(0) < 1).all()


def owners(part, documents):
    """Numbers of the documents that a run of tokens stands in."""
    return {number for number, document in enumerate(documents) if contained(part, flat(document))}


@pytest.mark.parametrize("max_length", [9, 24, 400])
def test_next_sentences_follow_and_random_ones_are_of_another_document(bert, tmp_path, max_length):
    # Each word stands in one document only.
    documents = [[[5 + 4 * number + place % 4 for place in range(n)] for n in (3, 4, 2, 5)] for number in range(14)]
    source = SegmentPairs.of(write_corpus(tmp_path, bert, documents), bert, max_length, NextSentence(), 1)
    drawn = Counter()
    for epoch in range(100):
        for each in read_all(source, epoch):
            if each.relation < 0:
                continue
            first, second = segments(each, bert)
            own, other = owners(first[:1], documents), owners(second[:1], documents)
            assert owners(first, documents) == own
            assert owners(second, documents) == other
            if each.relation:
                assert own != other
                drawn[*own, *other] += 1
            else:
                assert own == other
                assert contained(first + second, flat(documents[own.pop()]))
    assert len(drawn) > 14 * 13 * 0.9


def test_pairs_of_either_document_are_those_of_next_sentences_without_classes(bert, documents, tmp_path):
    corpus = write_corpus(tmp_path, bert, documents)
    predicted, unpredicted = (
        SegmentPairs.of(corpus, bert, 24, relation, 1) for relation in (NextSentence(), EitherDocument())
    )
    for one, other in zip(read_all(predicted, 2), read_all(unpredicted, 2), strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert other.relation == -1
        assert len(other.text) == len(predicted.framed.tokens(one.number)) or one.relation == 1


def test_in_a_single_document_all_second_segments_follow(bert, tmp_path):
    document = random_documents(0, 1, sentences=20)
    source = SegmentPairs.of(write_corpus(tmp_path, bert, document), bert, 24, EitherDocument(), 1)
    assert flat(flat(segments(each, bert)) for each in read_all(source)) == flat(document[0])


def test_swapped_segments_are_the_same_ones_the_other_way_round(bert, documents, tmp_path):
    source = SegmentPairs.of(write_corpus(tmp_path, bert, documents), bert, 30, SentenceOrder(), 1)
    pieces = {each.number: each for each in read_all(CorpusPieces.of(source.framed.corpus, bert, 29))}
    for each in read_all(source, 3):
        whole = segments(pieces[each.number], bert)[0]
        parts = segments(each, bert)
        assert flat(reversed(parts) if each.relation == 1 else parts) == whole


def test_pieces_are_cut_at_ends_of_sentences_and_one_sentence_in_its_middle(bert, tmp_path):
    documents = [[[5] * 3, [6] * 4, [7] * 2], [[8] * 7], [[9]], [[10] * 2, [11] * 3]]
    source = SegmentPairs.of(write_corpus(tmp_path, bert, documents), bert, 400, SentenceOrder(), 0)
    cuts = {0: set(), 1: set(), 3: set()}
    for epoch in range(60):
        for each in read_all(source, epoch):
            parts = segments(each, bert)
            if each.number == 2:
                assert (parts, each.relation, each.types.tolist()) == ([[9]], -1, [0, 0, 0])
            else:
                cuts[each.number].add(len(parts[each.relation]))
    assert cuts == {0: {3, 7}, 1: {3}, 3: {2}}


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.head)
def test_pairs_depend_on_seed_epoch_and_number_alone(bert, tmp_path, relation):
    corpus = write_corpus(tmp_path, bert, random_documents(3, 50))

    def seen(seed, epoch, places):
        source = SegmentPairs.of(corpus, bert, 40, relation, seed)
        return {each.number: (each.ids.tolist(), each.relation) for each in source.read(places, epoch)}

    everything = range(len(SegmentPairs.of(corpus, bert, 40, relation, 0)))
    whole = seen(0, 1, everything)
    assert seen(0, 1, [*reversed(everything)]) == whole
    assert all(whole[number] == pair for place in (5, 2) for number, pair in seen(0, 1, [place]).items())
    assert seen(0, 2, everything) != whole
    assert seen(1, 1, everything) != whole
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    seen(0, 1, [0])
    assert np.array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize("max_length", [10, 40])
@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5])
def test_held_out_documents_are_not_trained_on(bert, tmp_path, fraction, max_length):
    documents = [[[5 + number] * n for n in (6, 9)] for number in range(56)]
    whole = CorpusPieces.of(write_corpus(tmp_path, bert, documents), bert, max_length)
    training, validation = whole.hold_out(fraction, 3)
    words = [{one for each in read_all(part) for one in segments(each, bert)[0]} for part in (training, validation)]
    assert not words[0] & words[1]
    assert len(words[0] | words[1]) == 56
    held = sum(len(each.ids) - 2 for each in read_all(validation))
    assert held == 15 * max(2, int(56 * fraction))
    assert (
        max(sum(len(each.ids) - 2 for each in validation.read([at], 0)) for at in range(len(validation))) <= max_length
    )
    again = whole.hold_out(fraction, 3)
    assert [part.digest for part in again] == [training.digest, validation.digest]
    assert whole.hold_out(fraction, 4)[1].digest != validation.digest


def test_second_segments_stay_within_their_part(bert, tmp_path):
    documents = [[[5 + number] * n for n in (6, 9)] for number in range(56)]
    whole = SegmentPairs.of(write_corpus(tmp_path, bert, documents), bert, 40, NextSentence(), 0)
    training, validation = whole.hold_out(0.3, 3)
    words = [
        {one for epoch in range(5) for each in read_all(part, epoch) for one in flat(segments(each, bert))}
        for part in (training, validation)
    ]
    assert not words[0] & words[1]
    counted = Counter(each.relation for each in read_all(validation))
    assert abs(counted[0] - counted[1]) <= 1


def test_digests_tell_corpora_lengths_templates_relations_and_seeds_apart(bert, tmp_path):
    first = write_corpus(tmp_path / "a", bert, random_documents(0, 9))
    second = write_corpus(tmp_path / "b", bert, random_documents(1, 9))
    digests = [
        CorpusPieces.of(first, bert, 20).digest,
        CorpusPieces.of(first, bert, 21).digest,
        CorpusPieces.of(second, bert, 20).digest,
        *(SegmentPairs.of(first, bert, 20, relation, seed).digest for relation in RELATIONS for seed in (0, 1)),
    ]
    assert len(set(digests)) == len(digests)
    assert CorpusPieces.of(TokenCorpus.open(tmp_path / "a" / "shards"), bert, 20).digest == digests[0]


def test_tokens_stay_on_the_disk_until_they_are_read(bert, tmp_path):
    corpus = write_corpus(tmp_path, bert, random_documents(0, 3000, words=40), shard_tokens=2**24)
    stored = corpus.manifest.tokens * 2
    pieces = SegmentPairs.of(corpus, bert, 512, NextSentence(), 0)
    arrays = [getattr(pieces.framed.pieces, name) for name in ("shard_P", "begin_P", "length_P", "document_P")]
    assert sum(array.nbytes for array in arrays) < stored / 4
    tracemalloc.start()
    pieces.read([7, 500], 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < stored / 10


def test_a_corpus_that_cannot_be_used_is_refused(bert, tmp_path):
    documents = [[[5, 6, 7], [8, 9]]]
    corpus = write_corpus(tmp_path, bert, documents)
    with pytest.raises(InvalidInput, match=r"max_length must be at least 3 .* got 2\."):
        CorpusPieces.of(corpus, bert, 2)
    with pytest.raises(InvalidInput, match=r"max_length must be at least 5 .* got 4\."):
        SegmentPairs.of(corpus, bert, 4, SentenceOrder(), 0)
    with pytest.raises(InvalidInput, match="next sentence prediction needs at least 2 documents"):
        SegmentPairs.of(corpus, bert, 40, NextSentence(), 0)
    assert len(SegmentPairs.of(corpus, bert, 40, SentenceOrder(), 0)) == 1
    with pytest.raises(InvalidInput, match="written with another tokenizer"):
        CorpusPieces.of(corpus, tiny_tokenizer(tmp_path / "roberta", "roberta"), 20)
    source = CorpusPieces.of(corpus, bert, 20)
    with pytest.raises(InvalidInput, match="at least 2 documents to hold some out, got 1"):
        source.hold_out(0.5, 0)
    with pytest.raises(InvalidInput, match=r"above 0 and below 1, got 1"):
        source.hold_out(1, 0)
    corpus.manifest = type(corpus.manifest)(corpus.manifest.tokenizer, 61, "uint16")
    with pytest.raises(InvalidInput, match="hold no tokens"):
        CorpusPieces.of(corpus, bert, 20)


def test_frames_are_those_of_the_template(bert):
    assert Frame.of_pair(bert) == Frame(((1,), (2,), (2,)), ((0,), (0,), (1,)), (0, 1))
    assert Frame.of_text(bert).special == 2


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_frames_of_trained_tokenizers(tmp_path, kind):
    write_trained_tokenizer(train_tokenizer(["some words to train on, again and again"] * 3, kind, 300), tmp_path)
    tokenizer = TextTokenizer.from_folder(tmp_path, recipes.TRAINED)
    cls, sep = (tokenizer.cls_id,), (tokenizer.sep_id,)
    assert Frame.of_text(tokenizer) == Frame((cls, sep), ((0,), (0,)), (0,))
    assert Frame.of_pair(tokenizer) == Frame((cls, sep, sep), ((0,), (0,), (1,)), (0, 1))


def test_the_token_of_a_text_stands_last_in_xlnet(tmp_path):
    tokenizer = tiny_tokenizer(tmp_path, "xlnet")
    assert Frame.of_text(tokenizer) == Frame(((), (2, 1)), ((), (0, 2)), (0,))


def test_seven_pieces_of_eight_are_read_sentence_by_sentence(tmp_path, bert):
    corpus = write_corpus(tmp_path, bert, random_documents(1, 30))
    whole, mixed = CorpusPieces.of(corpus, bert, 18), CorpusPieces.of(corpus, bert, 18, sentences=True)
    assert (len(mixed), mixed.digest == whole.digest) == (len(whole), False)
    found = {}
    for sequence in read_all(mixed):
        found.setdefault(sequence.number, []).append(segments(sequence, bert)[0])
    for piece in read_all(whole):
        parts = found[piece.number]
        assert flat(parts) == segments(piece, bert)[0]
        cuts = np.cumsum([len(part) for part in parts]).tolist()
        ends = whole.framed.sentence_ends(piece.number).tolist()
        assert cuts == (ends if piece.number % 8 else ends[-1:])
    assert max(map(len, found.values())) > 1
    training, validation = mixed.hold_out(0.2, 0)
    assert (training.sentences, validation.sentences) == (True, True)
