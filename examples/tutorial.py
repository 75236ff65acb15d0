# %% [markdown]
# # Tutorial: immunize a pair of digits, and try to break it
#
# D_P, what the features are made for, are images of the digit 0; D_H, the task that is to become hard, are images
# of the digit 1, from scikit-learn's embedded digits. In six steps: forecast, immunize, evaluate, probe, attack,
# and the closed form that no linear map exceeds. Everything is offline and takes about half a minute.
#
# This file is a script, `python examples/tutorial.py`, and a notebook: `jupytext --to notebook
# examples/tutorial.py`, or open it as one.

# %%
import tempfile
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from immunize import attack, closed_form, evaluate, forecast, train
from immunize.config import config_dir, register
from immunize.instantiate import build

OUT = Path(tempfile.mkdtemp(prefix="immunize-tutorial-"))


def configured(command: str, *overrides: str) -> DictConfig:
    """What `python -m immunize.<command> <overrides>` would run with."""
    register()
    with initialize_config_dir(config_dir(), version_base="1.3"):
        return compose(command, list(overrides))


# %% [markdown]
# ## 1. Forecast
#
# Before any training: a linear map moves both condition numbers at once, and how far apart it can move them is
# decided by the two covariances. RIR* is the bound on the rows at hand. The verdict looks at rows that the map
# never saw.

# %%
foreseen = forecast.run(configured("forecast", "harmful=digits", "harmful.pair=[0,1]"), OUT / "forecast")
print(foreseen["verdict"]["sentence"])

# %% [markdown]
# ## 2. Immunize
#
# The paper's method: the task loss, plus R_well, which keeps κ of D_P's Hessian small, plus R_ill, which makes κ of
# D_H's large. θ is a 64 × 64 matrix that starts as a rotation.

# %%
run = OUT / "ours"
record = train.run(configured("train", "harmful=digits", "method=ours", "logger=none"), run, quiet=True)
print(record["status"], f"{record['training']['fit']['steps']} steps, {record['seconds']:.0f} s")

# %% [markdown]
# ## 3. Evaluate
#
# (i) is how much harder D_H became, (ii) how much harder D_P became, RIR their ratio. `fit` are the images θ was
# made with, `held_out` images it never saw. `ridge` is the estimator that does not hang on the smallest singular
# value.

# %%
for part in ("fit", "held_out"):
    for estimator, numbers in record["metrics"][part].items():
        i, ii, rir = (numbers[name] for name in ("ratio_harmful", "ratio_pretrain", "rir"))
        print(f"{part:9} {estimator:9} (i) {i:10.4g}  (ii) {ii:10.4g}  RIR {rir:10.4g}")

# %% [markdown]
# A record is a claim. `immunize.evaluate` computes every number of it again, from the checkpoint and the data.

# %%
again, differing = evaluate.run(run)
print(differing or "every number agrees")

# %% [markdown]
# ## 4. Probe
#
# κ is about gradient descent. The paper's attacker trains a linear probe with exact line search; these are the
# steps until it is within a tenth of its starting distance from the optimum (the norm ratio of Eq. 16), on the raw
# images and on the immunized features. `None` is never, within the steps that were looked at.

# %%
for role, curves in record["steps_to_norm_ratio"]["held_out"].items():
    print(f"{role:9} raw {curves['identity']['0.1']} steps, immunized {curves['immunized']['0.1']} steps")

# %% [markdown]
# ## 5. Attack
#
# Nobody has to use gradient descent. The grid tries first-order optimizers (T1), second-order and closed forms (T2)
# and repaired features (T3) on the task "tell a 1 from a 0". `attack=quick` with one seed is a look and no result.

# %%
attacked = attack.run(configured("attack", f"run={run}", "attack=quick", "seeds=[0]", "benign_digits=0"))
for tier, found in attacked["results"]["harmful"]["immunized"].items():
    score, held = found["score"]["mean"], found["held"][0]
    print(f"{tier}: accuracy {score:.3f}, best by {found['best'][0]}, {'held' if held else 'did not hold'}")

# %% [markdown]
# What stops whom is in the table above, not in RIR: θ is invertible, so whoever solves the probe in closed form or
# whitens the features first gets all that the raw images have.
#
# ## 6. The closed form
#
# The best linear map needs no training. With a budget B for κ(H_P) it reaches κ(H_H) = κ_gen·B, and no map with the
# same κ(H_P) reaches more (for covariances with the shrinkage ρ, which keeps noise in nearly dead pixels from
# deciding).

# %%
data = configured("train", "harmful=digits")
pair = [build(data[side]) for side in ("pretrain", "harmful")]
X_P, X_H = (source.load() for source in pair)
best = closed_form(X_P.fit.x, X_H.fit.x, budget=10.0, shrinkage=1e-3)
print(f"κ(H_P) {best.kappa_pretrain:.1f}, (ii) {best.ratio_pretrain:.2g}, RIR {best.rir:.3g} on the fitted rows")

# %% [markdown]
# Folding the inverse into the head leaves every output what it was, so D_P loses nothing.

# %%
head = torch.randn(64, 1, dtype=torch.float64)
released = (X_P.held_out.x @ best.theta) @ (best.inverse @ head)
print(f"largest change of an output: {(released - X_P.held_out.x @ head).abs().max():.1e}")
print(f"everything lies in {OUT}")

# %% [markdown]
# From here: [concepts](../docs/concepts.md) has the mathematics, [the threat model](../docs/threat_model.md) says
# what a claim of immunity is worth, [own arrays](../docs/own_arrays.md) and [own network](../docs/own_network.md)
# bring your data in.
