"""The errors of the suite, each a sentence that says what to do."""

RECORD = "`attention-conformance record` (with PyTorch: pip install 'array-attention[record]')"
REPAIR = f"Install array-attention again, or record the vectors anew with {RECORD}."


class VectorError(Exception):
    """A vector file is missing, damaged, of another format or recorded by another recorder."""


class UsageError(Exception):
    """The command was asked for something that does not exist."""


class RecordError(Exception):
    """The recording does not agree with its second source, with the article or with what was recorded before."""
