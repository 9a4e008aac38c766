"""Settings of sentence-transformers that are not supported, damaged or unknown: refused with their name and value."""

import json
import shutil

import pytest
from sentence_folders import HIDDEN, PROMPTS, TEXTS, edit, write_dense, write_encoder, write_old

from bothways.errors import (
    CorruptCheckpoint,
    IncompatibleWeights,
    InvalidInput,
    UnknownModel,
    UnsafeCheckpoint,
    UnsupportedConfig,
)
from bothways.tasks import SentenceEmbedder

OLD, NEW = "sentence_transformers.models.", "sentence_transformers.sentence_transformer.modules."
MODULES = {
    "": f"{OLD}Transformer",
    "1_Pooling": f"{OLD}Pooling",
    "2_Dense": f"{OLD}Dense",
    "3_Normalize": f"{OLD}Normalize",
}
POOLING, DENSE, NORMALIZE = (f"{path}/config.json" for path in list(MODULES)[1:])
LENGTH, GENERAL = "sentence_bert_config.json", "config_sentence_transformers.json"
FILES = {
    POOLING: {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True},
    DENSE: {
        "in_features": HIDDEN,
        "out_features": 10,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    },
    LENGTH: {"max_seq_length": 20, "do_lower_case": False},
    GENERAL: {"prompts": PROMPTS, "default_prompt_name": None, "similarity_fn_name": "cosine"},
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """The folder of a bare BERT."""
    return write_encoder(tmp_path_factory.mktemp("encoders") / "bert", "bert")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, encoder):
    """A folder that opens, with a file for each kind of setting."""
    folder = write_old(encoder, tmp_path_factory.mktemp("folders") / "whole", MODULES, FILES)
    SentenceEmbedder.from_pretrained(folder, device="cpu").encode(TEXTS[:1])
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    """A copy of the folder that opens."""
    return shutil.copytree(whole, tmp_path / "folder")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("sentence_transformers.base.modules.router.Router", "Router"),
        (f"{OLD}Asym", "Asym"),
        *(
            (f"{OLD}{name}", name)
            for name in (
                "WordEmbeddings",
                "BoW",
                "CNN",
                "LSTM",
                "WeightedLayerPooling",
                "WordWeights",
                "StaticEmbedding",
                "CLIPModel",
                "Unheard",
            )
        ),
        (f"{NEW}static_embedding.StaticEmbedding", "StaticEmbedding"),
        ("custom_st.Transformer", "custom_st.Transformer"),
        ("modeling_mine.Pooling", "modeling_mine.Pooling"),
        ("pylate.models.Dense.Dense", "pylate.models.Dense.Dense"),
    ],
)
@pytest.mark.parametrize("place", [0, 3])
def test_a_module_that_is_not_supported_is_named(folder, kind, said, place):
    listed = json.loads((folder / "modules.json").read_text())
    listed[place]["type"] = kind
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(UnsupportedConfig, match=rf"modules\.json.*{said}"):
        SentenceEmbedder.from_pretrained(folder, device="cpu")


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ((0, 2, 1), "Dense"),
        ((0, 3, 1, 2), "Normalize"),
        ((1, 0), "Pooling"),
        ((0,), "Pooling|Transformer"),
        ((0, 1, 1), "Pooling"),
    ],
)
def test_modules_in_another_order_are_refused(folder, order, said):
    listed = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([listed[place] for place in order]))
    with pytest.raises((UnsupportedConfig, CorruptCheckpoint), match=rf"modules\.json.*({said})"):
        SentenceEmbedder.from_pretrained(folder, device="cpu")


# A file of settings, what is changed in it, the error, and what its message says beside the file.
REFUSED = [
    (DENSE, {"activation_function": "mine.Tanh"}, UnsupportedConfig, "activation_function.*mine.Tanh"),
    (
        DENSE,
        {"activation_function": "sentence_transformers.util.Tanh"},
        UnsupportedConfig,
        "sentence_transformers.util.Tanh",
    ),
    (DENSE, {"activation_function": "torch.tanh"}, UnsupportedConfig, "torch.tanh"),
    (DENSE, {"activation_function": "torch.nn.modules.activation.PReLU"}, UnsupportedConfig, "PReLU"),
    (
        DENSE,
        {"activation_function": "torch.nn.modules.activation.MultiheadAttention"},
        UnsupportedConfig,
        "MultiheadAttention",
    ),
    (DENSE, {"activation_function": "os.system"}, UnsupportedConfig, "os.system"),
    (DENSE, {"in_features": 48}, CorruptCheckpoint, "48.*24"),
    (DENSE, {"in_features": ...}, CorruptCheckpoint, "in_features"),
    (DENSE, {"out_features": -3}, CorruptCheckpoint, "out_features.*-3"),
    (DENSE, {"out_features": "10"}, CorruptCheckpoint, "out_features.*'10'"),
    (DENSE, {"module_input_name": "token_embeddings"}, UnsupportedConfig, "module_input_name.*token_embeddings"),
    (DENSE, {"module_output_name": "other"}, UnsupportedConfig, "module_output_name.*other"),
    (DENSE, {"scale": 0.5}, UnsupportedConfig, "scale.*0.5"),
    (NORMALIZE, {"module_input_name": "token_embeddings"}, UnsupportedConfig, "module_input_name.*token_embeddings"),
    (NORMALIZE, {"p": 1}, UnsupportedConfig, "p to 1"),
    (POOLING, {"pooling_mode": "attention"}, UnsupportedConfig, "attention"),
    (POOLING, {"pooling_mode": ["mean", "attention"]}, UnsupportedConfig, "attention"),
    (POOLING, {"pooling_mode": []}, UnsupportedConfig, r"\[\]"),
    (POOLING, {"pooling_mode": 3}, UnsupportedConfig, "3"),
    (POOLING, {"word_embedding_dimension": 25}, CorruptCheckpoint, "25.*24"),
    (POOLING, {"include_prompt": "no"}, UnsupportedConfig, "include_prompt.*'no'"),
    (POOLING, {"pooling_mode_median_tokens": True}, UnsupportedConfig, "pooling_mode_median_tokens.*True"),
    (LENGTH, {"chunk_tokens": 7}, UnsupportedConfig, "chunk_tokens.*7"),
    (LENGTH, {"max_seq_length": -1}, CorruptCheckpoint, "max_seq_length.*-1"),
    (LENGTH, {"max_seq_length": "20"}, CorruptCheckpoint, "max_seq_length.*'20'"),
    (LENGTH, {"do_lower_case": "yes"}, UnsupportedConfig, "do_lower_case.*'yes'"),
    (LENGTH, {"transformer_task": "fill-mask"}, UnsupportedConfig, "transformer_task.*fill-mask"),
    (LENGTH, {"module_output_name": "sentence_embedding"}, UnsupportedConfig, "module_output_name.*sentence_embedding"),
    (LENGTH, {"query_length": 32}, UnsupportedConfig, "query_length.*32"),
    (LENGTH, {"document_length": 180}, UnsupportedConfig, "document_length.*180"),
    (LENGTH, {"query_expansion": {"strategy": "fixed", "length": 32}}, UnsupportedConfig, "query_expansion.*fixed"),
    (LENGTH, {"processing_kwargs": {"text": {"max_length": 9}}}, UnsupportedConfig, "processing_kwargs.*max_length"),
    (LENGTH, {"tokenizer_args": {"padding_side": "left"}}, UnsupportedConfig, "tokenizer_args.*left"),
    (LENGTH, {"model_args": {"dtype": "float16"}}, UnsupportedConfig, "model_args.*float16"),
    (LENGTH, {"config_kwargs": {"hidden_act": "relu"}}, UnsupportedConfig, "config_kwargs.*relu"),
    (
        LENGTH,
        {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
        UnsupportedConfig,
        "modality_config.*pooler_output",
    ),
    (
        LENGTH,
        {"modality_config": {"image": {"method": "get_image_features"}}},
        UnsupportedConfig,
        "modality_config.*image",
    ),
    (
        GENERAL,
        {"default_prompt_name": "summary"},
        CorruptCheckpoint,
        "default_prompt_name.*'summary'.*query, passage, long",
    ),
    (GENERAL, {"default_prompt_name": 3}, CorruptCheckpoint, "default_prompt_name.*3"),
    (GENERAL, {"prompts": ["query: "]}, CorruptCheckpoint, "prompts.*query: "),
    (GENERAL, {"prompts": {"query": 3}}, CorruptCheckpoint, "prompts.*3"),
    (GENERAL, {"similarity_fn_name": "maxsim"}, UnsupportedConfig, "similarity_fn_name.*maxsim"),
    (GENERAL, {"truncate_dim": 0}, CorruptCheckpoint, "truncate_dim.*0"),
    (GENERAL, {"truncate_dim": 2.5}, CorruptCheckpoint, "truncate_dim.*2.5"),
    (GENERAL, {"truncate_dim": True}, CorruptCheckpoint, "truncate_dim.*True"),
    (GENERAL, {"model_type": "SparseEncoder"}, UnsupportedConfig, "model_type.*SparseEncoder"),
    (GENERAL, {"model_type": "CrossEncoder"}, UnsupportedConfig, "model_type.*CrossEncoder"),
    (GENERAL, {"late_chunking": True}, UnsupportedConfig, "late_chunking.*True"),
]


@pytest.mark.parametrize(
    ("file", "changes", "error", "said"), REFUSED, ids=[f"{case[0]} {case[1]}" for case in REFUSED]
)
def test_a_setting_that_is_not_supported_is_named_with_its_value(folder, file, changes, error, said):
    edit(folder / file, changes)
    with pytest.raises(error, match=rf"(?s){file.split('/')[0]}.*{said}"):
        SentenceEmbedder.from_pretrained(folder, device="cpu")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"linear.weight": (10, 23)}, "linear.weight"),
        ({"linear.weight": None}, "linear.weight"),
        ({"linear.bias": None}, "linear.bias"),
        ({"linear.bias": (9,)}, "linear.bias"),
        ({"residual.weight": (10, HIDDEN)}, "residual.weight"),
    ],
    ids=str,
)
def test_a_dense_whose_weights_do_not_fit_is_refused(folder, changes, said):
    write_dense(folder / "2_Dense", **changes)
    with pytest.raises((CorruptCheckpoint, IncompatibleWeights), match=rf"(?s)(?=.*{said}).*2_Dense"):
        SentenceEmbedder.from_pretrained(folder, device="cpu").encode(TEXTS[:1])


def test_a_dense_without_its_files_is_refused(folder):
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises((CorruptCheckpoint, UnknownModel), match="2_Dense"):
        SentenceEmbedder.from_pretrained(folder, device="cpu").encode(TEXTS[:1])


@pytest.mark.parametrize("ask", ["encode", "encode_query", "encode_document"])
def test_a_prompt_name_that_is_not_there_lists_those_that_are(whole, ask):
    embedder = SentenceEmbedder.from_pretrained(whole, device="cpu")
    with pytest.raises(InvalidInput, match=r"'query', 'passage', 'long', 'none', got 'summary'"):
        getattr(embedder, ask)(TEXTS, prompt_name="summary")


def test_a_prompt_and_the_name_of_one_are_not_given_at_once(whole):
    with pytest.raises(InvalidInput, match=r"not both.*'A: '.*'query'"):
        SentenceEmbedder.from_pretrained(whole, device="cpu").encode(TEXTS, prompt="A: ", prompt_name="query")


def test_a_prompt_without_room_for_a_text_is_refused(whole):
    with pytest.raises(InvalidInput, match=r"room for text in a window of 20 tokens.*max_length"):
        SentenceEmbedder.from_pretrained(whole, device="cpu").encode(TEXTS, prompt="cat " * 20)


def test_the_pickle_of_a_dense_is_read_only_if_this_is_allowed(folder):
    (folder / "2_Dense" / "model.safetensors").unlink()
    write_dense(folder / "2_Dense", "pytorch_model.bin")
    with pytest.raises(UnsafeCheckpoint, match=r"2_Dense.*pytorch_model\.bin"):
        SentenceEmbedder.from_pretrained(folder, device="cpu")


def test_an_encoder_in_a_folder_of_its_own_is_refused(encoder, tmp_path):
    first, *others = MODULES.items()
    write_old(encoder, tmp_path / "folder", {"0_Transformer": first[1], **dict(others)}, FILES)
    with pytest.raises(UnsupportedConfig, match=r"modules\.json.*0_Transformer"):
        SentenceEmbedder.from_pretrained(tmp_path / "folder", device="cpu")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("content", ["[1]", "{", '"text"'])
def test_a_damaged_file_of_settings_is_named(folder, file, content):
    (folder / file).write_text(content)
    with pytest.raises(CorruptCheckpoint, match=file):
        SentenceEmbedder.from_pretrained(folder, device="cpu")


@pytest.mark.parametrize(
    "content",
    ["{}", "[1]", "[]", '[{"path": ""}]', '[{"type": "sentence_transformers.models.Transformer", "path": "../x"}]'],
)
def test_a_damaged_list_of_modules_is_named(folder, content):
    (folder / "modules.json").write_text(content)
    with pytest.raises((CorruptCheckpoint, UnsupportedConfig), match=r"modules\.json"):
        SentenceEmbedder.from_pretrained(folder, device="cpu")
