"""The tables of folders of sentence-transformers, as it saves them and as older releases did."""

from itertools import combinations, product

from sentence_folders import HIDDEN, OLD_KEYS, POOLINGS, PROMPTS, SHORT, Dense, Folder

FAMILIES = ("bert", "roberta", "xlnet", "modernbert", "deberta-v2")
# The names of classes of torch.nn, of which some stand in for the others every day.
ACTIVATIONS = ("Tanh", "Identity", "GELU", "LeakyReLU", "ReLU", "Sigmoid", "SiLU", "ELU", "SELU", "CELU", "ReLU6")
ACTIVATIONS += ("LogSigmoid", "Mish", "Softplus", "Softsign", "Tanhshrink", "Hardtanh", "Hardswish", "Hardsigmoid")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
TRIPLES = (("mean", "cls", "max"), ("lasttoken", "weightedmean", "cls"), ("max", "mean_sqrt_len_tokens", "mean"))

CASES = {
    # Every pooling with every way to pad and to mark the start of a text, with the prompt pooled or not.
    **{
        f"{family} {pooling}{'' if included else ' without prompt'}": Folder(family, pooling, included)
        for family, pooling, included in product(FAMILIES, POOLINGS, (True, False))
    },
    **{" and ".join(modes): Folder(pooling=modes) for modes in (*combinations(POOLINGS, 2), *TRIPLES)},
    "max and cls": Folder(pooling=("max", "cls")),
    "mean twice": Folder(pooling=("mean", "mean")),
    "all without prompt": Folder("xlnet", POOLINGS, include_prompt=False),
    **{f"dense {name}": Folder(behind=(Dense(10, name),)) for name in ACTIVATIONS},
    "dense without bias": Folder(behind=(Dense(10, bias=False),)),
    "residual of the same width": Folder(behind=(Dense(HIDDEN, residual=True),)),
    "residual of another width": Folder(behind=(Dense(10, residual=True),)),
    "dense of two poolings": Folder(pooling=("mean", "cls"), behind=(Dense(30, "Identity"), "normalize")),
    "three dense": Folder(behind=(Dense(30), Dense(12, "GELU", bias=False), Dense(12, residual=True), "normalize")),
    "normalized": Folder(behind=("normalize",)),
    "normalized twice": Folder(behind=("normalize", "normalize")),
    "normalized before dense": Folder(behind=("normalize", Dense(10))),
    "normalized around dense": Folder(behind=("normalize", Dense(10), "normalize")),
    "dropout and layer norm": Folder(behind=("dropout", "layer_norm", Dense(9, "Identity"), "dropout", "normalize")),
    "truncated": Folder(truncate=7),
    "truncated behind normalize": Folder(behind=("normalize",), truncate=7),
    "truncated behind dense": Folder(behind=(Dense(30, "Identity"), "normalize"), truncate=7),
    "truncated beyond the width": Folder(behind=(Dense(10), "normalize"), truncate=15),
    "short texts": Folder(max_length=14),
    "short texts without prompt": Folder("roberta", ("mean", "cls"), include_prompt=False, max_length=23),
    "short texts of xlnet": Folder("xlnet", "lasttoken", max_length=25),
    "lowercase": Folder(lowercase=True),
    "lowercase without prompt": Folder("roberta", include_prompt=False, lowercase=True),
    "lowercase xlnet": Folder("xlnet", ("cls", "lasttoken"), include_prompt=False, lowercase=True),
    "several prompts": Folder(prompts=PROMPTS),
    "a default prompt": Folder(prompts=PROMPTS, default="passage", behind=("normalize",)),
    "a default prompt not pooled": Folder("roberta", prompts=PROMPTS, default="long", include_prompt=False),
    "a default prompt of queries": Folder(prompts=PROMPTS, default="query"),
    "an empty default prompt": Folder(prompts=PROMPTS, default="none"),
    "a prompt of documents": Folder(prompts={"document": "D: ", "passage": "P: ", "corpus": "C: "}, default="corpus"),
    "a prompt of a corpus": Folder(prompts={"corpus": "C: "}, default="corpus"),
    "a blank prompt": Folder(prompts={"blank": " "}, default="blank", include_prompt=False),
    **{f"similarity {name}": Folder(similarity=name, pooling="cls", truncate=9) for name in SIMILARITIES},
}

# BERT has every pooling and XLNet, which pads on the left, every pooling without the prompt; the others two of them.
SELDOM = {
    f"{family} {pooling}{prompt}"
    for family, pooling, prompt in product(FAMILIES, POOLINGS, ("", " without prompt"))
    if family != "bert" and (prompt == "" or (family != "xlnet" and pooling not in ("cls", "weightedmean")))
} | {f"dense {name}" for name in ACTIVATIONS[4:]}


def old_pooling(*modes, **more):
    return {"word_embedding_dimension": HIDDEN, **{OLD_KEYS[mode]: mode in modes for mode in POOLINGS}, **more}


OLD, NEW = "sentence_transformers.models.", "sentence_transformers.sentence_transformer.modules."
TWO = {"": f"{OLD}Transformer", "1_Pooling": f"{OLD}Pooling"}
THREE = TWO | {"2_Dense": f"{OLD}Dense"}
MEAN = {"1_Pooling/config.json": old_pooling("mean")}
WIDTHS = {"in_features": HIDDEN, "out_features": 10}
TANH = {"2_Dense/config.json": {**WIDTHS, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}}
VERSION = {"__version__": {"sentence_transformers": "2.0.0", "transformers": "4.6.1", "pytorch": "1.8.1"}}
GENERAL = "config_sentence_transformers.json"
LENGTH = "sentence_bert_config.json"
CUT = {LENGTH: {"max_seq_length": 18, "do_lower_case": False}}
PROMPTED = {GENERAL: VERSION | {"prompts": PROMPTS, "default_prompt_name": "passage", "similarity_fn_name": None}}

# Modules by path, and JSON files, around a BERT or the named family.
OLD_FOLDERS = {
    "2.0": (TWO, MEAN | CUT | {GENERAL: VERSION}),
    "1.0": (TWO, MEAN | CUT),
    "no length": (TWO, MEAN | {LENGTH: {"max_seq_length": None, "do_lower_case": False}}),
    "no file of the length": (TWO, MEAN),
    "lowercase": (TWO, MEAN | {LENGTH: {"max_seq_length": 25, "do_lower_case": True}}),
    "roberta": (TWO, MEAN | {"sentence_roberta_config.json": CUT[LENGTH]}),
    "xlnet": (TWO, MEAN | {"sentence_xlnet_config.json": CUT[LENGTH]}),
    "no pooling chosen": (TWO, {"1_Pooling/config.json": {"word_embedding_dimension": HIDDEN}}),
    "several poolings": (TWO, {"1_Pooling/config.json": old_pooling("mean", "lasttoken", "cls", "max")}),
    "both kinds of keys": (TWO, {"1_Pooling/config.json": old_pooling("max", pooling_mode="cls")}),
    "a list of one": (TWO, {"1_Pooling/config.json": {"embedding_dimension": HIDDEN, "pooling_mode": ["cls"]}}),
    "prompt not pooled": (
        TWO,
        {"1_Pooling/config.json": old_pooling("mean", include_prompt=False)}
        | PROMPTED
        | {LENGTH: {"max_seq_length": 27}},
    ),
    "another path": (
        {"": f"{OLD}Transformer", "pooled": f"{OLD}Pooling"},
        {"pooled/config.json": old_pooling("cls"), "1_Pooling/config.json": old_pooling("max")},
    ),
    "normalize without a file": (TWO | {"2_Normalize": f"{OLD}Normalize"}, MEAN),
    "dense": (THREE, MEAN | TANH),
    "dense of labse": (
        THREE | {"3_Normalize": f"{OLD}Normalize"},
        {"1_Pooling/config.json": old_pooling("cls")} | TANH,
    ),
    "dense by default": (THREE, MEAN | {"2_Dense/config.json": WIDTHS}),
    "short activation": (THREE, MEAN | {"2_Dense/config.json": {**WIDTHS, "activation_function": "torch.nn.GELU"}}),
    "3.0": (TWO, MEAN | PROMPTED),
    "prompt of null": (TWO, MEAN | {GENERAL: {"prompts": {"query": None, "passage": "P: "}, "truncate_dim": 5}}),
    "default prompt without a text": (TWO, MEAN | {GENERAL: {"prompts": {}, "default_prompt_name": "query"}}),
    "5.0": (TWO, MEAN | {GENERAL: {"model_type": "SentenceTransformer", "prompts": {"query": SHORT, "document": ""}}}),
    "5.4": (
        {
            "": "sentence_transformers.base.modules.transformer.Transformer",
            "1_Pooling": f"{NEW}pooling.Pooling",
            "2_Dropout": f"{NEW}dropout.Dropout",
            "3_Normalize": f"{NEW}normalize.Normalize",
        },
        {"1_Pooling/config.json": {"embedding_dimension": HIDDEN}, "2_Dropout/config.json": {"dropout": 0.1}},
    ),
    "a newer release": (
        TWO,
        MEAN | {GENERAL: {"__version__": {"sentence_transformers": "99.0.0"}, "prompts": PROMPTS}},
    ),
}
