"""Models: their shapes, read from a Hugging Face ``config.json``, and the catalogue of known ones in ``configs``."""
