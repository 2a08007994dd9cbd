"""Hold the version of TensorPrimat: pyproject.toml and every --version read it here."""

VERSION = "0.1.0"
