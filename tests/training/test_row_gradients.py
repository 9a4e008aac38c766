"""Row gradients of embedding tables: the optimizer sees what it would have seen."""

import pytest
import torch
from torch import nn

from bothways.training.optimizers import NamedOptimizer, sparse_tables
from bothways.training.options import AdamW, TrainingOptions


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 6)
        self.out = nn.Linear(6, 1)

    def forward(self, ids):
        return self.out(self.table(ids).mean(0)).sum()


class TiedBag(Bag):
    """The table is the output matrix too, so that its gradient is dense."""

    def forward(self, ids):
        return (self.table(ids).mean(0) @ self.table.weight.T).square().sum()


def trained(kind, *, rows):
    torch.manual_seed(4)
    model = kind()
    optimizer = NamedOptimizer(model, TrainingOptions(learning_rate=0.01, optimizer=AdamW(weight_decay=0.1)))
    norms = []
    for step in range(6):
        for part in range(2):  # two micro-batches, with repeated ids
            ids = torch.tensor([3, 3, 7 + step, part, 49])
            if rows:
                with sparse_tables(model):
                    model(ids).backward()
            else:
                model(ids).backward()
        norms.append(optimizer.clip(0.5).item())
        optimizer.step(0.01)
    return model, norms


@pytest.mark.parametrize("kind", [Bag, TiedBag])
def test_training_by_rows_equals_training_with_dense_gradients(kind):
    by_rows, norms = trained(kind, rows=True)
    dense, dense_norms = trained(kind, rows=False)
    assert norms == pytest.approx(dense_norms, rel=1e-6)
    for one, other in zip(by_rows.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_tables_give_dense_gradients_again_after_the_block():
    model = Bag()
    with sparse_tables(model):
        assert model.table.sparse
    assert not model.table.sparse
    model(torch.tensor([1, 2])).backward()
    assert not model.table.weight.grad.is_sparse
