"""The version, in one place that every room may read."""

VERSION = "0.1.0"
