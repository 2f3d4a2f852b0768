"""The NumPy kernel against PyTorch, flex_attention, onnxruntime and plain NumPy."""
