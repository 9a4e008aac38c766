"""``python -m bothways.jobs``: a worker, see `bothways.jobs.worker`."""

from bothways.jobs.worker import main

if __name__ == "__main__":
    main()
