"""What the attack grid is pointed at: runs and checkpoints, linear or networks, their tasks, and what came out.

Sees every room; no room sees it.
"""
