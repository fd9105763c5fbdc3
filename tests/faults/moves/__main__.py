"""The command that plays moves that are killed; imports nothing, since each forked process imports this."""

if __name__ == "__main__":
    import sys

    from tests.faults.moves.command import main

    sys.exit(main())
