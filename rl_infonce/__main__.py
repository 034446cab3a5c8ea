"""`python -m rl_infonce` is the command line `rl-infonce`."""

import sys

from rl_infonce.cli import main

if __name__ == "__main__":
    sys.exit(main())
