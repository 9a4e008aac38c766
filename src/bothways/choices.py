"""Names that options can have, in one place; loads nothing, so that the command line can list them at once."""

from typing import Literal, TypeAlias

CalibrationMethod: TypeAlias = Literal["temperature", "vector", "platt", "isotonic"]
CalibrationChoice: TypeAlias = Literal["auto", "temperature", "vector", "platt", "isotonic"]
DetectorKind: TypeAlias = Literal["max_softmax", "energy", "mahalanobis", "neighbours", "cosine"]
DetectorChoice: TypeAlias = Literal[
    "max_softmax", "energy", "mahalanobis", "neighbours", "cosine", "mahalanobis_layers"
]
Merge: TypeAlias = Literal["weighted_mean", "mean", "max", "first", "attention"]
Cut: TypeAlias = Literal["longer", "second"]
Distance: TypeAlias = Literal["euclidean", "cosine"]
EnsembleMethod: TypeAlias = Literal["mean", "vote", "stacked"]
GuaranteeKind: TypeAlias = Literal["least_ambiguous", "adaptive", "interval"]
Overflow: TypeAlias = Literal["window", "error", "truncate"]
Pooling: TypeAlias = Literal["mean", "cls", "max", "weighted_mean", "mean_sqrt_length"]
Scheme: TypeAlias = Literal["BIO", "IOB1", "BIOES", "BILOU", "plain"]
TargetKind: TypeAlias = Literal["single", "multi", "regression"]

ALL_LAYERS = "mahalanobis_layers"
