"""The training loop: an objective in, a trained model and a record out.

The loop knows neither tasks nor texts nor encoders. It sees `bothways.training.objective.Objective`, and does the rest:
optimizer, schedule, clipping, early stopping, interruption, logging, exact resume. Import from the modules: options
and schedules need no torch.
"""
