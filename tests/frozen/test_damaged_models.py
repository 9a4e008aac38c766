"""A ``bothways.json`` with a value that cannot be what was saved is refused; the schema knows every value in one."""

import contextlib
import json
import math
import shutil

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_frozen_models import MODELS, answer_of, opened, stored

from bothways.checkpoints import schema
from bothways.errors import BothwaysError, CorruptCheckpoint, InvalidInput, UnsupportedConfig

OURS = "bothways.json"
KINDS = {
    "classification": schema.StoredLabels,
    "pairs": schema.StoredLabels,
    "multiple_choice": schema.Stored,
    "tagging": schema.StoredTags,
    "question-answering": schema.StoredAnswers,
    "masked_lm": schema.Stored,
    "embedding": schema.StoredVectors,
    "multitask": schema.StoredTasks,
    "ensemble": schema.StoredEnsemble,
}
WRITTEN = sorted(path.parent.name for path in MODELS.glob(f"*/{OURS}"))
# Free to say anything: columns are checked by the task, the rest is never computed with.
OPAQUE = {"card", "config", "columns", "checksums"}
DAMAGE = (True, -1, 0, 2.5, math.nan, math.inf, -math.inf, 10**400, "", "x", "\ud800", [], ["x"], [1], {}, {"x": 1})


def written(name):
    return json.loads((MODELS / name / OURS).read_text(encoding="utf-8"))


def leaves(value, path=()):
    """The path of each value in a JSON object, and the value."""
    if path:
        yield path, value
    if path and path[-1] in OPAQUE:
        return
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from leaves(part, (*path, key))


def json_type(value):
    return "number" if type(value) in (int, float) else type(value).__name__


@pytest.mark.parametrize("name", WRITTEN)
def test_the_schema_knows_every_value_that_was_written(name):
    content = written(name)
    kept = KINDS[content["task"]].of(content)
    assert kept.model_dump(exclude_unset=True) == content
    assert set(kept.model_extra) == {"format_version"}
    for head in getattr(kept, "heads", ()):
        own = KINDS[head.task].of(head.model_dump(exclude_unset=True))
        assert set(own.model_extra) == {"name", "config"}


@pytest.mark.parametrize("kind", list(dict.fromkeys(KINDS.values())), ids=lambda kind: kind.__name__)
def test_every_value_has_words_for_what_is_expected(kind):
    assert [name for name, field in kind.model_fields.items() if not field.description] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return shutil.copytree(MODELS, tmp_path_factory.mktemp("frozen") / "models")


@contextlib.contextmanager
def damaged(folder, name, path, value):
    """A saved model with another value in its ``bothways.json``."""
    content = written(name)
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (folder / name / OURS).write_text(json.dumps(content), encoding="utf-8")
    try:
        yield
    finally:
        # To the byte: ensembles know checksums of their members' files.
        shutil.copyfile(MODELS / name / OURS, folder / name / OURS)


@settings(max_examples=150)
@given(data=st.data())
def test_a_damaged_value_is_refused_or_does_no_harm(folder, data):
    name, damage = data.draw(st.sampled_from(WRITTEN)), data.draw(st.sampled_from(DAMAGE))
    path, value = data.draw(st.sampled_from(list(leaves(written(name)))))
    assume(value is not None and damage != value)
    case, refused = stored(name), None
    with damaged(folder, name, path, damage):
        try:
            model = opened(folder, name, case)
            for call in case["calls"][:1]:
                answer_of(model, call)
        except BothwaysError as error:
            refused = error
    infinite = isinstance(damage, int | float) and not abs(damage) < math.inf
    if infinite or json_type(damage) != json_type(value):
        unread = damage in ("\ud800", 10**400)  # JSON that is refused before anything in it is looked at
        version = path == ("format_version",) and not unread
        assert isinstance(refused, UnsupportedConfig if version else CorruptCheckpoint), path
    assert not isinstance(refused, InvalidInput), path


@pytest.mark.parametrize(
    ("name", "path", "value", "expected"),
    [
        ("classifier", ("merge",), "median", "merge as a way to merge windows, but it is 'median'"),
        ("classifier", ("max_length",), 0, "max_length as a whole number of at least 1, but it is 0"),
        ("classifier", ("max_length",), 600, "max_length as a whole number of at most 18, but it is 600"),
        ("tagger", ("temperature", "value"), -1, "temperature as a value above 0 and a slope of at least 0"),
        ("answerer", ("no_answer_threshold",), True, "no_answer_threshold as a finite number, or null, but it is True"),
        ("multitask", ("heads", 1, "task"), "embedding", "heads as objects, each naming a task with a head above the"),
        ("ensemble_stacked", ("weights",), [1.0], "weights as 3 finite numbers, but it is [1.0]"),
    ],
)
def test_the_message_says_what_was_expected(folder, name, path, value, expected):
    with damaged(folder, name, path, value), pytest.raises(CorruptCheckpoint) as caught:
        opened(folder, name, stored(name))
    assert str(caught.value).startswith(f"bothways.json must give {expected}")
    assert str(caught.value).endswith("Get the model again from where it came.")
