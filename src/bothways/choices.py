"""Allowed values of options. The module imports nothing of the package, so that the command line starts quickly."""

from typing import Literal, TypeAlias

ActivationModule: TypeAlias = Literal[
    "Identity",
    "Tanh",
    "ReLU",
    "GELU",
    "Sigmoid",
    "SiLU",
    "ELU",
    "SELU",
    "CELU",
    "ReLU6",
    "LeakyReLU",
    "LogSigmoid",
    "Mish",
    "Softplus",
    "Softsign",
    "Tanhshrink",
    "Hardtanh",
    "Hardswish",
    "Hardsigmoid",
]
AuditFormat: TypeAlias = Literal["text", "json", "sarif", "html"]
AttributionMethod: TypeAlias = Literal["integrated-gradients", "gradient-x-input", "leave-one-out"]
CalibrationMethod: TypeAlias = Literal["temperature", "isotonic"]
CalibrationChoice: TypeAlias = Literal["auto", "temperature", "isotonic"]
TemperatureChoice: TypeAlias = Literal["auto", "temperature"]
ClassWeights: TypeAlias = Literal["balanced"]
Constraint: TypeAlias = Literal["accuracy", "latency", "memory", "compute", "pretraining", "research"]
Cut: TypeAlias = Literal["longer", "second"]
DetectorKind: TypeAlias = Literal["max_softmax", "energy", "mahalanobis", "neighbours", "cosine"]
DetectorChoice: TypeAlias = Literal[
    "max_softmax", "energy", "mahalanobis", "neighbours", "cosine", "mahalanobis_layers"
]
Distance: TypeAlias = Literal["euclidean", "cosine"]
Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16", "float64"]
ExportFormat: TypeAlias = Literal["onnx", "safetensors"]
FamilyName: TypeAlias = Literal[
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "distilbert",
    "electra",
    "albert",
    "deberta",
    "deberta-v2",
    "xlnet",
    "modernbert",
]
Format: TypeAlias = Literal["jsonl", "json", "csv", "tsv", "parquet", "xlsx", "txt", "conll", "conllu"]
GoldenSource: TypeAlias = Literal["validation", "neutral"]
GuaranteeKind: TypeAlias = Literal["least_ambiguous", "interval"]
HeadName: TypeAlias = Literal[
    "masked_lm",
    "permutation_lm",
    "next_sentence",
    "sentence_order",
    "replaced_token",
    "sequence",
    "token",
    "span",
    "multiple_choice",
]
JudgeDimension: TypeAlias = Literal["context_relevance", "answer_faithfulness", "answer_relevance"]
LabelRule: TypeAlias = Literal["index", "text"]
Language: TypeAlias = Literal["english", "french", "multilingual"]
LossName: TypeAlias = Literal["ranking", "cosent", "triplet"]
MaskUnit: TypeAlias = Literal["token", "whole-word", "span", "n-gram"]
Merge: TypeAlias = Literal["weighted_mean", "mean", "max", "maxp", "first"]
Negatives: TypeAlias = Literal["weak", "strong", "both", "none"]
Method: TypeAlias = Literal["mean", "vote", "stacked"]
OnEmpty: TypeAlias = Literal["error", "skip", "null"]
Overflow: TypeAlias = Literal["window", "error", "truncate", "truncate_left"]
Pairing: TypeAlias = Literal["paired", "unpaired"]
Pooling: TypeAlias = Literal["mean", "cls", "max", "weighted_mean", "mean_sqrt_length", "first", "last"]
Unlabelled: TypeAlias = Literal["error", "drop"]
TrackerName: TypeAlias = Literal["tensorboard", "mlflow", "wandb", "trackio"]
PpiMethod: TypeAlias = Literal["ppi++", "ppi", "classical"]
RecipeName: TypeAlias = Literal[
    "bert",
    "roberta",
    "albert",
    "electra",
    "electra-base",
    "deberta",
    "deberta-v3",
    "xlnet",
    "distilbert",
    "modernbert",
]
SeverityName: TypeAlias = Literal["info", "low", "medium", "high", "critical"]
RecipeScale: TypeAlias = Literal["tiny", "small", "base", "published"]
Sampling: TypeAlias = Literal["proportional", "temperature", "uniform"]
Scheme: TypeAlias = Literal["BIO", "IOB1", "BIOES", "BILOU", "plain"]
Shared: TypeAlias = Literal["keep", "drop"]
SimilarityName: TypeAlias = Literal["cosine", "dot", "euclidean", "manhattan"]
SpanScheme: TypeAlias = Literal["BIO", "IOB1", "BIOES", "BILOU"]
TargetKind: TypeAlias = Literal["single", "multi", "regression"]
LabelValue: TypeAlias = str | int | float | bool
"""A label as the data give it; its name is a string."""
TokenizerKind: TypeAlias = Literal["wordpiece", "bpe", "unigram"]

ALL_LAYERS = "mahalanobis_layers"
