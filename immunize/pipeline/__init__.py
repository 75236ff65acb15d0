"""How one run goes, whatever the model: assemble, fit, evaluate, record.

`assemble` turns a configuration into one frozen :class:`~immunize.pipeline.experiment.Experiment`; nothing after it
sees a configuration. `experiment` has the path of every run, `linear` and `network` what differs along it. Sees every
room; no room sees it.
"""
