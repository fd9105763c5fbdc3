"""Entry of `python -m bench`."""

from bench.cli import cli

if __name__ == "__main__":
    cli()
