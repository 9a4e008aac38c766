"""Questions for tiny models, and tokenizers that put special tokens where their families do."""

import json

import tokenizers
from tokenizers import processors

from bothways.families import FAMILIES
from bothways.text.recipes import BERT_TEMPLATE
from tiny_models import write_tokenizer


def answer_at(context, text):
    return {"text": text, "start": context.index(text)}


def questions(count=12):
    """Questions that ask for the two words behind a word, and some of a word that is not in their context."""
    made = []
    for number in range(count):
        asked, behind = f"w{5 + number % 3}", [f"w{10 + (5 * number + place) % 12}" for place in range(2)]
        before = [f"w{25 + (7 * number + place) % 30}" for place in range(number % 5)]
        after = [f"w{25 + (11 * number + place) % 30}" for place in range(1 + (3 * number) % 7)]
        held = number % 4 != 3
        context = " ".join([*before, *([asked, *behind] if held else []), *after])
        answers = [answer_at(context, " ".join(behind))] if held else []
        made.append({"id": f"q{number}", "question": asked, "context": context, "answers": answers})
    return made


def long_question():
    """A context of three windows whose answer stands in the last."""
    row = questions(1)[0]
    context = " ".join([*(f"w{25 + (7 * place) % 30}" for place in range(24)), row["context"]])
    return {**row, "id": "long", "context": context, "answers": [answer_at(context, row["answers"][0]["text"])]}


def write_pair_tokenizer(folder, model_type):
    """The tokenizer of `tiny_models`, with the family's own template for pairs."""
    write_tokenizer(folder, model_type)
    path = folder / "tokenizer.json"
    made = tokenizers.Tokenizer.from_file(str(path))
    recipe = FAMILIES[model_type].tokenizer
    template = getattr(recipe, "template", BERT_TEMPLATE)
    names = {role: token.content for role, token in recipe.special.named().items() if token is not None}

    def spelt(parts):
        return [":".join([names.get(part.split(":")[0], part.split(":")[0]), part.split(":")[1]]) for part in parts]

    made.post_processor = processors.TemplateProcessing(
        single=spelt(template.single),
        pair=spelt(template.pair),
        special_tokens=[(names[role], made.token_to_id(names[role])) for role in ("cls", "sep")],
    )
    made.save(str(path))


def stored(folder):
    """The content of bothways.json."""
    return json.loads((folder / "bothways.json").read_text(encoding="utf-8"))
