"""Tiny models of every family, made and run by transformers."""

import pytest

pytest.importorskip("transformers", reason="the oracle is not installed: pip install 'bothways[test]'")


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """A factory: a model of transformers and the folder that it saved itself into, made once for each kind."""
    from oracles import tiny_oracle

    from tiny_models import write_tokenizer

    made = {}

    def make(model_type, kind):
        if (model_type, kind) not in made:
            model = tiny_oracle(model_type, kind)
            folder = tmp_path_factory.mktemp(f"{model_type}-{kind}")
            model.save_pretrained(folder)
            write_tokenizer(folder, model_type)
            made[model_type, kind] = (model, folder)
        return made[model_type, kind]

    return make
