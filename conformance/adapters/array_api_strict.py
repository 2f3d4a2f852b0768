"""attention_core on array_api_strict, which has nothing that the Array API standard does not name."""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.adapters.base import Adapter, Unsupported
from conformance.adapters.numpy import AttentionOnArrays, version_of
from conformance.cases import Case

WIDE = ("float32", "float64")


class AttentionOnStrict(AttentionOnArrays):
    """The dense definition and the tiled kernel in standard functions alone."""

    def __init__(self) -> None:
        self.strict = importlib.import_module("array_api_strict")
        super().__init__("array-api-strict", importlib.import_module("attention_core"), version_of("array-api-strict"))

    def asarray(self, array: np.ndarray) -> Any:
        """Take a NumPy array to the library; its integers are int64 or int32 there too."""
        return self.strict.asarray(array)

    def compute(self, case: Case, dtype: str) -> Mapping[str, Any]:
        """Call attention_core, except in dtypes that the standard does not have."""
        given = {case.fixed.get(name, dtype) for name, array in case.inputs.items() if array.dtype.kind not in "biu"}
        if not given <= set(WIDE):
            raise Unsupported(f"the Array API standard's real dtypes are {' and '.join(WIDE)}")
        return super().compute(case, dtype)


def make() -> Adapter:
    """Import array_api_strict."""
    return AttentionOnStrict()
