"""Experiment trackers that receive the log of a run: TensorBoard, MLflow, Weights & Biases and trackio.

Each is configured as its own documentation says, by environment variables such as ``MLFLOW_TRACKING_URI`` and
``WANDB_PROJECT``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bothways.choices import TrackerName


@dataclass(frozen=True, slots=True)
class Tracker:
    """An open run of a tracker.

    Attributes:
        log: Takes metrics by name, and the number of updates so far.
        close: Ends the run.
    """

    log: Callable[[dict[str, float], int], Any]
    close: Callable[[], Any]

    def write(self, values: Mapping[str, object]) -> None:
        """Log the numbers of an event of the training log; those of a validation get the prefix ``validation/``."""
        metrics, update = values.get("metrics"), values.get("update")
        prefix, found = ("validation/", metrics) if isinstance(metrics, Mapping) else ("train/", values)
        numbers = {
            f"{prefix}{name}": float(value)
            for name, value in found.items()
            if isinstance(value, int | float) and name not in ("update", "epoch")
        }
        if isinstance(update, int) and numbers:
            self.log(numbers, update)


def open_tracker(name: TrackerName, settings: Mapping[str, object]) -> Tracker:
    """Start a run of a tracker with the settings of a training."""
    match name:
        case "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter()  # in ./runs, with date and host in its name
            writer.add_text("settings", "\n".join(f"    {key}: {value}" for key, value in settings.items()))

            def add(metrics: dict[str, float], update: int) -> None:
                for key, value in metrics.items():
                    writer.add_scalar(key, value, update)

            return Tracker(add, writer.close)
        case "mlflow":
            import mlflow

            mlflow.start_run()
            mlflow.log_params(dict(settings))
            return Tracker(lambda metrics, update: mlflow.log_metrics(metrics, step=update), mlflow.end_run)
        case "wandb":
            import wandb

            run = wandb.init(config=dict(settings))
            return Tracker(lambda metrics, update: run.log(metrics, step=update), run.finish)
        case "trackio":
            import trackio

            trackio.init(project="bothways", config=dict(settings))
            return Tracker(lambda metrics, update: trackio.log(metrics, step=update), trackio.finish)
