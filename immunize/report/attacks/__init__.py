"""Reports of attacks: of one run, and of many, from attack records alone."""
