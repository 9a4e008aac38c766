"""The server as a deployment of Ray Serve, as the guide shows it."""

import math

from bothways.serving import application, make_server


class Bothways:
    """A replica: a server whose application Ray Serve runs."""

    def __init__(self, settings):
        self.server = make_server(settings, opens_first=True)

    def __serve_build_asgi_app__(self):
        return application(self.server)

    def record_autoscaling_stats(self):
        """Tell the policy what waits."""
        return {"queued_tokens": self.server.queue.tokens}


def by_tokens(context):
    """A replica for each 20,000 tokens that wait or are being computed, within the bounds of the deployment."""
    waiting = sum(context.aggregated_metrics.get("queued_tokens", {}).values())
    wanted = math.ceil(waiting / 20_000)
    return max(context.capacity_adjusted_min_replicas, min(wanted, context.capacity_adjusted_max_replicas)), {}
