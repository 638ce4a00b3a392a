"""Whether every promise holds, proven from the data alone; `proof.py` tells how."""
