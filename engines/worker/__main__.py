"""`python -m engines.worker`."""

from engines.worker.cli import main

if __name__ == "__main__":
    main()
