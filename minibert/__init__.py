"""BERT from scratch, in notebooks that prove every line."""
__version__ = "0.1.0"
