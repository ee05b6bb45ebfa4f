"""`python -m varve`: the command line."""

from varve.cli.main import main

if __name__ == "__main__":
    main()
