"""The report of `experiment=sweep_lambda`: what each weight λ_H/λ_P buys."""
