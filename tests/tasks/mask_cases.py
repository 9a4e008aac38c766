"""Tiny masked language models for the tests of filling masks, and what they say, computed one sequence at a time."""

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from bothways.checkpoints import load
from bothways.tasks.masked_lm.fill_mask import FillMask
from tiny_models import VOCABULARY, write_checkpoint

SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
PIECES = ("un", "happy", "the", "cat", "sat", "a", ".", "##happy", "##s", "##ly", "##cat", "cats", "h", "##a", "(")


def write_pieces(folder):
    """Give a tiny BERT a WordPiece vocabulary with pieces that go on with words."""
    names = [*SPECIAL, *PIECES]
    names += [f"v{number}" for number in range(len(names), VOCABULARY)]
    ids = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def masked_lm(folder, *, pieces=False, **options):
    """A tiny BERT with its masked language modelling head, opened."""
    if not folder.exists():
        write_checkpoint(folder, architecture="BertForMaskedLM")
        if pieces:
            write_pieces(folder)
    return FillMask.from_pretrained(folder, device="cpu", **options)


class Oracle:
    """Log-probabilities of single places, from the head's logits of one sequence at a time."""

    def __init__(self, folder):
        self.model = load(folder, heads="masked_lm", device="cpu")
        self.mask = self.model.tokenizer.mask_id
        self.special = self.model.tokenizer.special_ids

    def ids(self, text):
        (encoded,) = self.model.tokenizer.encode([text], max_length=10_000)
        return list(encoded.windows[0].ids)

    def logs(self, ids, place):
        """Log-probabilities (V) at a place."""
        with torch.no_grad():
            logits = self.model.apply_head("masked_lm", input_ids=torch.tensor([ids])).logits
        return logits[0, place].log_softmax(-1)

    def chain(self, ids, fill, order):
        """The sum of the log-probabilities of a filling's pieces in an order of its masks.

        ``ids`` has one mask for each piece; ``fill`` has the places and pieces of each word.
        """
        ids, total = list(ids), 0.0
        for slot in order:
            for place, piece in fill[slot]:
                total += float(self.logs(ids, place)[piece])
                ids[place] = piece
        return total
