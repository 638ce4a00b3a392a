"""`python -m timeball`."""

from timeball.cli.main import main

if __name__ == "__main__":
    main()
