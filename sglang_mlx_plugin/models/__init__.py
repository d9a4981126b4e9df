"""Model folders: the embedded default, and GGUF files turned into mlx-lm folders."""
