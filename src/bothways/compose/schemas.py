"""JSON schemas of trained models: single-task models, ensembles and multi-task models."""

from bothways.compose.ensembles.combining import Disagreement, Spread
from bothways.compose.ensembles.trained import TrainedEnsemble
from bothways.compose.multitask.trained import TrainedTasks
from bothways.lazy import imported
from bothways.tasks.heads.targets import RegressionPrediction
from bothways.tasks.schemas import Schemas, any_of, prediction_schema, variants
from bothways.tasks.task import InputT, PredictionT, Task, TrainedT


def schemas_of(model: Task[InputT, PredictionT, TrainedT]) -> Schemas:
    """Return the JSON schemas of a trained model's inputs and predictions.

    Raises:
        NotFitted: The model was not trained for its task.
        InvalidInput: The model is an embedder that was trained on rows of one text, so it cannot compare two texts.
    """
    match model.fitted:
        case TrainedEnsemble(columns=joint):
            # Members may have been trained on different columns; each reads its own.
            first, *others = (Schemas.of(model.spec, columns) for columns in dict.fromkeys(joint.columns))
            kinds = variants(imported(model.spec.prediction))
            apart = [(kind, Spread if kind is RegressionPrediction else Disagreement) for kind in kinds]
            return Schemas(
                {"allOf": [first.input, *(each.input for each in others)]} if others else first.input,
                first.options,
                any_of([prediction_schema(*pair) for pair in apart]),
            )
        case TrainedTasks(parts=parts):
            own = {name: Schemas.of(part.spec, part.columns) for name, part in parts.items()}
            predictions = {name: each.prediction for name, each in own.items()}
            return Schemas(
                any_of([each.input for each in own.values()]),
                {"type": "object", "properties": {}, "additionalProperties": False},
                {"type": "object", "properties": predictions, "required": [*own], "additionalProperties": False},
            )
        case fitted:
            return Schemas.of(model.spec, fitted.columns)
