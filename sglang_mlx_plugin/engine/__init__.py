"""The engine: MLX in, tokens out. It never imports SGLang."""
