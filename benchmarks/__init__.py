"""Data in, ratios out; run as ``python -m benchmarks NAME``, never imported."""
