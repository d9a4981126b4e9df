"""Which of mlx-lm's model families are served, and how: a recorded table and its command."""
