"""Every task trains in bfloat16 as a GPU computes it, emulated on a CPU (`cuda_emulation`), and waits for nothing."""

import pytest
from test_golden_losses import CASES, losses_of

from bothways.training.optimizers import Stepper
from cuda_emulation import emulated_cuda, no_waits
from everyday import some_of
from tiny_models import switch_off_dropout

# Every day each task and loss with the attention of BERT, and the families whose attention is their own.
PLAIN = {f"family {name}" for name in ("roberta", "xlm-roberta", "camembert", "distilbert", "electra", "albert")}


@pytest.mark.parametrize("case", some_of(CASES, *(case for case in CASES if case not in PLAIN)))
def test_a_training_in_bfloat16_has_the_losses_of_one_in_float32_but_for_rounding(case, tmp_path, monkeypatch):
    backward = Stepper._backward

    def watched(*given):
        with no_waits():
            return backward(*given)

    # Each backend draws its dropout in another order.
    switch_off_dropout(monkeypatch)
    expected = losses_of(case, tmp_path / "float32")
    monkeypatch.setattr(Stepper, "_backward", watched)
    with emulated_cuda(monkeypatch):
        found = losses_of(case, tmp_path / "bfloat16", precision="bfloat16")
    assert found == pytest.approx(expected, rel=0.05)
