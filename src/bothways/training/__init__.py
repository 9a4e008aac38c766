"""The training loop: an objective in, a trained model and a record out.

The loop depends on no task, text or encoder, only on `bothways.training.objective.Objective`. It does the rest:
optimizer, schedule, clipping, early stopping, interruption, logging, exact resume. Import from the modules: options
and schedules need no torch.
"""
