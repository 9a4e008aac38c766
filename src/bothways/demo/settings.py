"""What the demo does: its texts, queries and training settings."""

from dataclasses import dataclass

MODEL = "sentence-transformers/all-MiniLM-L6-v2"

# The pronoun comes before its noun, so that only a model that looks to the right can read what it stands for.
SENTENCE = "Because it was tired, the cat sat on the mat."
PRONOUN = "it"


@dataclass(frozen=True, slots=True)
class Headline:
    """A headline that is in none of the data files.

    Attributes:
        text: The headline.
        meant: The category that its author had in mind; None where none of them fits.
    """

    text: str
    meant: str | None


HEADLINES = (
    Headline("Chip maker unveils a processor that runs for a week on one charge", "technology"),
    Headline("A flaw in a popular password manager lets strangers read saved logins", "technology"),
    Headline("Goalkeeper saves two penalties and sends the home side to the final", "sports"),
    Headline("Marathon champion retires after a third knee operation", "sports"),
    Headline("Coalition talks collapse over the pension reform", "politics"),
    Headline("Parliament votes on the new chip subsidy", "politics"),
    Headline("Critics adore the quiet drama that nobody wanted to finance", "entertainment"),
    Headline("Stir the lentils into the broth and let them simmer for twenty minutes", None),
)

# What the label sets of the headlines promise.
COVERAGE = 0.9

QUERIES = (
    "somebody stole personal data",
    "an athlete comes back after an injury",
    "a late goal decides the match",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """How the demo trains and measures.

    Attributes:
        seed: Of the training; the bootstrap always has the one of ``bothways evaluate``, so that both agree.
        epochs: Passes over the training texts.
        learning_rate: Peak of the schedule.
        batch_size: Texts in one update.
        resamples: Of the bootstrap.
        rows: Take only so many rows of each file; None takes all.
        shots: Texts of each category that the few-shot classifier is shown.
        pairs_per_text: With how many others of its category each of them is put together in an epoch.
    """

    seed: int = 1
    epochs: int = 4
    learning_rate: float = 1e-4
    batch_size: int = 16
    resamples: int = 1000
    rows: int | None = None
    shots: int = 8
    pairs_per_text: int = 4
