"""The package's version; setup.cfg reads it without importing the package."""

__version__ = "0.1.0"
