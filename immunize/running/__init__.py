"""How one run goes, linear or deep: parts from the configuration, the fit, what is measured, the record.

Sees every room; no room sees it.
"""
