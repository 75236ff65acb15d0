"""What a configuration's hash follows: whatever changes a number, and neither places nor how a run is shown."""

from __future__ import annotations

import copy

import pytest

from immunize import threads
from immunize.config import config_hash, hash_of_run, resolved
from tests.composing import compose_config, tiny

TABLE = ("harmful=housing",)
NETWORK = ("model=resnet_small", "harmful=digits", "threads=1")
WEIGHTS_OF_THE_DATA_PACK = ("model=resnet18_64px", "harmful=cars", "pretrain=tiny_imagenet", "threads=1")


def hash_of(*overrides: str) -> str:
    return hash_of_run(compose_config(*overrides))


@pytest.mark.parametrize(
    ("run", "same", "others"),
    [
        (
            TABLE,
            (
                *("data_root=/somewhere/else", "logger=none", "logger=wandb", "overwrite=true", "threads=2", "seed=0"),
                *("monitor_every=7", "log_every=3", "resume=true", "figure=false", "experiment.name=table1"),
                "deep.groups=3",
            ),
            (
                *("seed=1", "rho=0.1", "guard=warn", "method=ill_only", "model.init=identity", "harmful=synthetic"),
                *("harmful.rows=200", "objective.lambda_well=2", "objective.lambda_ill=3", "objective.lr_decay=0.25"),
                *("pairing=min_size", "probe_steps=9", "method.precondition=dummy", "objective.batch_size=32"),
            ),
        ),
        (
            NETWORK,
            ("deep.workers=3", "deep.cache_dir=/x", "data_root=/y"),
            ("seed=1", "trainer=ddp", "deep.groups=3", "deep.images=9", "objective.max_steps=5"),
        ),
        (WEIGHTS_OF_THE_DATA_PACK, ("data_root=/a", "data_root=/b"), ("model.checkpoint=/a/another",)),
    ],
    ids=["table", "network", "weights below the data folder"],
)
def test_a_hash_follows_what_changes_numbers_and_nothing_else(
    run: tuple[str, ...], same: tuple[str, ...], others: tuple[str, ...]
) -> None:
    assert len(base := hash_of(*run)) == 16
    assert {override: hash_of(*run, override) for override in same} == dict.fromkeys(same, base)
    changed = {hash_of(*run, override): override for override in others}
    assert tuple(changed.values()) == others  # each has a hash of its own
    assert base not in changed


def test_records_of_before_a_setting_was_there_keep_their_hash() -> None:
    """Where it has its default; `precondition` was once one of the objective as well."""
    table, network = (resolved(compose_config(*run)) for run in (TABLE, NETWORK))
    objective, deep = dict(table["objective"]), dict(network["deep"])
    for name in ("lr_decay", "cache_frozen", "max_steps"):
        del objective[name]
    del deep["images"]
    before = {name: value for name, value in table.items() if name != "deep"} | {"objective": objective}
    assert config_hash(before) == config_hash(table)
    assert config_hash(table | {"objective": objective | {"precondition": None}}) == config_hash(table)
    assert config_hash(network | {"deep": deep}) == config_hash(network)


def test_a_hash_is_of_values_not_of_their_order() -> None:
    config = resolved(tiny())
    before = copy.deepcopy(config)
    assert config_hash(dict(reversed(list(config.items())))) == config_hash(config)
    assert config == before


def test_an_empty_data_folder_takes_no_slash_off_a_path() -> None:
    config = {"data_root": "", "file": "/a/b", "name": ""}
    for other in ({"file": "<data_root>a/b"}, {"file": "a/b"}, {"name": "<data_root>"}):
        assert config_hash(config) != config_hash(config | other)


def test_the_threads_of_a_network_are_what_they_come_to_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its run and of its θ_0: numbers round differently."""
    monkeypatch.setattr(threads, "cores", lambda: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    for primary, words in (("train", NETWORK), ("pretrain_theta", ())):
        one, two, null = (compose_config(*words, f"threads={n}", primary=primary) for n in (1, 2, "null"))
        assert resolved(null)["threads"] == 2
        assert hash_of_run(one) != hash_of_run(two) == hash_of_run(null)
        assert config_hash(resolved(null, 1)) == hash_of_run(one)
