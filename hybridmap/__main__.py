"""``python -m hybridmap`` is the ``hybridmap`` command."""

from hybridmap.cli import main

if __name__ == "__main__":
    main()
