"""``sglang-mlx bench``: this server beside others, same model, dtype, BLAS and client, one run.

The way of the data: `workloads` makes scenarios, `contestants` says how each system is started,
`runner` alternates them round by round through `client` (HTTP) or `bare` (no server), and what
comes out is one JSON record that `report`, `plot` and `compare` read.
"""
