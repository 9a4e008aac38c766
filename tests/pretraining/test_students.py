"""Students: copies of a teacher with some of its layers, which open wherever their teacher does."""

import pytest
import torch

from bothways import load
from bothways.encoder.config import LocalGlobalAttention
from bothways.errors import InvalidInput
from bothways.families import FAMILIES
from bothways.pretraining.models import Student, evenly_spread, shortened
from tiny_models import TINY, every_family, write_checkpoint, write_tokenizer

READ = ["w5 w6 w7 w8", "w9 w40 w41"]


def opened(folder, model_type="bert", **options):
    write_checkpoint(folder, model_type, **options)
    write_tokenizer(folder, model_type)
    return load(folder, device="cpu")


def test_layers_are_spread_with_the_first_and_the_last():
    assert evenly_spread(12, 6) == (0, 2, 4, 7, 9, 11)  # as in DistilBERT's published code
    assert evenly_spread(12, 4) == (0, 4, 7, 11)
    assert evenly_spread(6, 3) == (0, 3, 5)
    assert evenly_spread(6, 2) == (0, 5)
    assert evenly_spread(6, 1) == (0,)
    for layers in (0, 7):
        with pytest.raises(
            InvalidInput, match=f"`layers` must be from 1 to 6, the layers of the teacher, got {layers}"
        ):
            evenly_spread(6, layers)


@every_family
def test_a_student_of_all_layers_is_its_teacher(model_type, tmp_path):
    teacher = opened(tmp_path, model_type)
    student = shortened(teacher, teacher.config.layers)
    assert student.copied == tuple(range(teacher.config.layers))
    with torch.inference_mode():
        assert torch.equal(student.model(READ).last_hidden_state, teacher(READ).last_hidden_state)
    assert student.model.encoder.state_dict().keys() == teacher.encoder.state_dict().keys()
    ours, theirs = (
        {parameter.data_ptr() for parameter in each.encoder.parameters()} for each in (student.model, teacher)
    )
    assert ours.isdisjoint(theirs)


@every_family
def test_a_shorter_student_opens_here_and_in_transformers(model_type, tmp_path):
    from transformers import AutoModel

    student = shortened(opened(tmp_path / "teacher", model_type), 2).model
    assert student.config == FAMILIES[model_type].config(student.settings)
    assert student.config.layers == 2
    student.save(tmp_path / "student")
    again, oracle = load(tmp_path / "student", device="cpu"), AutoModel.from_pretrained(tmp_path / "student").eval()
    with torch.inference_mode():
        states = student(READ).last_hidden_state
        assert torch.equal(again(READ).last_hidden_state, states)
        for row, text in enumerate(READ):
            window = student.tokenizer.encode([text], max_length=18)[0].windows[0]
            given = {"input_ids": torch.tensor([list(window.ids)])}
            if student.config.reads_types:
                given["token_type_ids"] = torch.tensor([list(window.types)])
            expected = oracle(**given).last_hidden_state[0]
            torch.testing.assert_close(states[row, : len(expected)], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("listed", [False, True])
def test_a_layer_sees_as_much_as_the_one_that_it_was_copied_from(tmp_path, listed, monkeypatch):
    kinds = ["full_attention", "sliding_attention", "sliding_attention"] * 2
    more = {"num_hidden_layers": 6} | ({"layer_types": kinds} if listed else {})
    monkeypatch.setitem(TINY, "modernbert", TINY["modernbert"] | more)
    teacher = opened(tmp_path, "modernbert")
    student = shortened(teacher, 4)
    assert student.copied == (0, 2, 4, 3)  # evenly spread they were 0, 2, 3 and 5
    assert isinstance(student.model.config.pattern, LocalGlobalAttention)
    assert student.model.config.pattern.seen_whole == (True, False, False, True)
    assert student.learns_from(teacher.config) == (0, 2, 4, 5)


def test_other_students_learn_from_evenly_chosen_layers(tmp_path):
    teacher, other = opened(tmp_path / "a"), opened(tmp_path / "b", "electra")
    assert Student(other).learns_from(teacher.config) == (0, 1, 2)
    assert Student(shortened(other, 1).model).learns_from(teacher.config) == (2,)
