"""``python -m benchmarks {numpy,jax,accelerator,precision} [options]``; each lists its options by ``--help``."""

import sys


def main() -> None:
    names = {
        "numpy": "benchmarks.numpy_kernel.run",
        "jax": "benchmarks.jax_kernel.run",
        "accelerator": "benchmarks.accelerator",
        "precision": "benchmarks.precision",
    }
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        sys.exit(f"usage: python -m benchmarks {{{','.join(names)}}} [options]")
    from importlib import import_module

    import_module(names[sys.argv[1]]).main(sys.argv[2:])


main()
