"""The JAX kernel against jax.nn, tokamax and PyTorch."""
