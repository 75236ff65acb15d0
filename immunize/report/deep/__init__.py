"""Reports of runs with deep nets: Table 3, Figure 3, and one run."""
