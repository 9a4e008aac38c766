"""``python -m bothways.jobs``: a worker, see `bothways.jobs.worker`."""

import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that began the job

from bothways.jobs.worker import main  # noqa: E402 (after the signal)

if __name__ == "__main__":
    main()
