"""Small labelled pairs for the tests of the pair classifier and of ensembles."""

RELATIONS = ("other", "same")


def pairs(count=24, first=0, label="label"):
    """Two texts; they are the same when their first words are."""
    made = []
    for number in range(first, first + count):
        same = number % 2
        filler = " ".join(f"w{20 + (7 * number + place) % 40}" for place in range(1 + number % 3))
        second = f"w{5 + number % 4 if same else 9 + number % 4}"
        made.append({"text_a": f"w{5 + number % 4} {filler}", "text_b": second, label: RELATIONS[same]})
    return made


def scored(count=24, first=0):
    """The same with a number."""
    return [
        {"text_a": row["text_a"], "text_b": row["text_b"], "score": 4.5 if row["label"] == "same" else 0.5}
        for row in pairs(count, first)
    ]
