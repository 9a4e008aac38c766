"""The training loop: trains the module of an objective and returns a record of the run.

The loop knows no task, text or encoder, only `bothways.training.objective.Objective`. It handles the optimizer,
schedule, clipping, early stopping, interruption, logging and exact resume. Import from the modules, since options and
schedules need no torch.
"""
